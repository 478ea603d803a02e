/** One session under inspection: its log, its turns, why it waits; loaded when asked for, kept true by the feed. */

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
  /** Whether the first part has come. */
  readonly isBegun = signal(false);
  /** Why something is not shown, in words. */
  readonly failure = signal<string | undefined>(undefined);
  readonly explanation = signal<Explanation | undefined>(undefined);
  readonly isExplaining = signal(false);
  /** Whether the caller may ask for an explanation. */
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

  /** Read what there is. Again if events were missed. */
  async begin(): Promise<void> {
    // What is asked before it is heard could miss what happens in between.
    await this.#hearing.begun;
    await this.attempt(async () => {
      await Promise.all([this.log.begin(), this.#readTurns()]);
      this.isBegun.value = true;
    });
  }

  /** Nothing of it is shown any more. */
  end(): void {
    this.#isOver = true;
    this.#hearing.stop();
    this.#hearMissed();
  }

  /** Do something that the daemon may refuse, and say so if it does. */
  async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.failure.value = undefined;
    } catch (error) {
      this.failure.value = error instanceof Error ? error.message : "the daemon does not answer";
    }
  }

  /** Have all events of a turn here. */
  async loadTurn(promptId: string): Promise<void> {
    const turn = this.turns.peek().get(promptId);
    const from = turn?.queuedAt ?? turn?.startedAt;
    if (turn === undefined || from === undefined) return;
    const first = await this.log.find(from);
    // Its end is told by one event, which may be one of several of that time.
    const last = turn.endedAt === undefined ? this.log.last : await this.log.find(turn.endedAt + 1);
    await this.log.load(first, last);
  }

  /** Explain now, and whenever something happens, until `watchExplanation(false)`. */
  watchExplanation(isWatched: boolean): void {
    this.#isWatched = isWatched && this.mayExplain;
    if (this.#isWatched) void this.explain();
  }

  async explain(): Promise<void> {
    // One at a time: what happened meanwhile is asked for once more.
    this.#isAskedAgain = this.isExplaining.peek();
    if (this.#isAskedAgain) return;
    this.isExplaining.value = true;
    await this.attempt(async () => {
      this.explanation.value = await this.#get<Explanation>("/explain");
    });
    this.isExplaining.value = false;
    if (this.#isAskedAgain && this.#isWatched && !this.#isOver) await this.explain();
  }

  /** The pages of the whole transcript, from the newest to the oldest. */
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

  /** Load older events, page by page, until all are here or `isWanted` says no. */
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
