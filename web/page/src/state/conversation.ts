/**
 * One session as the page shows it: the newest page of its transcript and every event after it. The state is a fold of
 * the daemon's data; nothing is assumed, and no timeout ends a turn.
 *
 *   C1  The transcript page is shown as soon as it arrives. Events between the page and the subscription are read from
 *       the log, and each event is applied once, by its number, so nothing is missed.
 *   C2  When events were missed, everything is read again.
 *   C3  A turn ends by its terminal event only.
 */

import { type ReadonlySignal, batch, signal } from "@preact/signals";
import { type AnyEvent, DaemonUnreachable, type PermissionMembers, type SessionCalls, SessionNotFound } from "@turnwire/client";
import { type Answered, type Item, SessionView } from "@turnwire/client/view";

import { type Daemon, type Hearing, nameOf, whenOpen } from "./daemon.js";
import { PerFrame } from "./frames.js";
import { Rows } from "./rows.js";

/** A permission request that was open in this page, and how it was closed. */
export interface ClosedRequest {
  readonly request: PermissionMembers;
  readonly closed: Answered;
}

export type Loading = "loading" | "ready" | "missing" | { readonly failed: string };

const AGAIN_MS = 500;
/** Items of the first page: about one screen, so that it is drawn soon. */
const FIRST = 20;
/** Items of each older page. */
const PAGE = 60;

export class ConversationState {
  readonly rows = new Rows<Item>();
  readonly #loading = signal<Loading>("loading");
  readonly loading: ReadonlySignal<Loading> = this.#loading;
  readonly #hasOlder = signal(false);
  readonly hasOlder: ReadonlySignal<boolean> = this.#hasOlder;
  readonly #growing = signal(-1);
  /** The place of the item that may still grow; -1 if there is none. */
  readonly growing: ReadonlySignal<number> = this.#growing;
  readonly #agent = signal<string | undefined>(undefined);
  /** The name of its agent, once known. */
  readonly agent: ReadonlySignal<string | undefined> = this.#agent;
  readonly #askedCalls = signal<ReadonlySet<string>>(new Set());
  /** The tool calls that open requests are about. */
  readonly askedCalls: ReadonlySignal<ReadonlySet<string>> = this.#askedCalls;
  /** Requests that were answered in this tab. */
  readonly answeredHere = new Set<string>();
  /** Changes whenever something besides the items may have changed. */
  readonly #version = signal(0);

  /** The requests of this session. */
  readonly session: SessionCalls;
  readonly #hearing: Hearing;
  readonly #stopMissed: () => void;
  readonly #frame = new PerFrame(() => this.#apply());
  #view: SessionView | undefined;
  readonly #requests = new Map<string, PermissionMembers>();
  #waiting: AnyEvent[] = [];
  /** Counts reads, so that an overtaken one is dropped. */
  #reading = 0;
  /** The subscription is active. */
  #isHeard = false;
  /** The view is up to date, so new events can be applied to it. */
  #isLive = false;
  #isClosed = false;

  constructor(
    private readonly daemon: Daemon,
    readonly sessionId: string,
  ) {
    this.session = daemon.client.session(sessionId);
    this.#hearing = daemon.feed.session(sessionId, (events) => this.#hear(events));
    void this.#hearing.begun.then(() => (this.#isHeard = true));
    this.#stopMissed = daemon.feed.missed((missed) => {
      if (missed === undefined || missed === sessionId) void this.#read();
    });
    void this.#read();
  }

  /** Everything besides the items. A component that reads it is rendered again when it changes. */
  get view(): SessionView | undefined {
    void this.#version.value;
    return this.#view;
  }

  /** Requests that were open here and are closed now, in the order in which they were closed. */
  get closedRequests(): readonly ClosedRequest[] {
    return [...(this.view?.answered.values() ?? [])].flatMap((closed) => {
      const request = this.#requests.get(closed.requestId);
      return request ? [{ request, closed }] : [];
    });
  }

  /** Answer a request. Return whether this answer won. */
  async answer(request: PermissionMembers, body: object): Promise<boolean> {
    const { requestId } = request;
    // Before it is sent: the event of a winning answer may arrive before the response.
    this.answeredHere.add(requestId);
    let isWon = false;
    try {
      isWon = (await this.session.reply(requestId, body)).won;
    } finally {
      if (!isWon) {
        this.answeredHere.delete(requestId);
        this.#version.value++;
      }
    }
    return isWon;
  }

  /** Return the name to show for an author. */
  nameOf = (author: string): string => nameOf(author, this.daemon.caller);

  close(): void {
    this.#isClosed = true;
    this.#hearing.stop();
    this.#stopMissed();
  }

  async loadOlder(): Promise<void> {
    const view = this.#view;
    if (!view?.hasOlder) return;
    const before = view.before;
    const page = await this.daemon.client.transcript(this.sessionId, { limit: PAGE, ...(before === undefined ? {} : { before }) });
    if (this.#isClosed || this.#view !== view || view.before !== before) return;
    // A page that is too old is requested again by the next scroll.
    if (!view.prepend(page)) return;
    view.drain();
    batch(() => {
      this.rows.prepend(view.first, view.items.slice(0, page.items.length), (each) => this.#hasEnded(each));
      this.#hasOlder.value = view.hasOlder;
    });
  }

  /** Load a child session's newest page, then the page before those that are loaded. */
  async loadChild(childId: string): Promise<void> {
    const view = this.#view;
    const conversation = view?.children.get(childId)?.conversation;
    const before = conversation?.hasOlder ? { before: conversation.first } : {};
    const page = await this.daemon.client.childTranscript(this.sessionId, childId, { limit: PAGE, ...before });
    if (this.#isClosed || this.#view !== view) return;
    view?.takeChild(page);
    this.#version.value++;
  }

  #hear(events: readonly AnyEvent[]): void {
    this.#waiting.push(...events);
    if (this.#isLive) this.#frame.due();
  }

  async #read(): Promise<void> {
    const reading = ++this.#reading;
    const isOvertaken = () => this.#isClosed || reading !== this.#reading;
    const wasHeard = this.#isHeard;
    this.#isLive = false;
    try {
      const page = await this.daemon.client.transcript(this.sessionId, { limit: FIRST });
      if (isOvertaken()) return;
      const view = new SessionView(page);
      this.#begin(view);
      await this.#hearing.begun;
      if (!wasHeard) await this.#catchUp(view, isOvertaken);
      const snapshot = await this.daemon.client.snapshot(this.sessionId);
      if (isOvertaken()) return;
      this.#isLive = true;
      this.#agent.value = snapshot.agent;
      // The snapshot may be ahead of the events here, but never far behind: it was requested after them.
      view.takeSnapshot(snapshot);
      this.#apply();
    } catch (error) {
      if (isOvertaken()) return;
      if (error instanceof SessionNotFound) this.#loading.value = "missing";
      else if (error instanceof DaemonUnreachable) await this.#readAgain();
      else this.#loading.value = { failed: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Read again when the daemon is back. Until then the page shows what it has. */
  async #readAgain(): Promise<void> {
    await whenOpen(this.daemon.feed.link, AGAIN_MS);
    if (!this.#isClosed) await this.#read();
  }

  #begin(view: SessionView): void {
    this.#view = view;
    batch(() => {
      this.rows.begin(view.first, view.items, (each) => this.#hasEnded(each));
      this.#show(view);
      this.#hasOlder.value = view.hasOlder;
      this.#loading.value = "ready";
      this.#version.value++;
    });
  }

  /** Apply the events between the transcript page and the start of the subscription. */
  async #catchUp(view: SessionView, isOvertaken: () => boolean): Promise<void> {
    for (;;) {
      const part = await this.daemon.client.log(this.sessionId, { after: view.lastEventId });
      if (isOvertaken()) return;
      this.#take(view, part.events);
      if (part.nextAfter >= part.lastEventId) return;
    }
  }

  #hasEnded(promptId: string): boolean {
    return this.#view?.turns.get(promptId)?.state === "ended";
  }

  #apply(): void {
    const view = this.#view;
    if (!view || this.#isClosed) return;
    const events = this.#waiting;
    this.#waiting = [];
    this.#take(view, events);
  }

  #take(view: SessionView, events: readonly AnyEvent[]): void {
    batch(() => {
      try {
        for (const each of events) {
          view.apply(each);
          if (each.type !== "turn_complete" && each.type !== "turn_error") continue;
          // The row of an end comes after everything before it in the log.
          this.#show(view);
          this.rows.end(each.data.promptId);
        }
      } catch {
        // An event is missing, so the state may be wrong.
        void this.#read();
        return;
      }
      this.#show(view);
      this.#seen(view);
      this.#version.value++;
    });
  }

  /** Remember the open requests: their content is shown after they are closed. */
  #seen(view: SessionView): void {
    for (const each of view.permissions) this.#requests.set(each.requestId, each);
    const asked = new Set(view.permissions.flatMap((each) => toolCallOf(each) ?? []));
    const known = this.#askedCalls.peek();
    if (asked.size !== known.size || [...asked].some((each) => !known.has(each))) this.#askedCalls.value = asked;
  }

  #show(view: SessionView): void {
    const last = view.items.at(-1);
    const isAtWork = view.activePromptId !== undefined && last?.promptId === view.activePromptId;
    this.#growing.value = isAtWork ? view.first + view.items.length - 1 : -1;
    for (const place of view.drain()) {
      const item = view.items[place - view.first];
      if (item) this.rows.set(place, item);
    }
  }
}

/** Return the id of the tool call that a request is about, in ACP v1 or v2. */
export function toolCallOf(request: PermissionMembers): string | undefined {
  const params = (request.params ?? {}) as { readonly toolCall?: Told; readonly subject?: { readonly toolCall?: Told } };
  const { toolCallId } = request.toolCall ?? params.toolCall ?? params.subject?.toolCall ?? {};
  return typeof toolCallId === "string" ? toolCallId : undefined;
}

type Told = { readonly toolCallId?: unknown };
