/** Signing this browser in with a token, and out again. */

import type { Daemon } from "../state/daemon.js";
import { base, forgetPageKey, pageKey, storePageKey } from "./page_key.js";
import { tellError } from "./toasts.js";

/** Exchange a token for a login of this browser. Return why that failed, or nothing. */
export async function logInWith(token: string): Promise<string | undefined> {
  const key = pageKey();
  const headers = { "Content-Type": "application/json", ...(key === undefined ? {} : { "Turnwire-Page-Key": key }) };
  const body = JSON.stringify({ code: token });
  const reply = await fetch(new URL("login", base), { method: "POST", headers, body }).catch(() => undefined);
  if (!reply) return "The daemon does not answer. Is it running?";
  if (reply.status === 429) return "Too many attempts. Wait a minute and try again.";
  if (!reply.ok) return "This token was not accepted. It may be mistyped, revoked or expired.";
  storePageKey(reply.headers.get("Turnwire-Page-Key"));
  return undefined;
}

export async function logOut(daemon: Daemon): Promise<void> {
  try {
    await daemon.client.request("POST", "/logout");
  } catch (error) {
    tellError(error);
    return;
  }
  forgetPageKey();
  location.reload();
}
