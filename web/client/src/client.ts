/**
 * A daemon as a program holds it: its sessions, and what happens in all of them. Closing it stops nothing at the
 * daemon.
 */

import { type Clock, systemClock } from "./clock.js";
import { SessionExists } from "./errors.js";
import { Http, segment } from "./http.js";
import { randomId } from "./ids.js";
import type {
  Capabilities,
  ChildTranscript,
  HostedAgent,
  LogPart,
  NewSession,
  NewShare,
  SessionEntry,
  SessionFilter,
  SessionOpened,
  SessionPage,
  SessionSnapshot,
  Share,
  Transcript,
} from "./rest.js";
import { Session, type SessionParts } from "./session.js";
import { DirectEvents, type EventSourceOf, type Position, type Shape } from "./source.js";
import { type Batch, type Connection, Wakeup } from "./stream.js";

export interface ConnectOptions {
  /** Without one, a browser sends the cookie of its login. */
  readonly token?: string;
  /** Another `fetch` than the platform's. */
  readonly fetch?: typeof fetch;
  /** In whose words an agent's updates are told; `"1"` if it is left out. */
  readonly acp?: Shape;
  /** Puts something else in the place of `direct`, which has a connection for each reader. It may use it. */
  readonly source?: (direct: EventSourceOf) => EventSourceOf;
  /**
   * How long the daemon may be away before whoever waits gets `DaemonUnreachable`: 5 minutes. A page says
   * `Infinity`.
   */
  readonly reconnectMs?: number;
  /** How long a request is tried again: 10 seconds. */
  readonly requestRetryMs?: number;
  /** How long a stream may be silent before it is opened anew: 45 seconds, three heartbeats of the daemon. */
  readonly silenceMs?: number;
  /** Told when a stream of events is connected or lost. */
  readonly onConnection?: (connection: Connection) => void;
  /** Told what handlers throw; by default it is logged. */
  readonly onHandlerError?: (error: unknown) => void;
  /** Time and chance, for tests. */
  readonly clock?: Clock;
}

/** Which items of a transcript, and in whose words. */
export interface PageWanted {
  readonly limit?: number;
  /** `before` of a page. */
  readonly before?: number;
  readonly acp?: Shape;
}

const PAGE = 100;

/** A daemon that answers. Throws `DaemonUnreachable`, `Unauthenticated`. */
export async function connect(url: string | URL, options: ConnectOptions = {}): Promise<Client> {
  const http = new Http(url, {
    token: options.token,
    // Called as a plain function: a browser's own refuses to be called as a method of anything else.
    fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    clock: options.clock ?? systemClock,
    requestRetryMs: options.requestRetryMs ?? 10_000,
    silenceMs: options.silenceMs ?? 45_000,
  });
  const asked = { repeatable: true, impatient: true };
  return new Client(http, options, await http.ask<Capabilities>("GET", "/capabilities", undefined, asked));
}

export class Client {
  readonly #http: Http;
  readonly #source: EventSourceOf;
  readonly #parts: SessionParts;
  readonly #wakeup = new Wakeup();
  readonly #sessions = new Set<Session>();
  /** Readers of many sessions. */
  readonly #reading = new Set<AbortController>();

  /** @internal */
  constructor(
    http: Http,
    options: ConnectOptions,
    /** What the daemon can do. */
    readonly capabilities: Capabilities,
  ) {
    const shape = options.acp ?? "1";
    const limits = { reconnectMs: options.reconnectMs ?? 300_000, wakeup: this.#wakeup };
    this.#http = http;
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

  /** A new session. */
  async create(wanted: NewSession = {}): Promise<Session> {
    // The id is ours, so that asking again after a lost answer cannot make two sessions.
    const sessionId = `s_${randomId()}`;
    let opened: SessionOpened;
    try {
      opened = await this.#http.ask(
        "POST",
        `/session?acp=${this.#parts.shape}`,
        { ...wanted, sessionId },
        { repeatable: true },
      );
    } catch (error) {
      if (!(error instanceof SessionExists)) throw error;
      opened = await this.#look(sessionId);
    }
    return this.#hold(new Session(this.#parts, opened, { id: 0, epoch: opened.eventEpoch }));
  }

  /** A session that there is. It is heard from now on, or from behind `after`: 0 is the beginning of its log. */
  async attach(sessionId: string, { after }: { readonly after?: number | Position } = {}): Promise<Session> {
    const opened = await this.#look(sessionId);
    const here = { id: opened.lastEventId, epoch: opened.eventEpoch };
    const from = typeof after === "number" ? { id: after, epoch: opened.eventEpoch } : (after ?? here);
    return this.#hold(new Session(this.#parts, opened, from));
  }

  /** Every session that the credential may see. */
  async sessions(filter: SessionFilter = {}): Promise<SessionEntry[]> {
    const found: SessionEntry[] = [];
    let cursor: string | undefined;
    do {
      const query = new URLSearchParams({
        size: String(PAGE),
        ...filter,
        ...(cursor === undefined ? {} : { cursor }),
      });
      const page = await this.request<SessionPage>("GET", `/session?${query}`);
      found.push(...page.sessions);
      cursor = page.nextCursor;
    } while (cursor);
    return found;
  }

  /** Where a session stands, with what waits. */
  snapshot(sessionId: string, { acp = this.#parts.shape }: { readonly acp?: Shape } = {}): Promise<SessionSnapshot> {
    return this.request("GET", `/session/${segment(sessionId)}?acp=${acp}`);
  }

  /** What was said and done: all of it, or with `limit` the newest items, or those before a place. */
  transcript(sessionId: string, wanted: PageWanted = {}): Promise<Transcript> {
    return this.request("GET", `/session/${segment(sessionId)}/transcript?${this.#query(wanted)}`);
  }

  /** The same of a child session. */
  childTranscript(sessionId: string, childId: string, wanted: PageWanted = {}): Promise<ChildTranscript> {
    const path = `/session/${segment(sessionId)}/children/${segment(childId)}/transcript`;
    return this.request("GET", `${path}?${this.#query(wanted)}`);
  }

  /** A part of a session's log: the events behind `after`. */
  log(
    sessionId: string,
    wanted: { readonly after?: number; readonly limit?: number; readonly acp?: Shape } = {},
  ): Promise<LogPart> {
    return this.request("GET", `/session/${segment(sessionId)}/log?${this.#query(wanted)}`);
  }

  /** Put a session away: lists leave it out until it is prompted or taken back. */
  archive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/archive`, undefined, { repeatable: true });
  }

  unarchive(sessionId: string): Promise<void> {
    return this.request("POST", `/session/${segment(sessionId)}/unarchive`, undefined, { repeatable: true });
  }

  /** A link by which anybody watches the session; good for a day, or as long as is said. */
  share(sessionId: string, wanted: { readonly expiresInS?: number } = {}): Promise<NewShare> {
    return this.request("POST", `/session/${segment(sessionId)}/share`, wanted);
  }

  /** The links that are good. */
  async shares(sessionId: string): Promise<readonly Share[]> {
    return (await this.request<{ shares: Share[] }>("GET", `/session/${segment(sessionId)}/shares`)).shares;
  }

  /** End a link, and all that watch by it. */
  unshare(sessionId: string, tokenId: string): Promise<void> {
    const path = `/session/${segment(sessionId)}/shares/${segment(tokenId)}`;
    return this.request("DELETE", path, undefined, { repeatable: true });
  }

  /** The agents that sessions can be made for. */
  async agents(): Promise<readonly HostedAgent[]> {
    return (await this.request<{ agents: HostedAgent[] }>("GET", "/agents")).agents;
  }

  /**
   * What happens in many sessions, on one connection: in those named, or in all that there are and will be. `after`
   * is the `place` of the last batch. Without it the first batch comes when the stream is open, empty as a rule: what
   * is listed then is followed without a gap. Leaving the loop ends it.
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

  /** Any other route. One that changes something is repeated after a lost answer only if you say `repeatable`. */
  request<Answer>(
    method: string,
    path: string,
    body?: unknown,
    { repeatable = method === "GET" } = {},
  ): Promise<Answer> {
    return this.#http.ask<Answer>(method, path, body, { repeatable });
  }

  /** Open all streams anew, at once: for a page that has become visible, or a network that has changed. */
  reconnect(): void {
    this.#wakeup.wake();
  }

  /** End all that runs here. Turns go on at the daemon; whoever waits for one here gets `ClientClosed`. */
  close(): void {
    for (const each of [...this.#sessions]) each.leave();
    for (const each of this.#reading) each.abort();
    this.#http.close();
  }

  #query(wanted: PageWanted & { readonly after?: number }): string {
    const members = Object.entries({ acp: this.#parts.shape, ...wanted }).filter(([, value]) => value !== undefined);
    return String(new URLSearchParams(members.map(([name, value]) => [name, String(value)])));
  }

  #look(sessionId: string): Promise<SessionOpened> {
    return this.request<SessionOpened>("GET", `/session/${segment(sessionId)}`);
  }

  #hold(session: Session): Session {
    this.#sessions.add(session);
    return session;
  }
}
