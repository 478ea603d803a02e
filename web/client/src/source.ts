/**
 * The source of a client's events. `EventSourceOf` is the seam: this implementation opens a connection for each reader;
 * a page with many tabs may replace it by one that shares a connection.
 */

import { PositionLost, RemoteProtocolError, SessionNotFound } from "./errors.js";
import type { AnyEvent, EventOf } from "./events.js";
import { type Http, segment } from "./http.js";
import type { SessionSnapshot } from "./rest.js";
import type { SseEvent } from "./sse.js";
import { type Batch, type Cursor, type StreamLimits, type Watch, follow } from "./stream.js";

/** A position in a session's log, after that event. */
export interface Position {
  readonly id: number;
  /** The incarnation of the log; any if absent. */
  readonly epoch?: string;
}

/** The dialect of agent updates: ACP v1, v2, or the agent's own. */
export type Shape = "1" | "2" | "agent";

/**
 * A source of events. An implementation promises for each reader:
 *
 *   S1  Each event after the given position arrives once, in the order of its session's log, without a gap in the ids.
 *   S2  A batch never ends inside an event that consists of several envelopes.
 *   S3  A cut is visible through `watch.onConnection` only. A position that cannot be honoured becomes one
 *       `state_resync_required`, and events continue from the oldest stored one.
 *   S4  A batch is plain data, so that it can be sent from one tab to another.
 *   S5  It ends when the sessions have ended or `watch.signal` is aborted. It throws a `TurnwireError` if no more
 *       events can arrive for another reason. Silence is no reason.
 */
export interface EventSourceOf {
  /** The events of one session. */
  session(sessionId: string, after: Position, watch: Watch): AsyncIterable<Batch<Position>>;
  /**
   * The events of the named sessions, or of all present and future ones. `after` is the place of the last batch.
   * Without it, events start now; the first batch arrives when the stream is open, even if it is empty.
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

/** Filters repeated events by their numbers, which each session counts separately. */
class Numbered {
  /** The newest delivered event of each session. */
  readonly ids = new Map<string, number>();
  /** Envelopes of an event whose number has not arrived. An event that was cut is sent again completely. */
  #parts: AnyEvent[] = [];

  /** Start of a new connection. */
  opened(): void {
    this.#parts = [];
  }

  /** Return the new, complete events. Throws `RemoteProtocolError` if one is missing. */
  take(events: readonly SseEvent[]): AnyEvent[] {
    const fresh: AnyEvent[] = [];
    for (const each of events) {
      const event = envelopeOf(each);
      if (event._meta?.partOf !== undefined) {
        this.#parts.push(event);
      } else if (event.id === undefined) {
        if (event.type === "state_resync_required") this.#lose(event.data);
        fresh.push(event);
      } else {
        const parts = this.#parts;
        this.#parts = [];
        if (this.#isNext(String(event.data["sessionId" as never]), event.id)) fresh.push(...parts, event);
      }
    }
    return fresh;
  }

  #isNext(sessionId: string, id: number): boolean {
    const last = this.ids.get(sessionId) ?? id - 1;
    if (id <= last) return false;
    if (id > last + 1) {
      throw new RemoteProtocolError(
        `the daemon left out events of the session: ${last + 1} was due, ${id} came; its log is broken, or the way is`,
      );
    }
    this.ids.set(sessionId, id);
    return true;
  }

  /** Numbers jump: in one session, or in all that the cursor did not name. */
  #lose({ sessionId, earliestAvailableId }: EventOf<"state_resync_required">["data"]): void {
    if (sessionId === undefined) this.ids.clear();
    else if (earliestAvailableId === undefined) this.ids.delete(sessionId);
    else this.ids.set(sessionId, earliestAvailableId - 1);
  }
}

/** Throws `RemoteProtocolError`. */
function envelopeOf(event: SseEvent): AnyEvent {
  try {
    const envelope = JSON.parse(event.data) as AnyEvent;
    if (envelope.v === 1 && typeof envelope.type === "string") return envelope;
  } catch {
    // Assigned below.
  }
  throw new RemoteProtocolError("an event of the stream is no envelope; is it a turnwire daemon?");
}

/** The position in one session, over several connections. */
export class SessionCursor implements Cursor<Position> {
  isOver = false;
  place: Position;
  readonly #numbered = new Numbered();

  constructor(
    private readonly http: Http,
    private readonly shape: Shape,
    readonly sessionId: string,
    after: Position,
  ) {
    this.#numbered.ids.set(sessionId, after.id);
    this.place = after;
  }

  path(): string {
    return `/session/${segment(this.sessionId)}/events?acp=${this.shape}`;
  }

  headers(): Record<string, string> {
    const { id, epoch } = this.place;
    return { "Last-Event-ID": String(id), ...(epoch === undefined ? {} : { "Turnwire-Epoch": epoch }) };
  }

  opened(headers: Headers): void {
    this.#numbered.opened();
    // If the log's incarnation differs from ours, the stream reports that first.
    const epoch = headers.get("turnwire-epoch");
    if (epoch !== null) this.place = { ...this.place, epoch };
  }

  take(events: readonly SseEvent[]): AnyEvent[] {
    const fresh = this.#numbered.take(events);
    const id = this.#numbered.ids.get(this.sessionId) ?? 0;
    if (id !== this.place.id) this.place = { ...this.place, id };
    this.isOver ||= fresh.some((each) => each.type === "session_closed");
    return fresh;
  }

  isGone(): Promise<boolean> {
    return isClosed(this.http, this.sessionId);
  }
}

/** The same for many sessions, with one cursor of the daemon for all. */
export class ManyCursor implements Cursor<string> {
  readonly isOver = false;
  readonly #numbered = new Numbered();
  place: string;

  constructor(
    private readonly http: Http,
    private readonly shape: Shape,
    private readonly sessions: readonly string[],
    after = "",
  ) {
    this.place = after;
  }

  path(): string {
    return `/events?acp=${this.shape}${this.sessions.map((each) => `&session=${segment(each)}`).join("")}`;
  }

  headers(): Record<string, string> {
    return this.place ? { "Last-Event-ID": this.place } : {};
  }

  opened(): void {
    this.#numbered.opened();
  }

  take(events: readonly SseEvent[], lastEventId: string): AnyEvent[] {
    this.place = lastEventId || this.place;
    return this.#numbered.take(events);
  }

  async isGone(): Promise<boolean> {
    const closed = await Promise.all(this.sessions.map((each) => isClosed(this.http, each)));
    return closed.length > 0 && closed.every(Boolean);
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

/** The result of a turn whose events the daemon no longer has. */
export function positionLost(): PositionLost {
  return new PositionLost(
    "position_lost",
    "the daemon no longer has all events of this turn; read the session's transcript and go on from there",
  );
}
