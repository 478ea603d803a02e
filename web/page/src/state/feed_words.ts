/** The messages between a tab and the reader of the stream. Plain data: they cross from a worker to its tabs. */

import type { AnyEvent } from "@turnwire/client";

import type { Link } from "./daemon.js";

export type ToReader =
  /** A tab has started, or was restored after being frozen. `tab`: the name of the lock that it holds. */
  | { readonly say: "hello"; readonly base: string; readonly tab: string; readonly pageKey: string | undefined }
  /** The sessions of which it needs every event. `number` counts these messages. */
  | { readonly say: "want"; readonly sessions: readonly string[]; readonly number: number }
  /** It has become visible, or the network has changed: connections may be dead without notice. */
  | { readonly say: "wake" }
  | { readonly say: "bye" };

export type ToTab =
  /** The stream is open: every event follows from here. Sent again after a `hello`. */
  | { readonly say: "begun" }
  /** The subscription with that number is active from here on. */
  | { readonly say: "wanted"; readonly number: number }
  | { readonly say: "events"; readonly events: readonly AnyEvent[] }
  | { readonly say: "link"; readonly link: Link };

/** Return the session of an event; empty if there is none. */
export function sessionOf(event: AnyEvent): string {
  const { sessionId } = event.data as { readonly sessionId?: unknown };
  return typeof sessionId === "string" ? sessionId : "";
}
