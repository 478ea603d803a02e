/** The inspected session: its log, its turns, its explanation; loaded on demand and updated by the feed. */

import { batch, signal } from "@preact/signals";
import type { AnyEvent, Transcript, TurnStatus } from "@turnwire/client";

import { type Daemon, type Hearing, mayControl } from "../state/daemon.js";
import { PerFrame } from "../state/frames.js";
import { EventLog, PAGE } from "./event_log.js";
import type { Explanation } from "./explanation.js";
import { type Turns, foldTurns, turnsOf } from "./turns.js";

const TURNS_PAGE = 500;
const ITEMS_PAGE = 1000;

export class Inspection {
  readonly log: EventLog;
  readonly turns = signal<Turns>(new Map());
  /** Whether the first part has been loaded. */
  readonly isBegun = signal(false);
  /** Why something is not shown, in words. */
  readonly failure = signal<string | undefined>(undefined);
  readonly explanation = signal<Explanation | undefined>(undefined);
  readonly isExplaining = signal(false);
  /** Whether the caller may request an explanation. */
  readonly mayExplain: boolean;
  readonly #daemon: Daemon;
  readonly #path: string;
  readonly #hearing: Hearing;
  readonly #hearMissed: () => void;
  readonly #frames = new PerFrame(() => this.#take());
  #heard: AnyEvent[] = [];
  #isWatched = false;
  #isAskedAgain = false;
  #isOver = false;

  constructor(daemon: Daemon, sessionId: string) {
    this.#daemon = daemon;
    this.#path = `/session/${encodeURIComponent(sessionId)}`;
    this.mayExplain = mayControl(daemon.caller);
    this.log = new EventLog((after, limit) =>
      daemon.client.log(sessionId, { after, limit }),
    );
    this.#hearing = daemon.feed.session(sessionId, (events) => {
      this.#heard.push(...events);
      this.#frames.due();
    });
    this.#hearMissed = daemon.feed.missed((missed) => {
      if (missed === undefined || missed === sessionId) void this.begin();
    });
  }

  /** Read the log and the turns; again if events were missed. */
  async begin(): Promise<void> {
    // A request before the subscription could miss the events in between.
    await this.#hearing.begun;
    await this.attempt(async () => {
      await Promise.all([this.log.begin(), this.#readTurns()]);
      this.isBegun.value = true;
    });
  }

  /** The inspector has been closed. */
  end(): void {
    this.#isOver = true;
    this.#hearing.stop();
    this.#hearMissed();
  }

  /** Run a request, and show its error. */
  async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.failure.value = undefined;
    } catch (error) {
      this.failure.value = error instanceof Error ? error.message : "the daemon does not answer";
    }
  }

  /** Load all events of a turn. */
  async loadTurn(promptId: string): Promise<void> {
    const turn = this.turns.peek().get(promptId);
    const from = turn?.queuedAt ?? turn?.startedAt;
    if (turn === undefined || from === undefined) return;
    const first = await this.log.find(from);
    // Its end is one of possibly several events with that time.
    const last = turn.endedAt === undefined ? this.log.last : await this.log.find(turn.endedAt + 1);
    await this.log.load(first, last);
  }

  /** Explain now and after each event, until `watchExplanation(false)`. */
  watchExplanation(isWatched: boolean): void {
    this.#isWatched = isWatched && this.mayExplain;
    if (this.#isWatched) void this.explain();
  }

  async explain(): Promise<void> {
    // One request at a time: events during a request lead to one more.
    this.#isAskedAgain = this.isExplaining.peek();
    if (this.#isAskedAgain) return;
    this.isExplaining.value = true;
    await this.attempt(async () => {
      this.explanation.value = await this.#get<Explanation>("/explain");
    });
    this.isExplaining.value = false;
    if (this.#isAskedAgain && this.#isWatched && !this.#isOver) await this.explain();
  }

  /** Return the pages of the whole transcript, newest first. */
  async transcript(): Promise<readonly Transcript[]> {
    const pages: Transcript[] = [];
    let before: number | undefined;
    do {
      const place = before === undefined ? "" : `&before=${before}`;
      const page = await this.#get<Transcript>(`/transcript?acp=agent&limit=${ITEMS_PAGE}${place}`);
      pages.push(page);
      before = page.before;
    } while (before !== undefined);
    return pages;
  }

  /** Load older events, page by page, until all are loaded or `isWanted` returns false. */
  async loadAll(isWanted: () => boolean): Promise<void> {
    for (let to = this.log.last; to >= this.log.first && isWanted() && !this.#isOver; to -= PAGE) {
      await this.log.load(to, to);
    }
  }

  #get<Answer>(path: string): Promise<Answer> {
    return this.#daemon.client.request<Answer>("GET", `${this.#path}${path}`);
  }

  async #readTurns(): Promise<void> {
    const told: TurnStatus[] = [];
    let after = "";
    do {
      const page = await this.#get<{ turns: TurnStatus[]; nextCursor?: string }>(
        `/turns?limit=${TURNS_PAGE}${after && `&after=${encodeURIComponent(after)}`}`,
      );
      told.push(...page.turns);
      after = page.nextCursor ?? "";
    } while (after);
    this.turns.value = turnsOf(told);
  }

  #take(): void {
    if (this.#isOver) return;
    const heard = this.#heard;
    this.#heard = [];
    batch(() => {
      this.log.hear(heard);
      this.turns.value = heard.reduce(foldTurns, this.turns.peek());
    });
    if (this.#isWatched) void this.explain();
  }
}
