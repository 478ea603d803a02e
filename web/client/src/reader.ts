/**
 * Only the events of many sessions, without the rest of a client: for a small worker that reads one stream for several
 * pages.
 */

import { type Clock, systemClock } from "./clock.js";
import { Http } from "./http.js";
import { DirectEvents, type Shape } from "./source.js";
import { type Batch, type Connection, Wakeup } from "./stream.js";

export { Unauthenticated } from "./errors.js";

export interface ReaderOptions {
  /** Without one, a browser sends the cookie of its login, which needs `pageKey`. */
  readonly token?: string;
  /** `Turnwire-Page-Key` of the response that set the cookie. */
  readonly pageKey?: string | undefined;
  /** The dialect of agent updates; `"1"` by default. */
  readonly acp?: Shape;
  /** How long the daemon may be away before reading throws `DaemonUnreachable`; unlimited by default. */
  readonly reconnectMs?: number;
  /** Called when the stream is connected or lost. */
  readonly onConnection?: (connection: Connection) => void;
  readonly clock?: Clock;
}

export class EventReader {
  readonly #http: Http;
  readonly #source: DirectEvents;
  readonly #wakeup = new Wakeup();
  readonly #closed = new AbortController();
  readonly #onConnection: (connection: Connection) => void;

  constructor(url: string | URL, options: ReaderOptions = {}) {
    this.#http = new Http(url, {
      token: options.token,
      pageKey: options.pageKey,
      fetch: (input, init) => fetch(input, init),
      clock: options.clock ?? systemClock,
      requestRetryMs: 10_000,
      silenceMs: 45_000,
    });
    const limits = { reconnectMs: options.reconnectMs ?? Infinity, wakeup: this.#wakeup };
    this.#source = new DirectEvents(this.#http, options.acp ?? "1", limits);
    this.#onConnection = (each) => options.onConnection?.(each);
  }

  /** Like `Client.events` for all sessions: after `after`, or from now on. Throws `Unauthenticated`. */
  events({ after }: { readonly after?: string } = {}): AsyncIterable<Batch<string>> {
    return this.#source.many([], after, { signal: this.#closed.signal, onConnection: this.#onConnection });
  }

  /** Reopen the stream now. */
  reconnect(): void {
    this.#wakeup.wake();
  }

  close(): void {
    this.#closed.abort();
    this.#http.close();
  }
}
