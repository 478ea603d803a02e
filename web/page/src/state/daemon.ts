/** The daemon as every part of the page has it: its client, who we are there, and the one stream of all events. */

import { type ReadonlySignal, effect } from "@preact/signals";
import type { AnyEvent, Caller, DaemonCalls } from "@turnwire/client";

/** Whether news arrives; `refused` if the login is over. */
export type Link = "connecting" | "open" | "lost" | "refused";

/** Events of one session or of all, heard from some moment on. */
export interface Hearing {
  /** That moment: what is asked of the daemon from here on is followed without a gap. */
  readonly begun: Promise<void>;
  stop(): void;
}

/**
 * Events of all sessions in the agents' own words (`acp=agent`), each once and in the order of its session. Shared by
 * all tabs: one connection to the daemon, however many there are.
 */
export interface Feed {
  readonly link: ReadonlySignal<Link>;
  /** All events of one session. */
  session(sessionId: string, hear: (events: readonly AnyEvent[]) => void): Hearing;
  /** Events of all sessions, less the chunks of sessions that nobody here hears by `session`. */
  all(hear: (events: readonly AnyEvent[]) => void): Hearing;
  /** Events were missed: of one session, or of all. Whoever folded them reads anew. Gives how to stop. */
  missed(hear: (sessionId: string | undefined) => void): () => void;
}

export interface Daemon {
  readonly client: DaemonCalls;
  readonly caller: Caller;
  readonly feed: Feed;
}

/** Whether the caller may prompt, answer and cancel. */
export function mayControl(caller: Caller): boolean {
  return caller.role !== "observer";
}

/** Whether the caller may share sessions. */
export function mayOwn(caller: Caller): boolean {
  return caller.role === "owner";
}

/** After a pause, when news arrives: to ask again what a daemon that was away did not answer. */
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
