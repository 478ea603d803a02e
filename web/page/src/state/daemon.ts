/** The daemon as every part of the page has it: its client, who we are there, and the one stream of all events. */

import { type ReadonlySignal } from "@preact/signals";
import type { AnyEvent, Client } from "@turnwire/client";

/** What a role may do; the daemon refuses the rest, so the page does not offer it. */
export type Role = "observer" | "controller" | "owner";

export interface Caller {
  readonly name: string;
  readonly role: Role;
  /** The one session that it may see. */
  readonly sessionId?: string;
}

/** Whether news arrives. `lost` is shown only while the page is looked at and nothing has come for a while. */
export type Link = "connecting" | "open" | "lost";

/**
 * Events of all sessions as the agent said them (`acp=agent`), each once and in order. Shared by all tabs: one
 * connection to the daemon however many there are.
 */
export interface Feed {
  readonly link: ReadonlySignal<Link>;
  /** It has begun: what is asked of the daemon from now on is followed without a gap. */
  readonly begun: Promise<void>;
  /** The events of one session from now on. Gives how to stop. */
  session(sessionId: string, hear: (events: readonly AnyEvent[]) => void): () => void;
  /** Those of all sessions, less what an agent said in sessions that nobody here hears by `session`. */
  all(hear: (events: readonly AnyEvent[]) => void): () => void;
  /** Events were missed: of one session, or of all of them. Whoever folded them reads anew. */
  missed(hear: (sessionId: string | undefined) => void): () => void;
}

export interface Daemon {
  readonly client: Client;
  readonly caller: Caller;
  readonly feed: Feed;
}

/** Whether the caller may prompt, answer and cancel. */
export function mayControl(caller: Caller): boolean {
  return caller.role !== "observer";
}

/** Whether the caller may share and manage credentials. */
export function mayOwn(caller: Caller): boolean {
  return caller.role === "owner";
}
