/**
 * All sessions that the caller may see, live: the daemon's list, and for each entry the events that are newer. Badges
 * are derived from the entries alone.
 */

import { type ReadonlySignal, computed, signal } from "@preact/signals";
import type { AnyEvent, SessionEntry } from "@turnwire/client";
import { concernsEntry, foldEntry } from "@turnwire/client/view";

import { type Daemon, whenOpen } from "./daemon.js";
import { sessionOf } from "./feed_words.js";
import { PerFrame } from "./frames.js";

export type Badge =
  | "needs_you"
  | "working"
  | "cancelling"
  | "stalled"
  | "queued"
  | "held"
  | "background"
  | "agent_gone"
  | "idle"
  | "closed";

export interface ListedSession {
  readonly entry: SessionEntry;
  readonly badge: Badge;
}

/** Interval for asking the daemon which running turns seem to be over: it decides that on request. */
const JUDGED_MS = 30_000;
const AGAIN_MS = 1_000;
/** Reasons for a missing agent that are no problem: the next prompt starts one. */
const NOTHING_WRONG = new Set(["agent_recycled", "daemon_restarted", "daemon_stopped", "node_lost"]);

/** Return the badge of a session: the first that applies. */
export function badgeOf(entry: SessionEntry): Badge {
  if (entry.closed) return "closed";
  if (entry.permissionCount > 0) return "needs_you";
  if (entry.state === "cancelling") return "cancelling";
  if (entry.suspectedComplete) return "stalled";
  if (entry.hasActivePrompt || entry.state === "running" || entry.state === "requires_action") return "working";
  if (entry.queuedCount > 0) return entry.queueHeld === undefined ? "queued" : "held";
  if (entry.backgroundCount > 0 || entry.runningChildCount > 0) return "background";
  if (entry.agentGone !== undefined && !NOTHING_WRONG.has(entry.agentGone)) return "agent_gone";
  return "idle";
}

export class SessionList {
  readonly #all = signal<readonly SessionEntry[]>([]);
  readonly #loads = signal(0);
  /** Number of times the whole list was read: at the start, and whenever events were missed. */
  readonly loads: ReadonlySignal<number> = this.#loads;
  readonly isLoaded: ReadonlySignal<boolean> = computed(() => this.#loads.value > 0);
  /** Show the archived sessions instead of the others. */
  readonly archived = signal(false);
  /** Newest activity first. */
  readonly sessions: ReadonlySignal<readonly ListedSession[]> = computed(() =>
    this.#all.value
      .filter((each) => Boolean(each.archived) === this.archived.value)
      .map((entry) => ({ entry, badge: badgeOf(entry) })),
  );
  /** All sessions by id, including those that are not shown. */
  readonly byId: ReadonlySignal<ReadonlyMap<string, SessionEntry>> = computed(
    () => new Map(this.#all.value.map((each) => [each.sessionId, each])),
  );

  readonly #entries = new Map<string, SessionEntry>();
  /** First prompts that were read after the list. */
  readonly #firstPrompts = new Map<string, string>();
  readonly #frame = new PerFrame(() => this.#show());
  /** Events that arrive while the list is requested; undefined once it is known. */
  #waiting: AnyEvent[] | undefined = [];
  #reading = 0;

  constructor(private readonly daemon: Daemon) {
    const hearing = daemon.feed.all((events) => this.#hear(events));
    daemon.feed.missed(() => void this.#read());
    void hearing.begun.then(() => this.#read());
    setInterval(() => void this.#judge(), JUDGED_MS);
    document.addEventListener("visibilitychange", () => void this.#judge());
  }

  #hear(events: readonly AnyEvent[]): void {
    if (this.#waiting) this.#waiting.push(...events);
    else this.#apply(events);
  }

  async #read(): Promise<void> {
    const reading = ++this.#reading;
    this.#waiting ??= [];
    for (;;) {
      try {
        const entries = await this.daemon.client.sessions({ archived: "all" });
        if (reading !== this.#reading) return;
        this.#entries.clear();
        for (const each of entries) this.#entries.set(each.sessionId, each);
        const waiting = this.#waiting ?? [];
        this.#waiting = undefined;
        this.#apply(waiting);
        this.#show();
        this.#loads.value++;
        return;
      } catch {
        // The daemon is away or the login has ended. Try again when events arrive again, after a pause.
        await whenOpen(this.daemon.feed.link, AGAIN_MS);
        if (reading !== this.#reading) return;
      }
    }
  }

  #apply(events: readonly AnyEvent[]): void {
    // Chunks do not change the list, and arrive hundreds of times a second.
    const telling = events.filter(concernsEntry);
    if (telling.length === 0) return;
    for (const each of telling) {
      const sessionId = sessionOf(each);
      const entry = foldEntry(this.#entries.get(sessionId), each);
      if (entry) this.#entries.set(sessionId, entry);
    }
    this.#frame.due();
    for (const each of telling) {
      if (each.type === "state_changed") void this.#readFirstPrompt(sessionOf(each));
    }
  }

  /** Read the first prompt of a session that has no other name. No event has it in this form. */
  async #readFirstPrompt(sessionId: string): Promise<void> {
    const known = this.#entries.get(sessionId);
    if (!known || known.title || known.firstPrompt || this.#firstPrompts.has(sessionId)) return;
    // Without an answer the session stays untitled until the list is read again.
    const { firstPrompt } = await this.daemon.client.snapshot(sessionId).catch((): Partial<SessionEntry> => ({}));
    if (firstPrompt === undefined) return;
    this.#firstPrompts.set(sessionId, firstPrompt);
    this.#frame.due();
  }

  /** Ask whether silent turns seem to be over: the daemon decides that on request, without an event. */
  async #judge(): Promise<void> {
    const isAsked = document.visibilityState === "visible" && this.#all.peek().some((each) => each.hasActivePrompt);
    if (!isAsked) return;
    try {
      for (const each of await this.daemon.client.sessions({ state: "running", archived: "all" })) {
        const known = this.#entries.get(each.sessionId);
        // Ignore an answer about another state of the session.
        if (known?.lastEventId !== each.lastEventId) continue;
        if (known.suspectedComplete !== each.suspectedComplete) this.#entries.set(each.sessionId, each);
      }
      this.#frame.due();
    } catch {
      // The next interval asks again.
    }
  }

  #show(): void {
    const named = [...this.#entries.values()].map((each) => {
      const firstPrompt = each.firstPrompt ?? this.#firstPrompts.get(each.sessionId);
      return firstPrompt === undefined ? each : { ...each, firstPrompt };
    });
    this.#all.value = named.sort((one, other) => (one.updatedAt < other.updatedAt ? 1 : -1));
  }
}

export function openSessionList(daemon: Daemon): SessionList {
  return new SessionList(daemon);
}
