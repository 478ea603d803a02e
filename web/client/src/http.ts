/**
 * HTTP access to a daemon: its URL, the credential, retries, timeouts. A request that may have been executed is
 * repeated only if it is idempotent. The credential is sent to this URL only, never to a redirect.
 */

import { type Clock, Backoff } from "./clock.js";
import { ClientClosed, DaemonUnreachable, RemoteProtocolError, isPassing, refusalOf } from "./errors.js";

/** A daemon responds immediately, except for a new session, which waits for its agent. */
const ANSWER_MS = 60_000;
/** A stream starts immediately, so one that does not is delayed by a proxy. */
const FIRST_BYTE_MS = 10_000;
const RETRY_FIRST_MS = 100;
const RETRY_MOST_MS = 2_000;
/** Statuses after which the request was certainly not executed. */
const NOTHING_DONE = new Set([429, 503]);

export interface HttpOptions {
  readonly token: string | undefined;
  /** The half of a browser's login that is not in its cookie. */
  readonly pageKey: string | undefined;
  readonly fetch: typeof fetch;
  readonly clock: Clock;
  /** How long a request is retried. */
  readonly requestRetryMs: number;
  /** How long a stream may be silent: three heartbeats of the daemon. */
  readonly silenceMs: number;
}

export interface Asked {
  readonly headers?: Readonly<Record<string, string>>;
  /** The request is idempotent. */
  readonly repeatable?: boolean;
  /** Do not retry. */
  readonly impatient?: boolean;
}

export class Http {
  readonly clock: Clock;
  readonly #base: string;
  readonly #options: HttpOptions;
  /** Running requests. All of them end with the client. */
  readonly #running = new Set<AbortController>();
  #isClosed = false;

  constructor(url: string | URL, options: HttpOptions) {
    const base = new URL(url);
    if (!/^https?:$/.test(base.protocol) || base.username || base.search || base.hash) {
      throw new TypeError("a daemon's URL is like http://127.0.0.1:4170, without user, query or fragment");
    }
    this.#base = base.href.replace(/\/+$/, "");
    this.#options = options;
    this.clock = options.clock;
  }

  close(): void {
    this.#isClosed = true;
    for (const each of [...this.#running]) each.abort();
  }

  /** Return the JSON response to a request. Throws the daemon's error, `DaemonUnreachable` and `ClientClosed`. */
  async ask<Answer>(method: string, path: string, body?: unknown, asked: Asked = {}): Promise<Answer> {
    const pause = new Backoff(RETRY_FIRST_MS, RETRY_MOST_MS, this.clock);
    const giveUpAt = this.clock.now() + (asked.impatient ? 0 : this.#options.requestRetryMs);
    for (;;) {
      try {
        return await this.#once<Answer>(method, path, body, asked);
      } catch (error) {
        if (!isPassing(error)) throw error;
        const again = asked.repeatable || NOTHING_DONE.has(error.status ?? 0);
        const waitMs = Math.max(pause.next(), Number(error.context["retryAfterMs"] ?? 0));
        if (!again || this.clock.now() + waitMs >= giveUpAt) throw error;
        await this.sleep(waitMs);
      }
    }
  }

  async #once<Answer>(method: string, path: string, body: unknown, asked: Asked): Promise<Answer> {
    const headers: Record<string, string> = { ...asked.headers };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const text = body === undefined ? null : JSON.stringify(body);
    return this.#within(undefined, async (abort, limit) => {
      limit(ANSWER_MS);
      const response = await this.#send(path, { method, headers, body: text, signal: abort.signal });
      const answer = await response.text();
      try {
        return (answer === "" ? undefined : JSON.parse(answer)) as Answer;
      } catch {
        throw new RemoteProtocolError(
          "the answer is not as the daemon's contract promises; is there a turnwire daemon at this URL?",
        );
      }
    });
  }

  /**
   * Yield the body of a response as it arrives; `opened` gets its headers first. Throws as `ask`, and
   * `DaemonUnreachable` after a long silence.
   */
  async *stream(
    path: string,
    headers: Readonly<Record<string, string>>,
    signal: AbortSignal,
    opened: (headers: Headers) => void,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const sending = new AbortController();
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
    const stop = () => {
      sending.abort();
      // Node drops the abort signal of a body that is read for a long time.
      reader?.cancel().catch(() => {});
    };
    const read = (limitMs: number) =>
      this.#within(signal, async (abort, limit) => {
        // Only while a read is pending: a slow reader is not silence of the daemon.
        limit(Math.min(limitMs, this.#options.silenceMs));
        abort.signal.addEventListener("abort", stop);
        if (abort.signal.aborted) stop();
        if (!reader) {
          const response = await this.#send(path, {
            headers: { ...headers, Accept: "text/event-stream" },
            signal: sending.signal,
          });
          if (!response.headers.get("content-type")?.startsWith("text/event-stream") || !response.body) {
            throw new DaemonUnreachable("something in between answered in the daemon's place");
          }
          opened(response.headers);
          reader = response.body.getReader();
        }
        const piece = await reader.read();
        if (abort.signal.aborted) throw new DaemonUnreachable("the daemon's event stream is silent");
        return piece;
      });
    try {
      let piece = await read(FIRST_BYTE_MS);
      while (!piece.done) {
        yield piece.value;
        piece = await read(Number.POSITIVE_INFINITY);
      }
    } finally {
      stop();
    }
  }

  /** Wait. Throws `ClientClosed`; returns early when `signal` is aborted. */
  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    await this.#within(signal, (abort) => {
      return new Promise<void>((resolve) => {
        const cancel = this.clock.after(ms, resolve);
        const stop = () => {
          cancel();
          resolve();
        };
        if (abort.signal.aborted) stop();
        else abort.signal.addEventListener("abort", stop);
      });
    });
    this.#checkOpen();
  }

  async #send(path: string, init: RequestInit): Promise<Response> {
    const { token, pageKey, fetch } = this.#options;
    const headers: Record<string, string> = { ...(init.headers as Record<string, string>) };
    if (token) headers["Authorization"] = `Bearer ${token}`;
    else if (pageKey) headers["Turnwire-Page-Key"] = pageKey;
    const response = await fetch(this.#base + path, {
      ...init,
      headers,
      cache: "no-store",
      // Without a token, a browser's login is the credential.
      credentials: token ? "omit" : "include",
      redirect: "error",
    });
    if (response.ok) return response;
    const problem: unknown = await response.json().catch((error: unknown) => {
      if (init.signal?.aborted) throw error;
      return undefined;
    });
    throw refusalOf(response.status, response.headers.get("retry-after"), problem);
  }

  /** Run a function until the client closes, the caller's signal is aborted, or the time is over. */
  async #within<Result>(
    signal: AbortSignal | undefined,
    act: (abort: AbortController, limit: (ms: number) => void) => Promise<Result>,
  ): Promise<Result> {
    this.#checkOpen();
    const abort = new AbortController();
    const stop = () => abort.abort();
    let cancel: (() => void) | undefined;
    this.#running.add(abort);
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    try {
      return await act(abort, (ms) => {
        cancel = this.clock.after(ms, stop);
      });
    } catch (error) {
      this.#checkOpen();
      // `fetch` throws a TypeError or an abort; its text may contain private data.
      if (
        error instanceof TypeError ||
        (error instanceof Error && error.name === "AbortError") ||
        abort.signal.aborted
      ) {
        throw new DaemonUnreachable(
          `the daemon at ${this.#base} does not answer, or its answer was lost; start it with \`turnwire serve\`,` +
            " or check the URL",
        );
      }
      throw error;
    } finally {
      cancel?.();
      this.#running.delete(abort);
      signal?.removeEventListener("abort", stop);
    }
  }

  #checkOpen(): void {
    if (this.#isClosed) throw new ClientClosed();
  }
}

/** Return an id as one segment of a path. */
export const segment = encodeURIComponent;

/** Return the members that have a value. */
export function defined<Members extends object>(
  members: Members,
): { [Name in keyof Members]?: Exclude<Members[Name], undefined> } {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as never;
}
