/** The dialog that opens the page on a phone: a login link as a QR code, or how to make the daemon reachable. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import type { Daemon } from "../state/daemon.js";
import { copy } from "./copy.js";
import { Dialog, openDialog } from "./dialog.js";
import { Icon } from "./icon.js";
import { wordsOf } from "./toasts.js";

/** Whether this page was loaded from an address that other devices cannot reach. */
export const isLoopback = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
export const ONLY_HERE = "Only this computer can open links to this address.";

interface LoginLink {
  readonly url: string;
  /** The link as a QR code: an SVG image in a data URL. */
  readonly qrCode: string;
}

export function openPhoneDialog(daemon: Daemon): void {
  openDialog(() => (
    <Dialog title="Open on your phone" kind="phone">
      {isLoopback ? <HowToReach /> : <LinkToScan daemon={daemon} />}
    </Dialog>
  ));
}

function HowToReach() {
  return (
    <>
      <p>{ONLY_HERE} To use your phone:</p>
      <ol>
        <li>
          Make the daemon reachable: put a proxy with TLS in front of it, or on a trusted network start it with{" "}
          <code>TURNWIRE_TOKEN=… turnwire serve --host 0.0.0.0</code>.
        </li>
        <li>Open the page at that address and choose “Open on your phone” again.</li>
      </ol>
    </>
  );
}

function LinkToScan({ daemon }: { readonly daemon: Daemon }) {
  const link = useSignal<LoginLink | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    daemon.client.request<LoginLink>("POST", "/login-link").then(
      (made) => (link.value = made),
      (error: unknown) => (problem.value = wordsOf(error)),
    );
  }, []);
  return (
    <>
      <p class="soft">Scan the code with your phone's camera. The link signs in one browser, once, within 10 minutes.</p>
      {link.value && (
        <>
          <img class="qr-code" src={link.value.qrCode} alt="QR code of a login link" />
          <div class="dialog-acts">
            <button type="button" class="button" data-first onClick={() => void copy(link.value!.url, "Link copied.")}>
              <Icon name="copy" />
              Copy link
            </button>
          </div>
        </>
      )}
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
    </>
  );
}
