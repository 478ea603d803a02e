/** What a tab and the reader of the stream say to each other. Plain data: it goes between a worker and its tabs. */

import type { AnyEvent } from "@turnwire/client";

import type { Link } from "./daemon.js";

export type ToReader =
  /** A tab is here; also one that was frozen and is back. `tab` is the name of the lock that it holds while it lives. */
  | { readonly say: "hello"; readonly base: string; readonly tab: string; readonly pageKey: string | undefined }
  /** The sessions of which it wants every event. `number` counts what it wants. */
  | { readonly say: "want"; readonly sessions: readonly string[]; readonly number: number }
  /** It has become visible, or the network is another: connections may be dead without knowing it. */
  | { readonly say: "wake" }
  | { readonly say: "bye" };

export type ToTab =
  /** The stream is open: from here on every event comes. Said anew after a `hello`. */
  | { readonly say: "begun" }
  /** What it wanted with that number holds from here on. */
  | { readonly say: "wanted"; readonly number: number }
  | { readonly say: "events"; readonly events: readonly AnyEvent[] }
  | { readonly say: "link"; readonly link: Link };

/** The session that an event is of; empty if it is of none. */
export function sessionOf(event: AnyEvent): string {
  const { sessionId } = event.data as { readonly sessionId?: unknown };
  return typeof sessionId === "string" ? sessionId : "";
}
