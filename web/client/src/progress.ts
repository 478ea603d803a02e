/**
 * The progress of one turn at the client, and the calls that wait for it. *Heard*: its events have arrived. *Passed*:
 * the walk over the log has reached its end. *Drained*: in addition, every handler call for one of its events has
 * finished.
 *
 * A handler call may wait for a turn itself (`call.wait`), so turns and unfinished calls form a graph. A call that
 * would close a cycle waits only for the end of the turn, so two handlers never wait for each other.
 */

import { type TurnwireError, TurnError } from "./errors.js";
import { defined } from "./http.js";
import type { AnyEvent, EventOf, UpdateEvent } from "./events.js";
import type { TurnStatus } from "./rest.js";
import { Said } from "./said.js";
import { positionLost } from "./source.js";
import type { Turn } from "./turn.js";

/** How a turn ended. */
export interface TurnResult {
  readonly promptId: string;
  /** `end_turn`, `max_tokens`, `max_turn_requests`, `refusal`, `cancelled`, or an agent-specific reason. */
  readonly stopReason: string;
  /** The agent's last message in the turn. */
  readonly text: string;
  readonly usage?: Readonly<Record<string, unknown>>;
  /** The fact that ended it. */
  readonly ending?: EventOf<"turn_complete">["data"]["ending"];
  readonly cancelledBy?: string;
  readonly settledBy?: string;
  /** The agent's own stop reason of a cancelled turn, if different. */
  readonly agentStopReason?: string;
  /** Errors thrown by handlers of the turn, in order. */
  readonly handlerErrors: readonly unknown[];
}

/** The end: a terminal event, or the daemon's record of a turn whose events it no longer stores. */
type Terminal = EventOf<"turn_complete"> | EventOf<"turn_error">;

/** A promise that is resolved from outside. It may be left without a listener. */
export class Deferred<Value> {
  resolve!: (value: Value) => void;
  reject!: (reason: unknown) => void;
  readonly promise = new Promise<Value>((resolve, reject) => {
    this.resolve = resolve;
    this.reject = reject;
  });

  constructor() {
    this.promise.catch(() => {});
  }
}

export class Progress {
  /** The agent's updates, for loops. */
  readonly updates: UpdateEvent[] = [];
  /** Its end has arrived. */
  terminal: Terminal | undefined;
  /** Why its events, or its end, do not arrive here. */
  failure: TurnwireError | undefined;
  /** Errors thrown by handlers. */
  readonly handlerErrors: unknown[] = [];
  /** Handler calls for it that the walk did not wait for. */
  readonly calls = new Set<HandlerCall>();

  readonly #said = new Said();
  #status: TurnStatus | undefined;
  #isPassed = false;
  readonly #passed = new Deferred<TurnResult>();
  readonly #drained = new Deferred<TurnResult>();
  #changed = new Deferred<void>();

  constructor(readonly promptId: string) {}

  /** Handle an event of the turn. */
  hear(event: AnyEvent): void {
    if (event.type === "session_update") {
      if (event._meta?.event === "user_message") return;
      this.updates.push(event);
      this.#said.take(event);
    } else if (event.type === "turn_complete" || event.type === "turn_error") {
      this.terminal = event;
    } else return;
    this.#wake();
  }

  /** The walk has reached its end. */
  pass(): void {
    this.#isPassed = true;
    this.#settle();
  }

  /**
   * Some of its events are gone. If it has ended, the daemon has its result; if the daemon does not know the turn, its
   * result is lost. Return whether its end is still expected.
   */
  lose(status: TurnStatus | undefined): boolean {
    this.failure = positionLost();
    if (!status) this.fail(this.failure);
    else if (status.endedAt !== undefined) {
      this.#status = status;
      this.pass();
    }
    this.#wake();
    return status !== undefined && status.endedAt === undefined;
  }

  /** Its end will not arrive. */
  fail(error: TurnwireError): void {
    if (this.#isPassed && !this.calls.size) return;
    this.failure = error;
    this.#passed.reject(error);
    this.#drained.reject(error);
    this.#wake();
  }

  /** Its result once the walk has reached its end. */
  get passed(): Promise<TurnResult> {
    return this.#passed.promise;
  }

  /** Its result once every handler call for it has finished. */
  get drained(): Promise<TurnResult> {
    return this.#drained.promise;
  }

  /** Wait until there is something new for loops. */
  get changed(): Promise<void> {
    return this.#changed.promise;
  }

  finish(call: HandlerCall): void {
    this.calls.delete(call);
    if (this.#isPassed) this.#settle();
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = new Deferred();
  }

  #settle(): void {
    for (const each of this.calls.size ? [this.#passed] : [this.#passed, this.#drained]) {
      try {
        each.resolve(this.#result());
      } catch (error) {
        each.reject(error);
      }
    }
  }

  #result(): TurnResult {
    const { promptId, handlerErrors } = this;
    const end = this.terminal;
    const error = end?.type === "turn_error" ? end.data : this.#status?.error;
    if (error) {
      const { code, message, ...context } = error;
      throw new TurnError(promptId, code, message, context, handlerErrors);
    }
    if (end?.type === "turn_complete") {
      const { stopReason, usage, ending, cancelledBy, settledBy, agentStopReason } = end.data;
      const known = { usage, ending, cancelledBy, settledBy, agentStopReason };
      return { promptId, stopReason, text: this.#said.text, ...defined(known), handlerErrors };
    }
    const { stopReason = "", resultText: text = "", usage, cancelledBy, agentStopReason } = this.#status ?? {};
    return { promptId, stopReason, text, ...defined({ usage, cancelledBy, agentStopReason }), handlerErrors };
  }
}


/** A call of a handler, as passed to the handler. */
export class HandlerCall {
  /** @internal Turns that it waits for to be drained. */
  readonly awaits = new Set<Progress>();
  #isOver = false;
  #isReleased = false;
  readonly #released = new Deferred<void>();

  /** @internal */
  constructor(private readonly progress: Progress | undefined) {}

  /**
   * Wait for a turn of the same session inside a handler. The turn's end follows this call in the log, so later calls
   * run meanwhile; the turn of this call is drained only when it has returned.
   */
  async wait(turn: Turn): Promise<TurnResult> {
    if (this.#isOver) return turn;
    this.release();
    const progress = await turn.progress;
    if (leadsTo(progress, this)) return progress.passed;
    this.awaits.add(progress);
    try {
      return await progress.drained;
    } finally {
      this.awaits.delete(progress);
    }
  }

  /** @internal Let the walk over the log continue without it. */
  release(): void {
    if (this.#isReleased || this.#isOver) return;
    this.#isReleased = true;
    this.progress?.calls.add(this);
    this.#released.resolve();
  }

  /** @internal */
  get released(): Promise<void> {
    return this.#released.promise;
  }

  /** @internal */
  finish(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    if (this.#isReleased) this.progress?.finish(this);
  }
}

/** Whether a turn can be drained only after this call has finished. */
function leadsTo(progress: Progress, call: HandlerCall): boolean {
  const seen = new Set<Progress>([progress]);
  for (const turn of seen) {
    if (turn.calls.has(call)) return true;
    for (const unfinished of turn.calls) for (const each of unfinished.awaits) seen.add(each);
  }
  return false;
}
