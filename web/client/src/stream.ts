/**
 * One event stream over as many connections as necessary. Events after a cursor arrive once and in order, even if a
 * connection is cut, delayed or silent.
 *
 * A connection that delivered something and is then cut is replaced immediately. If the next one delivers nothing, the
 * waits start at the daemon's `retry:` and double, with jitter. A connection that lasted for a while counts as good
 * even without events: its heartbeats arrived.
 *
 *   E1  Ids arrive in rising order without a gap, each once.
 *   E2  A cut repeats and loses nothing.
 *   E3  The stream ends when its sessions have ended, and throws if the daemon was away for `reconnectMs`.
 */

import { Backoff } from "./clock.js";
import { DaemonUnreachable, SessionNotFound, type TurnwireError, isPassing } from "./errors.js";
import type { AnyEvent } from "./events.js";
import type { Http } from "./http.js";
import { type SseEvent, SseParser } from "./sse.js";

/** The maximum first wait: enough to spread a thousand clients. */
const AT_ONCE_MS = 50;
const RETRY_MS = 1_000;
const MOST_MS = 30_000;
const LIVED_MS = 15_000;

/** The state of a stream: `lost` from the end of one connection to the first bytes of the next. */
export interface Connection {
  readonly state: "open" | "lost";
  /** Set for a stream of one session. */
  readonly sessionId?: string;
  /** The cause, if the connection did not just end. */
  readonly reason?: TurnwireError;
}

/** Zero or more events, and the reader's cursor after them. */
export interface Batch<Place> {
  readonly events: readonly AnyEvent[];
  readonly place: Place;
}

/** The subscription of a reader, with its cursor. */
export interface Cursor<Place> {
  /** The same object as long as it does not change. */
  readonly place: Place;
  readonly sessionId?: string;
  /** No more events follow. */
  readonly isOver: boolean;
  path(): string;
  headers(): Record<string, string>;
  /** Start of a new connection. */
  opened(headers: Headers): void;
  /** Return the new events, and move the cursor after them. */
  take(events: readonly SseEvent[], lastEventId: string): AnyEvent[];
  /** The stream ended without delivering anything: return whether more can follow. */
  isGone(): Promise<boolean>;
}

export interface Watch {
  readonly signal: AbortSignal;
  readonly onConnection?: (connection: Connection) => void;
}

/** Drops connections that may be dead without notice, and ends waits, so that everything reconnects now. */
export class Wakeup {
  readonly #waiting = new Set<() => void>();

  wake(): void {
    for (const each of [...this.#waiting]) each();
  }

  on(act: () => void): () => void {
    this.#waiting.add(act);
    return () => this.#waiting.delete(act);
  }
}

export interface StreamLimits {
  /** How long the daemon may be away before readers get an error. */
  readonly reconnectMs: number;
  readonly wakeup: Wakeup;
}

/** Yield batches as they arrive. Ends quietly when `watch.signal` is aborted. */
export async function* follow<Place>(
  http: Http,
  cursor: Cursor<Place>,
  watch: Watch,
  limits: StreamLimits,
): AsyncGenerator<Batch<Place>, void, undefined> {
  const clock = http.clock;
  const backoff = new Backoff(RETRY_MS, MOST_MS, clock);
  /** Consecutive connections that delivered nothing. */
  let empty = 0;
  let awaySince: number | undefined;
  let isKnown = false;
  let state: Connection["state"] = "lost";

  const tell = (next: Connection["state"], reason?: TurnwireError) => {
    if (next === state) return;
    state = next;
    watch.onConnection?.({
      state,
      ...(cursor.sessionId === undefined ? {} : { sessionId: cursor.sessionId }),
      ...(reason ? { reason } : {}),
    });
  };

  while (!watch.signal.aborted) {
    let failure: TurnwireError | undefined;
    let isWoken = false;
    const connection = new AbortController();
    const stop = () => connection.abort();
    watch.signal.addEventListener("abort", stop);
    const forget = limits.wakeup.on(() => {
      isWoken = true;
      stop();
    });
    const openedAt = clock.now();
    const hasLived = () => clock.now() - openedAt > LIVED_MS;
    empty++;
    try {
      try {
        const parser = new SseParser();
        const opened = (headers: Headers) => cursor.opened(headers);
        for await (const piece of http.stream(cursor.path(), cursor.headers(), connection.signal, opened)) {
          isKnown = true;
          awaySince = undefined;
          tell("open");
          const before = cursor.place;
          const events = cursor.take(parser.feed(piece), parser.lastEventId);
          if (parser.retryMs !== undefined) backoff.firstMs = parser.retryMs;
          // Frames made for this connection only, such as the end of a replay, do not move the cursor.
          if (events.some((each) => each.id !== undefined) || hasLived()) {
            empty = 0;
            backoff.reset();
          }
          if (events.length || cursor.place !== before) yield { events, place: cursor.place };
          if (cursor.isOver) return;
        }
      } catch (error) {
        if (watch.signal.aborted) return;
        if (isKnown && error instanceof SessionNotFound) return;
        if (!isPassing(error)) throw error;
        if (!isWoken) failure = error;
      }
      tell("lost", failure);
      if (!failure && !isWoken && empty && (await isGone(cursor))) return;
      if (isWoken) continue;
      awaySince ??= clock.now();
      let waitMs = empty && !hasLived() ? backoff.next() : AT_ONCE_MS * clock.chance();
      waitMs = Math.max(waitMs, Number(failure?.context["retryAfterMs"] ?? 0));
      if (clock.now() + waitMs - awaySince > limits.reconnectMs) {
        throw (
          failure ??
          new DaemonUnreachable("the daemon's event stream ends at once each time; does a proxy hold it back?")
        );
      }
      // Interrupted by `stop`: the reader leaves, or wants to reconnect now.
      await http.sleep(waitMs, connection.signal);
    } finally {
      forget();
      watch.signal.removeEventListener("abort", stop);
    }
  }
}

async function isGone<Place>(cursor: Cursor<Place>): Promise<boolean> {
  try {
    return await cursor.isGone();
  } catch (error) {
    if (isPassing(error)) return false;
    throw error;
  }
}
