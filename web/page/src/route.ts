/** The part of the page that the URL names after `#`, so that the daemon serves one document. */

import { type ReadonlySignal, signal } from "@preact/signals";

export type Route =
  | { readonly at: "home" }
  | { readonly at: "inbox" }
  | { readonly at: "session"; readonly sessionId: string }
  /** `turn`: the turn that is shown. */
  | { readonly at: "inspector"; readonly sessionId: string; readonly turn?: string };

const current = signal<Route>(read(location.hash));
/** The current route. */
export const route: ReadonlySignal<Route> = current;

addEventListener("hashchange", () => {
  current.value = read(location.hash);
});

/** Return the URL of a part of the page, for `href`. */
export function hrefOf(wanted: Route): string {
  switch (wanted.at) {
    case "home":
      return "#/";
    case "inbox":
      return "#/inbox";
    case "session":
      return `#/session/${encodeURIComponent(wanted.sessionId)}`;
    case "inspector": {
      const turn = wanted.turn === undefined ? "" : `/${encodeURIComponent(wanted.turn)}`;
      return `#/session/${encodeURIComponent(wanted.sessionId)}/inspector${turn}`;
    }
  }
}

/** Go to another part of the page. */
export function go(wanted: Route): void {
  location.hash = hrefOf(wanted);
}

function read(hash: string): Route {
  const parts = hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  const [first, sessionId, part, turn] = parts;
  if (first === "inbox") return { at: "inbox" };
  if (first !== "session" || sessionId === undefined) return { at: "home" };
  if (part !== "inspector") return { at: "session", sessionId };
  return turn === undefined ? { at: "inspector", sessionId } : { at: "inspector", sessionId, turn };
}

/** A URL may be typed by hand, so it may contain anything. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
