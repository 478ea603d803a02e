/**
 * Where a client's events come from. `EventSourceOf` is the seam: here each reader has a connection of its own to the
 * daemon; a page with many tabs may put something in its place that shares one connection among all of them.
 */

import { PositionLost, RemoteProtocolError, SessionNotFound } from "./errors.js";
import type { AnyEvent } from "./events.js";
import { type Http, segment } from "./http.js";
import type { SessionSnapshot } from "./rest.js";
import type { SseEvent } from "./sse.js";
import { type Batch, type Cursor, type StreamLimits, type Watch, follow } from "./stream.js";

/** A place in a session's log, after that event. */
export interface Position {
  readonly id: number;
  /** One life of the log; without it, whichever there is. */
  readonly epoch?: string;
}

/** In whose words an agent's updates are told: those of ACP v1, of v2, or its own. */
export type Shape = "1" | "2" | "agent";

/**
 * What gives a client its events. Whoever implements it promises, for each reader:
 *
 *   S1  Each event behind the given place comes once, in the order of its session's log, ids without a gap.
 *   S2  A batch never ends inside of an event that is told as several envelopes.
 *   S3  A cut is not seen, but for what `watch.onConnection` is told. A place that cannot be honoured is seen as one
 *       `state_resync_required`, and events go on from the oldest that is kept.
 *   S4  It ends when the sessions are over or `watch.signal` is aborted. It throws a `TurnwireError` if events can
 *       come no more for another reason. Silence is none.
 */
export interface EventSourceOf {
  /** The events of one session. */
  session(sessionId: string, after: Position, watch: Watch): AsyncIterable<Batch<Position>>;
  /**
   * The events of some sessions, or without any named of all that there are and will be. `after` is the place that came
   * with the last batch; without one, what is new is told.
   */
  many(sessions: readonly string[], after: string | undefined, watch: Watch): AsyncIterable<Batch<string>>;
}

/** A connection for each reader. */
export class DirectEvents implements EventSourceOf {
  constructor(
    private readonly http: Http,
    private readonly shape: Shape,
    private readonly limits: StreamLimits,
  ) {}

  session(sessionId: string, after: Position, watch: Watch): AsyncIterable<Batch<Position>> {
    return follow(this.http, new SessionCursor(this.http, this.shape, sessionId, after), watch, this.limits);
  }

  many(sessions: readonly string[], after: string | undefined, watch: Watch): AsyncIterable<Batch<string>> {
    return follow(this.http, new ManyCursor(this.http, this.shape, sessions, after), watch, this.limits);
  }
}

/** The envelope of an SSE event. Throws `RemoteProtocolError`. */
function envelopeOf(event: SseEvent): AnyEvent {
  try {
    const envelope = JSON.parse(event.data) as AnyEvent;
    if (envelope.v === 1 && typeof envelope.type === "string") return envelope;
  } catch {
    // Told below.
  }
  throw new RemoteProtocolError("an event of the stream is no envelope; is it a turnwire daemon?");
}

function checkNext(expected: number, id: number): void {
  if (id === expected) return;
  throw new RemoteProtocolError(
    `the daemon left out events of the session (${expected} was due, ${id} came); its log or something on the way is broken`,
  );
}

/** How far one connection after the other has come in one session. */
export class SessionCursor implements Cursor<Position> {
  isOver = false;
  /** What has come of an event whose number has not. One that was cut inside comes again as a whole. */
  #parts: AnyEvent[] = [];
  #epoch: string | undefined;
  #id: number;

  constructor(
    private readonly http: Http,
    private readonly shape: Shape,
    readonly sessionId: string,
    after: Position,
  ) {
    this.#id = after.id;
    this.#epoch = after.epoch;
  }

  get place(): Position {
    return { id: this.#id, ...(this.#epoch === undefined ? {} : { epoch: this.#epoch }) };
  }

  path(): string {
    return `/session/${segment(this.sessionId)}/events?acp=${this.shape}`;
  }

  headers(): Record<string, string> {
    const headers: Record<string, string> = { Accept: "text/event-stream", "Last-Event-ID": String(this.#id) };
    if (this.#epoch !== undefined) headers["Turnwire-Epoch"] = this.#epoch;
    return headers;
  }

  opened(headers: Headers): void {
    this.#parts = [];
    // If it is another one than ours, the stream says so before anything else.
    this.#epoch = headers.get("turnwire-epoch") ?? this.#epoch;
  }

  take(events: readonly SseEvent[]): AnyEvent[] {
    const fresh: AnyEvent[] = [];
    for (const each of events) {
      const event = envelopeOf(each);
      if (event._meta?.partOf !== undefined) {
        this.#parts.push(event);
      } else if (event.id === undefined) {
        if (event.type === "state_resync_required") this.#id = (event.data.earliestAvailableId ?? 1) - 1;
        fresh.push(event);
      } else {
        const parts = this.#parts;
        this.#parts = [];
        if (event.id <= this.#id) continue;
        checkNext(this.#id + 1, event.id);
        this.#id = event.id;
        fresh.push(...parts, event);
        this.isOver ||= event.type === "session_closed";
      }
    }
    return fresh;
  }

  isGone(): Promise<boolean> {
    return isClosed(this.http, this.sessionId);
  }
}

/** The same in many sessions, with the daemon's one cursor over all of them. */
export class ManyCursor implements Cursor<string> {
  readonly isOver = false;
  #parts: AnyEvent[] = [];
  /** By session, the newest event that was given. */
  readonly #ids = new Map<string, number>();

  constructor(
    private readonly http: Http,
    private readonly shape: Shape,
    private readonly sessions: readonly string[],
    after: string | undefined,
  ) {
    this.place = after ?? "";
  }

  place: string;

  path(): string {
    return `/events?${["acp=" + this.shape, ...this.sessions.map((each) => "session=" + segment(each))].join("&")}`;
  }

  headers(): Record<string, string> {
    return { Accept: "text/event-stream", ...(this.place ? { "Last-Event-ID": this.place } : {}) };
  }

  opened(): void {
    this.#parts = [];
  }

  take(events: readonly SseEvent[], lastEventId: string): AnyEvent[] {
    const fresh: AnyEvent[] = [];
    for (const each of events) {
      const event = envelopeOf(each);
      const sessionId = String(event.data["sessionId" as never]);
      if (event._meta?.partOf !== undefined) {
        this.#parts.push(event);
      } else if (event.id === undefined) {
        // Numbers begin anew, in this session or in all that the cursor did not name.
        if (event.type === "state_resync_required") {
          if (event.data.sessionId === undefined) this.#ids.clear();
          else this.#ids.delete(sessionId);
        }
        fresh.push(event);
      } else {
        const parts = this.#parts;
        this.#parts = [];
        const last = this.#ids.get(sessionId);
        if (last !== undefined) {
          if (event.id <= last) continue;
          checkNext(last + 1, event.id);
        }
        this.#ids.set(sessionId, event.id);
        fresh.push(...parts, event);
      }
    }
    this.place = lastEventId || this.place;
    return fresh;
  }

  async isGone(): Promise<boolean> {
    if (!this.sessions.length) return false;
    const closed = await Promise.all(this.sessions.map((each) => isClosed(this.http, each)));
    return closed.every(Boolean);
  }
}

async function isClosed(http: Http, sessionId: string): Promise<boolean> {
  try {
    const path = `/session/${segment(sessionId)}`;
    return (await http.ask<SessionSnapshot>("GET", path, undefined, { repeatable: true })).isClosed;
  } catch (error) {
    if (error instanceof SessionNotFound) return true;
    throw error;
  }
}

/** What is told of a turn whose events the daemon does not have any more. */
export function positionLost(): PositionLost {
  return new PositionLost(
    "position_lost",
    "the daemon no longer has all events of this turn; read the session's transcript and go on from there",
  );
}
