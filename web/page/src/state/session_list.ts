/** The sessions of the daemon, live. */

import { type ReadonlySignal, type Signal, computed, effect, signal } from "@preact/signals";
import type { SessionEntry } from "@turnwire/client";

import type { Daemon } from "./daemon.js";

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

export class SessionList {
  readonly #sessions = signal<readonly ListedSession[]>([]);
  readonly sessions: ReadonlySignal<readonly ListedSession[]> = this.#sessions;
  readonly #isLoaded = signal(false);
  readonly isLoaded: ReadonlySignal<boolean> = this.#isLoaded;
  readonly archived: Signal<boolean> = signal(false);
  readonly byId: ReadonlySignal<ReadonlyMap<string, SessionEntry>> = computed(
    () => new Map(this.#sessions.value.map((each) => [each.entry.sessionId, each.entry])),
  );
  #isReading = false;
  #isStale = false;

  constructor(private readonly daemon: Daemon) {
    void daemon.feed.all(() => this.#read()).begun.then(() => this.#read());
    daemon.feed.missed(() => this.#read());
    effect(() => {
      void this.archived.value;
      this.#read();
    });
  }

  async #read(): Promise<void> {
    this.#isStale = true;
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      while (this.#isStale) {
        this.#isStale = false;
        const found = await this.daemon.client.sessions(this.archived.peek() ? { archived: "true" } : {});
        found.sort((a, b) => Date.parse(b.updatedAt) - Date.parse(a.updatedAt));
        this.#sessions.value = found.map((entry) => ({ entry, badge: badgeOf(entry) }));
        this.#isLoaded.value = true;
      }
    } catch {
      // The next event asks again.
    } finally {
      this.#isReading = false;
    }
  }
}

export function openSessionList(daemon: Daemon): SessionList {
  return new SessionList(daemon);
}

export function badgeOf(entry: SessionEntry): Badge {
  if (entry.closed) return "closed";
  if (entry.permissionCount) return "needs_you";
  if (entry.state === "cancelling") return "cancelling";
  if (entry.suspectedComplete) return "stalled";
  if (entry.state !== "idle") return "working";
  if (entry.queueHeld !== undefined) return "held";
  if (entry.queuedCount) return "queued";
  if (entry.backgroundCount || entry.runningChildCount) return "background";
  if (entry.agentGone && !["agent_recycled", "daemon_restarted"].includes(entry.agentGone)) return "agent_gone";
  return "idle";
}
