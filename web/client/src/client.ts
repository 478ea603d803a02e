/** A connection to a daemon: its sessions and their events. Closing it stops nothing at the daemon. */

import { type CallOptions, DaemonCalls, answering } from "./calls.js";
import type { Http } from "./http.js";
import type { Capabilities, NewSession, SessionOpened } from "./rest.js";
import { Session, type SessionParts } from "./session.js";
import { DirectEvents, type EventSourceOf, type Position } from "./source.js";
import { type Batch, type Connection, Wakeup } from "./stream.js";

export interface ConnectOptions extends CallOptions {
  /** A replacement for `direct`, which opens a connection for each reader. It may use `direct`. */
  readonly source?: (direct: EventSourceOf) => EventSourceOf;
  /**
   * How long the daemon may be away before pending calls fail with `DaemonUnreachable`: 5 minutes. A page uses
   * `Infinity`.
   */
  readonly reconnectMs?: number;
  /** Called when a stream of events is connected or lost. */
  readonly onConnection?: (connection: Connection) => void;
  /** Called with errors thrown by handlers; by default they are logged. */
  readonly onHandlerError?: (error: unknown) => void;
}

/** Connect to a daemon. Throws `DaemonUnreachable`, `Unauthenticated`. */
export async function connect(url: string | URL, options: ConnectOptions = {}): Promise<Client> {
  const [http, capabilities] = await answering(url, options);
  return new Client(http, options, capabilities);
}

export class Client extends DaemonCalls {
  readonly #source: EventSourceOf;
  readonly #parts: SessionParts;
  readonly #wakeup = new Wakeup();
  readonly #sessions = new Set<Session>();
  /** Readers of many sessions. */
  readonly #reading = new Set<AbortController>();

  /** @internal */
  constructor(http: Http, options: ConnectOptions, capabilities: Capabilities) {
    const shape = options.acp ?? "1";
    super(http, shape, capabilities);
    const limits = { reconnectMs: options.reconnectMs ?? 300_000, wakeup: this.#wakeup };
    const direct = new DirectEvents(http, shape, limits);
    this.#source = options.source?.(direct) ?? direct;
    this.#parts = {
      http,
      shape,
      source: this.#source,
      onConnection: (each) => options.onConnection?.(each),
      onLeave: (session) => this.#sessions.delete(session),
      onHandlerError:
        options.onHandlerError ?? ((error) => console.error("turnwire: a handler threw; the others go on", error)),
    };
  }

  /** Create a session. */
  async create(wanted: NewSession = {}): Promise<Session> {
    const opened = await this.open(wanted);
    return this.#hold(new Session(this.#parts, opened, { id: 0, epoch: opened.eventEpoch }));
  }

  /** Attach to an existing session. Events start now, or after `after`; 0 is the beginning of its log. */
  async attach(sessionId: string, { after }: { readonly after?: number | Position } = {}): Promise<Session> {
    const opened: SessionOpened = await this.snapshot(sessionId);
    const here = { id: opened.lastEventId, epoch: opened.eventEpoch };
    const from = typeof after === "number" ? { id: after, epoch: opened.eventEpoch } : (after ?? here);
    return this.#hold(new Session(this.#parts, opened, from));
  }

  /**
   * Iterate over the events of many sessions on one connection: of those named, or of all present and future ones.
   * `after` is the `place` of the last batch. Without it the first batch arrives when the stream is open and is usually
   * empty: a list requested then is followed without a gap. Leaving the loop closes the stream.
   */
  async *events(
    wanted: { readonly sessions?: readonly string[]; readonly after?: string; readonly signal?: AbortSignal } = {},
  ): AsyncGenerator<Batch<string>, void, undefined> {
    const abort = new AbortController();
    const stop = () => abort.abort();
    this.#reading.add(abort);
    wanted.signal?.addEventListener("abort", stop);
    if (wanted.signal?.aborted) stop();
    try {
      const watch = { signal: abort.signal, onConnection: (each: Connection) => this.#parts.onConnection(each) };
      yield* this.#source.many(wanted.sessions ?? [], wanted.after, watch);
    } finally {
      stop();
      this.#reading.delete(abort);
      wanted.signal?.removeEventListener("abort", stop);
    }
  }

  /** Reopen all streams now, for example because a page has become visible or the network has changed. */
  reconnect(): void {
    this.#wakeup.wake();
  }

  /** Close everything here. Turns continue at the daemon; pending calls fail with `ClientClosed`. */
  close(): void {
    for (const each of [...this.#sessions]) each.leave();
    for (const each of this.#reading) each.abort();
    this.http.close();
  }

  #hold(session: Session): Session {
    this.#sessions.add(session);
    return session;
  }
}
