/**
 * The start of the page: it asks the daemon for the caller. Without a login it shows how to log in, and continues as
 * soon as there is one. If the daemon does not answer, it keeps asking.
 */

import { type ReadonlySignal, effect, signal, useSignal } from "@preact/signals";
import { type DaemonCalls, Unauthenticated, reach } from "@turnwire/client";

import type { Daemon } from "../state/daemon.js";
import { openFeed } from "../state/feed.js";
import { logInWith } from "./login.js";
import { base, pageKey } from "./page_key.js";
import { wordsOf } from "./toasts.js";

export type Stage =
  | { readonly at: "starting" }
  | { readonly at: "login" }
  | { readonly at: "unreachable"; readonly why: string }
  | { readonly at: "in"; readonly daemon: Daemon };

const AGAIN_MS = 2_000;
const current = signal<Stage>({ at: "starting" });
export const stage: ReadonlySignal<Stage> = current;
let isAsking = false;
/** Tabs notify each other here of a login. */
const others = typeof BroadcastChannel === "function" ? new BroadcastChannel(`turnwire ${base.pathname}`) : undefined;

/** Start, and enter as soon as that is possible. */
export function start(): void {
  const ask = () => {
    if (current.peek().at !== "in" && document.visibilityState === "visible") void enter();
  };
  // There is a login, so hidden tabs enter as well.
  if (others) others.onmessage = () => void (current.peek().at !== "in" && enter());
  document.addEventListener("visibilitychange", ask);
  addEventListener("focus", ask);
  addEventListener("online", ask);
  void enter();
}

async function enter(): Promise<void> {
  if (isAsking) return;
  isAsking = true;
  try {
    const client = await reach(base, { acp: "agent", pageKey: pageKey() });
    welcome(client);
  } catch (error) {
    if (error instanceof Unauthenticated) current.value = { at: "login" };
    else {
      current.value = { at: "unreachable", why: wordsOf(error) };
      setTimeout(() => void enter(), AGAIN_MS);
    }
  } finally {
    isAsking = false;
  }
}

let hasBeenIn = false;

function welcome(client: DaemonCalls): void {
  // Another login may see other sessions, so keep no state of the previous one.
  if (hasBeenIn) return location.reload();
  hasBeenIn = true;
  const { caller } = client.capabilities;
  const feed = openFeed(base.href);
  effect(() => {
    if (feed.link.value === "refused") current.value = { at: "login" };
  });
  others?.postMessage("in");
  current.value = { at: "in", daemon: { client, caller, feed } };
}

/** The screens before the page has entered. */
export function Outside({ shown }: { readonly shown: Exclude<Stage, { at: "in" }> }) {
  switch (shown.at) {
    case "starting":
      return <main class="outside" aria-busy="true" />;
    case "login":
      return (
        <main class="outside">
          <h1>Log in</h1>
          {location.hash === LINK_EXPIRED && (
            <p class="problem" role="alert">
              This link has expired or was already used. Run <code>turnwire login</code> for a new one, or ask whoever
              sent it.
            </p>
          )}
          <p>On the machine that runs turnwire, run</p>
          <p>
            <code>turnwire open</code>
          </p>
          <p>
            It opens this page and signs you in. Or run <code>turnwire login</code> and open the link that it prints in
            this browser. The link works once.
          </p>
          <TokenForm />
          <p class="soft" role="status">
            This page continues as soon as you are signed in.
          </p>
        </main>
      );
    case "unreachable":
      return (
        <main class="outside">
          <h1>The daemon does not answer</h1>
          <p>
            Is it running? <code>turnwire serve</code> starts it.
          </p>
          <p class="soft" role="status">
            Retrying… {shown.why}
          </p>
        </main>
      );
  }
}

/** The fragment to which the login page redirects if its link is not valid. */
const LINK_EXPIRED = "#/link-expired";

function TokenForm() {
  const token = useSignal("");
  const problem = useSignal("");
  const isBusy = useSignal(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!token.value.trim() || isBusy.value) return;
    isBusy.value = true;
    problem.value = (await logInWith(token.value.trim())) ?? "";
    isBusy.value = false;
    if (!problem.value) await enter();
  };
  return (
    <form class="token-form" onSubmit={submit}>
      <label for="token">Or sign in with a token</label>
      <div>
        <input
          id="token"
          class="field mono"
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={token}
          onInput={(event) => (token.value = event.currentTarget.value)}
        />
        <button type="submit" class="button primary" disabled={isBusy.value}>
          {isBusy.value ? "Signing in…" : "Sign in"}
        </button>
      </div>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
    </form>
  );
}
