/**
 * One session for its client: events are read as they arrive, and walked in the order of the log, one handler call
 * after the other.
 *
 * Reading runs ahead of the walk, so that a loop over a turn never waits for a handler. If a handler returns a promise,
 * the walk waits for it. So handlers are called in the order of the log, and the walk reaches a turn's end only after
 * every earlier call has finished. This is what "await means drained" rests on, apart from calls that wait for a turn
 * themselves (`progress.ts`) and permission requests, whose handlers run in parallel with the walk.
 *
 *   D1  Handlers are called in log order, each after the previous one finished or was released.
 *   D2  A turn is passed after every call for an event before its end has finished or was released.
 *   D3  A turn is drained after every call for one of its own events has finished.
 *   D4  The handler of a permission request runs in parallel with the walk, starts in log order, and is abandoned when
 *       the request is closed.
 */

import { PromptNotFound, RemoteProtocolError, SessionClosed, TurnwireError } from "./errors.js";
import type { AnyEvent, EventOf } from "./events.js";
import { type Answer, PermissionRequest } from "./permission.js";
import { Deferred, HandlerCall, Progress } from "./progress.js";
import type { PromptReceipt, TurnStatus } from "./rest.js";
import type { EventSourceOf, Position } from "./source.js";
import type { Connection } from "./stream.js";

/** A handler of events. If it returns a promise, it has finished when the promise settles. */
export type Handler<Event = AnyEvent> = (event: Event, call: HandlerCall) => unknown;
/**
 * A handler of permission requests. If it returns nothing, the next handler is called; without an answer the request
 * stays open.
 */
export type PermissionHandler = (
  request: PermissionRequest,
  /** Aborted when the request is closed: answered elsewhere, withdrawn, or its turn cancelled. */
  signal: AbortSignal,
) => Answer | null | undefined | void | Promise<Answer | null | undefined | void>;

/** Maximum number of events read ahead of the handlers, unless a loop needs more. */
const AHEAD = 10_000;
const EVERY = "*";

/** What the walk needs of its session. */
export interface WalkPort {
  readonly sessionId: string;
  readonly source: EventSourceOf;
  status(promptId: string): Promise<TurnStatus>;
  answer(request: PermissionRequest, answer: Answer): Promise<unknown>;
  onConnection(connection: Connection): void;
  onHandlerError(error: unknown): void;
}

/** A prompt that is on its way. */
interface Expected {
  progress?: Progress;
}

export class Walk {
  /** Handlers by the type of their event. */
  readonly handlers = new Map<string, Handler<never>[]>();
  permissionHandlers: readonly PermissionHandler[] = [];
  /** Why no more events arrive. */
  failure: TurnwireError | undefined;

  #position: Position;
  /** The event at which the walk stands. */
  #walked: number;
  readonly #opened = new Map<string, Progress>();
  /** Prompts being submitted, by key: the events of a turn may arrive before its 202. */
  readonly #expected = new Map<string, Expected>();
  /** Callers waiting for the next prompt with a request id, by any client. */
  readonly #awaited = new Map<string | number, Deferred<Progress>>();
  #queue: AnyEvent[] = [];
  #isWalking = false;
  #loops = 0;
  #room: (() => void) | undefined;
  /** Permission requests that are known to be closed, before the walk is there. */
  readonly #closed = new Set<string>();
  readonly #asking = new Map<string, AbortController>();
  readonly #end = new AbortController();
  #isStarted = false;
  /** Why no more is read. */
  #over: TurnwireError | undefined;

  constructor(
    private readonly port: WalkPort,
    after: Position,
  ) {
    this.#position = after;
    this.#walked = after.id;
  }

  /** How far events have been read. */
  get position(): Position {
    return this.#position;
  }

  /** Start reading, if not started: handlers added before the program next yields receive all events. */
  start(): void {
    if (this.#isStarted || this.failure) return;
    this.#isStarted = true;
    void this.#read();
  }

  /** Fail every turn whose end was not reached. */
  fail(error: TurnwireError): void {
    if (this.failure) return;
    this.failure = error;
    this.#end.abort();
    for (const each of this.#opened.values()) each.fail(error);
    this.#opened.clear();
    for (const each of this.#asking.values()) each.abort();
    for (const each of this.#awaited.values()) each.reject(error);
    this.#awaited.clear();
    this.#room?.();
  }

  // -- turns -------------------------------------------------------------------------------------------------

  /** Send a prompt by `send`, and find the progress of its turn. */
  async submit(key: string, send: () => Promise<PromptReceipt>): Promise<[PromptReceipt, Promise<Progress>]> {
    if (this.failure) throw this.failure;
    this.start();
    const expected: Expected = {};
    this.#expected.set(key, expected);
    try {
      const receipt = await send();
      return [receipt, Promise.resolve(expected.progress ?? this.#begun(receipt) ?? this.#adopt(receipt))];
    } finally {
      if (this.#expected.get(key) === expected) this.#expected.delete(key);
    }
  }

  /** Wait for the next turn prompted with exactly this request id, whether by this program or another client. */
  named(requestId: string | number): Promise<Progress> {
    if (this.failure) return Promise.reject(this.failure);
    this.start();
    const awaited = this.#awaited.get(requestId) ?? new Deferred<Progress>();
    this.#awaited.set(requestId, awaited);
    return awaited.promise;
  }

  /** A loop over a turn: meanwhile reading does not wait for handlers. */
  looping(): () => void {
    this.#loops++;
    this.#room?.();
    return () => this.#loops--;
  }

  /** The turn as far as it is known here; none if events of it had been read before it was known. */
  #begun({ promptId, lastEventId }: PromptReceipt): Progress | undefined {
    const known = this.#opened.get(promptId);
    return known ?? (lastEventId >= this.#position.id ? this.#open(new Progress(promptId)) : undefined);
  }

  #open(progress: Progress): Progress {
    const known = this.#opened.get(progress.promptId);
    if (known) return known;
    if (this.failure) progress.fail(this.failure);
    else this.#opened.set(progress.promptId, progress);
    return progress;
  }

  /** A turn that was accepted before: read its events again, up to the current position. */
  async #adopt({ promptId, lastEventId, eventEpoch }: PromptReceipt): Promise<Progress> {
    const progress = new Progress(promptId);
    const abort = new AbortController();
    const watch = { signal: abort.signal };
    try {
      reading: for await (const { events, place } of this.port.source.session(
        this.port.sessionId,
        { id: lastEventId, epoch: eventEpoch },
        watch,
      )) {
        for (const event of events) {
          if (event.type === "state_resync_required") {
            if (!progress.lose(await this.#status(promptId))) return progress;
            break reading;
          }
          if ((event.id ?? event._meta?.partOf ?? 0) > this.#position.id) break reading;
          if (event.promptId === promptId) progress.hear(event);
          if (progress.terminal) break reading;
        }
        if (place.id >= this.#position.id) break;
      }
    } finally {
      abort.abort();
    }
    // No await from here on, so that no event is missed between the repeated events and the new ones.
    const ended = progress.terminal?.id;
    if (ended !== undefined && ended <= this.#walked) {
      progress.pass();
      return progress;
    }
    return this.#open(progress);
  }

  async #status(promptId: string): Promise<TurnStatus | undefined> {
    try {
      return await this.port.status(promptId);
    } catch (error) {
      if (error instanceof PromptNotFound) return undefined;
      throw error;
    }
  }

  // -- reading -----------------------------------------------------------------------------------------------

  async #read(): Promise<void> {
    const watch = { signal: this.#end.signal, onConnection: (each: Connection) => this.port.onConnection(each) };
    try {
      for await (const { events, place } of this.port.source.session(this.port.sessionId, this.#position, watch)) {
        this.#position = place;
        for (const event of events) this.#hear(event);
        if (!this.#isWalking) void this.#walk();
        while (this.#queue.length > AHEAD && !this.#loops && !this.failure) {
          await new Promise<void>((resolve) => (this.#room = resolve));
        }
      }
      this.#whenWalked(new SessionClosed("session_closed", "the session is closed, or gone"));
    } catch (error) {
      this.#whenWalked(asTold(error));
    }
  }

  /** No more events arrive. The received ones are walked first. */
  #whenWalked(error: TurnwireError): void {
    this.#over = error;
    if (!this.#isWalking) this.fail(error);
  }

  #hear(event: AnyEvent): void {
    this.#queue.push(event);
    if (event.type === "prompt_accepted") {
      const { key = "", promptId, promptRequestId } = event.data;
      const expected = this.#expected.get(key);
      const awaited = promptRequestId === undefined ? undefined : this.#awaited.get(promptRequestId);
      if (expected || awaited) {
        const progress = this.#open(new Progress(promptId));
        if (expected) expected.progress = progress;
        awaited?.resolve(progress);
        if (promptRequestId !== undefined) this.#awaited.delete(promptRequestId);
      }
    } else if (event.type === "permission_resolved") {
      this.#closed.add(event.data.requestId);
    }
    if (event.promptId !== undefined) this.#opened.get(event.promptId)?.hear(event);
  }

  // -- the walk ----------------------------------------------------------------------------------------------

  async #walk(): Promise<void> {
    this.#isWalking = true;
    while (this.#queue.length && !this.failure) {
      const events = this.#queue;
      this.#queue = [];
      for (const event of events) {
        if (this.failure) break;
        const progress = event.promptId === undefined ? undefined : this.#opened.get(event.promptId);
        for (const handler of this.#handlersOf(event.type)) {
          const waiting = this.#call(handler, event, progress);
          if (waiting) await waiting;
        }
        const waiting = this.#step(event, progress);
        if (waiting) await waiting;
        this.#walked = event.id ?? this.#walked;
      }
      this.#room?.();
    }
    this.#isWalking = false;
    if (this.#over) this.fail(this.#over);
  }

  #handlersOf(type: string): readonly Handler<never>[] {
    const own = this.handlers.get(type);
    const every = this.handlers.get(EVERY);
    return own && every ? [...own, ...every] : (own ?? every ?? []);
  }

  /** Call one handler; gives what to wait for, if anything. */
  #call(handler: Handler<never>, event: AnyEvent, progress: Progress | undefined): Promise<void> | undefined {
    const call = new HandlerCall(progress);
    let given: unknown;
    try {
      given = handler(event as never, call);
    } catch (error) {
      this.#note(error, progress);
    }
    if (!isThenable(given)) {
      call.finish();
      return undefined;
    }
    const finished = Promise.resolve(given).then(
      () => call.finish(),
      (error: unknown) => {
        this.#note(error, progress);
        call.finish();
      },
    );
    return Promise.race([finished, call.released]);
  }

  #note(error: unknown, progress: Progress | undefined): void {
    progress?.handlerErrors.push(error);
    this.port.onHandlerError(error);
  }

  /** What an event means to the walk itself. */
  #step(event: AnyEvent, progress: Progress | undefined): Promise<void> | undefined {
    switch (event.type) {
      case "turn_complete":
      case "turn_error":
        progress?.pass();
        this.#opened.delete(event.data.promptId);
        return undefined;
      case "permission_request":
        void this.#ask(event, progress);
        return undefined;
      case "permission_resolved":
        this.#closed.delete(event.data.requestId);
        this.#asking.get(event.data.requestId)?.abort();
        return undefined;
      case "state_resync_required":
        return this.#resync();
      default:
        return undefined;
    }
  }

  /** Events are gone, and ends of open turns may be among them: the daemon knows. */
  async #resync(): Promise<void> {
    for (const [promptId, progress] of [...this.#opened]) {
      try {
        if (progress.lose(await this.#status(promptId))) continue;
      } catch (error) {
        progress.fail(asTold(error));
      }
      this.#opened.delete(promptId);
    }
  }

  // -- permission requests -----------------------------------------------------------------------------------

  async #ask(event: EventOf<"permission_request">, progress: Progress | undefined): Promise<void> {
    const { requestId } = event.data;
    // Closed before its turn to be asked came, it must not be asked.
    if (!this.permissionHandlers.length || this.#closed.has(requestId)) return;
    const call = new HandlerCall(progress);
    call.release();
    const asking = new AbortController();
    this.#asking.set(requestId, asking);
    const closed = new Promise<undefined>((resolve) => {
      asking.signal.addEventListener("abort", () => resolve(undefined));
    });
    const request = new PermissionRequest(event.data.sessionId, event.data);
    try {
      const answer = await Promise.race([this.#firstAnswer(request, asking.signal), closed]);
      if (answer != null && !asking.signal.aborted) await this.port.answer(request, answer);
    } catch (error) {
      this.#note(error, progress);
    } finally {
      this.#asking.delete(requestId);
      call.finish();
    }
  }

  /** Call one handler after the other until one answers. */
  async #firstAnswer(request: PermissionRequest, signal: AbortSignal): Promise<Answer | undefined> {
    for (const handler of this.permissionHandlers) {
      if (signal.aborted) return undefined;
      const answer = await handler(request, signal);
      if (answer != null) return answer as Answer;
    }
    return undefined;
  }
}

/** Report an internal error, or one of another source of events, to the waiting calls. */
function asTold(error: unknown): TurnwireError {
  return error instanceof TurnwireError
    ? error
    : new RemoteProtocolError(`events cannot be read: ${String(error)}`);
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as { then?: unknown } | null | undefined)?.then === "function";
}
