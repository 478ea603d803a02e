/** The daemon as the parts of the page use it: its client, the caller, and the shared stream of all events. */

import { type ReadonlySignal, effect } from "@preact/signals";
import type { AnyEvent, Caller, DaemonCalls } from "@turnwire/client";

/** State of the event stream; `refused` if the login has ended. */
export type Link = "connecting" | "open" | "lost" | "refused";

/** A subscription to the events of one session or of all. */
export interface Hearing {
  /** Resolves when the subscription is active: later responses of the daemon are followed without a gap. */
  readonly begun: Promise<void>;
  stop(): void;
}

/**
 * The events of all sessions in the agents' own dialect (`acp=agent`), each once and in the order of its session. All
 * tabs share one connection to the daemon.
 */
export interface Feed {
  readonly link: ReadonlySignal<Link>;
  /** All events of one session. */
  session(sessionId: string, hear: (events: readonly AnyEvent[]) => void): Hearing;
  /** Events of all sessions, without the chunks of sessions that have no subscriber through `session`. */
  all(hear: (events: readonly AnyEvent[]) => void): Hearing;
  /** Called when events of one session, or of all, were missed and must be read again. Returns how to unsubscribe. */
  missed(hear: (sessionId: string | undefined) => void): () => void;
}

export interface Daemon {
  readonly client: DaemonCalls;
  readonly caller: Caller;
  readonly feed: Feed;
}

/** The name of every login by a login link. Such logins belong to an owner. */
const LOGIN = "page";

/** Return the name to show for an author. */
export function nameOf(author: string, caller: Caller): string {
  if (author === caller.name) return "You";
  return author === LOGIN ? "Owner" : author;
}

/** Return the caller's name and role. */
export function whoIs({ name, role }: Caller): string {
  return name === LOGIN || name === role ? role : `${name} (${role})`;
}

/** Whether the caller may prompt, answer and cancel. */
export function mayControl(caller: Caller): boolean {
  return caller.role !== "observer";
}

/** Whether the caller may share sessions. */
export function mayOwn(caller: Caller): boolean {
  return caller.role === "owner";
}

/** Wait for a pause and then for a connection, to repeat a request that the daemon did not answer. */
export async function whenOpen(link: ReadonlySignal<Link>, pauseMs: number): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, pauseMs));
  await new Promise<void>((resolve) => {
    const stop = effect(() => {
      if (link.value !== "open") return;
      resolve();
      queueMicrotask(() => stop());
    });
  });
}
