/**
 * Every session that the caller may see, live: the daemon's list, and behind each entry the events that are newer than
 * it. Badges are derived from the entries alone.
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

/** How often the daemon is asked which running turns seem to be over: it judges that when it is asked. */
const JUDGED_MS = 30_000;
const AGAIN_MS = 1_000;
/** Reasons after which nothing is wrong: the next prompt brings an agent. */
const NOTHING_WRONG = new Set(["agent_recycled", "daemon_restarted", "daemon_stopped", "node_lost"]);

/** What a session is shown as: the first of these that is true. */
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
  /** How often the whole list was read: at the beginning, and whenever events were missed. */
  readonly loads: ReadonlySignal<number> = this.#loads;
  readonly isLoaded: ReadonlySignal<boolean> = computed(() => this.#loads.value > 0);
  /** Show those that were put away, instead of the others. */
  readonly archived = signal(false);
  /** Newest activity first. */
  readonly sessions: ReadonlySignal<readonly ListedSession[]> = computed(() =>
    this.#all.value
      .filter((each) => Boolean(each.archived) === this.archived.value)
      .map((entry) => ({ entry, badge: badgeOf(entry) })),
  );
  /** Every session by its id, whichever are shown. */
  readonly byId: ReadonlySignal<ReadonlyMap<string, SessionEntry>> = computed(
    () => new Map(this.#all.value.map((each) => [each.sessionId, each])),
  );

  readonly #entries = new Map<string, SessionEntry>();
  readonly #frame = new PerFrame(() => this.#show());
  /** Events that came while a list is on its way; none while it is known. */
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
        // The daemon is away or the login is over. Asked again when events come again, but not in a hurry.
        await whenOpen(this.daemon.feed.link, AGAIN_MS);
        if (reading !== this.#reading) return;
      }
    }
  }

  #apply(events: readonly AnyEvent[]): void {
    // What is said in a turn changes nothing of the list, and comes hundreds of times a second.
    const telling = events.filter(concernsEntry);
    if (telling.length === 0) return;
    for (const each of telling) {
      const sessionId = sessionOf(each);
      const entry = foldEntry(this.#entries.get(sessionId), each);
      if (entry) this.#entries.set(sessionId, entry);
    }
    this.#frame.due();
  }

  /** Whether a silent turn is over is the daemon's judgement, and no event tells it. It ends nothing. */
  async #judge(): Promise<void> {
    const isAsked = document.visibilityState === "visible" && this.#all.peek().some((each) => each.hasActivePrompt);
    if (!isAsked) return;
    try {
      for (const each of await this.daemon.client.sessions({ state: "running", archived: "all" })) {
        const known = this.#entries.get(each.sessionId);
        // What was judged of another moment says nothing of this one.
        if (known?.lastEventId !== each.lastEventId) continue;
        if (known.suspectedComplete !== each.suspectedComplete) this.#entries.set(each.sessionId, each);
      }
      this.#frame.due();
    } catch {
      // It is asked again soon.
    }
  }

  #show(): void {
    this.#all.value = [...this.#entries.values()].sort((one, other) => (one.updatedAt < other.updatedAt ? 1 : -1));
  }
}

export function openSessionList(daemon: Daemon): SessionList {
  return new SessionList(daemon);
}
