/**
 * A session for display: a page of its transcript, and the events since. It makes no requests: the caller passes pages,
 * a snapshot and events, in the agent's dialect (`acp=agent`).
 *
 *   V1  An event that is not newer than the page is part of it and changes nothing, so events may be repeated.
 *   V2  Events must arrive without a gap: a missing one throws, since the view would be wrong.
 *   V3  A later page, child transcript or snapshot may be ahead of the events or slightly older: each is current up to
 *       its own `lastEventId`. One that is too old is rejected and must be read again.
 *   V4  Lists and maps are changed in place, their elements are replaced. `permissions`, `queue` and `latest` become
 *       new objects whenever they change.
 */

import type { ContentBlock } from "../acp.js";
import { RemoteProtocolError } from "../errors.js";
import type { AnyEvent, EventOf, PermissionMembers } from "../events.js";
import type { ChildTranscript, SessionSnapshot, Standing, Transcript } from "../rest.js";
import { ANNOUNCES, type ChildRecord, STATES, announced, readState, renamed, withState } from "./children.js";
import { Conversation } from "./conversation.js";
import type { Item, Told } from "./items.js";
import { type Latest, takeOffers } from "./latest.js";
import { addPrompt, nestedUnder } from "./messages.js";
import { type Members, changed, textOf } from "./patch.js";
import { type Terminal, applyPermissionRequest, callOf, markCancelled, markOpen, readBackground } from "./tools.js";
import { TURN_EVENTS, type TurnRecord, storedType, stepped, withAnswer, withRequest } from "./turns.js";
import { type Waits, waitsAfter } from "./waits.js";

/** A closed permission request with its outcome. */
export type Answered = EventOf<"permission_resolved">["data"] & { readonly at: number };

/** A queued prompt. */
export interface Waiting {
  readonly promptId: string;
  readonly content: readonly ContentBlock[];
  readonly queuedAt?: number;
  readonly author?: string;
  readonly clientId?: string;
  /** The agent is asked to inject it into the running turn. Unknown for prompts that were steered before the page. */
  readonly steering?: boolean;
}

/** A child session: its record, and its conversation once that was read. */
export class Child {
  /** A new object whenever it changes. */
  record: ChildRecord;
  /** Undefined until its transcript is passed to the view; a child that started after the page has it immediately. */
  conversation: Conversation | undefined;
  /** @internal The event up to which its transcript was read. */
  asOf = 0;
  /** @internal The event up to which its record was read. */
  recordAsOf = 0;
  /** @internal Its record is complete. */
  isWhole: boolean;

  /** @internal */
  constructor(record: ChildRecord, conversation: Conversation | undefined, isWhole: boolean) {
    this.record = record;
    this.conversation = conversation;
    this.isWhole = isWhole;
  }
}

/** Number of stored events, to bring a recently read page up to date. */
const KEPT_EVENTS = 2000;
const KEPT_ANSWERS = 100;

const PLANS: ReadonlySet<string> = new Set(["plan", "plan_update", "plan_removed"]);

const FOREGROUND: Readonly<Record<string, Standing>> = {
  running: "running",
  requires_action: "requires_action",
  cancelling: "cancelling",
};

/** Return the empty transcript of a session whose events are all subscribed. */
export function emptyTranscript(sessionId: string): Transcript {
  return {
    sessionId,
    eventEpoch: "",
    lastEventId: 0,
    workspaceCwd: "",
    createdAt: "",
    state: "idle",
    first: 0,
    items: [],
    latest: {},
    turns: [],
  };
}

export class SessionView {
  readonly sessionId: string;
  /** In order of arrival. */
  readonly turns: ReadonlyMap<string, TurnRecord>;
  /** The child sessions, including nested ones, in the order of their announcements. */
  readonly children: ReadonlyMap<string, Child>;
  /** The permission requests that were closed last, by id, with their answers. */
  readonly answered: ReadonlyMap<string, Answered>;
  #lastEventId: number;
  #isClosed: boolean;
  /** The user's title. */
  #name: string | undefined;
  #isNamed: boolean;
  #active: string | undefined;
  readonly #own: Conversation;
  readonly #turns: Map<string, TurnRecord>;
  readonly #children: Map<string, Child>;
  readonly #earlierChildren: ReadonlySet<string>;
  readonly #answered = new Map<string, Answered>();
  #waits: Waits = { order: [], steering: new Map(), permissions: [], held: undefined };
  /** The event of the snapshot. */
  #waitsAsOf = 0;
  #queue: readonly Waiting[] | undefined;
  /** The newest events, up to the last one. */
  #recent: AnyEvent[] = [];

  /** `page`: the newest page of a transcript, in the agent's dialect. */
  constructor(page: Transcript) {
    const { sessionId, turns, children = [], speaker = {} } = page;
    this.sessionId = sessionId;
    this.#lastEventId = page.lastEventId;
    this.#isClosed = page.state === "closed";
    this.#isNamed = page.named ?? false;
    this.#name = page.title;
    this.#own = new Conversation(page, speaker);
    this.turns = this.#turns = new Map(turns.map((each) => [each.promptId, each]));
    this.#active = turns.find((each) => each.state in FOREGROUND)?.promptId;
    this.children = this.#children = new Map(
      children.map((each) => [each.childId, new Child(each, undefined, true)] as const),
    );
    this.#earlierChildren = new Set(page.earlier?.children);
    this.answered = this.#answered;
    const order = turns.filter((each) => each.state === "queued").map((each) => each.promptId);
    this.#waits = { ...this.#waits, order };
  }

  /** The newest event of the view. */
  get lastEventId(): number {
    return this.#lastEventId;
  }

  /** The state of the foreground, by the events of turns alone. */
  get state(): Standing {
    if (this.#isClosed) return "closed";
    const record = this.#active === undefined ? undefined : this.#turns.get(this.#active);
    return FOREGROUND[record?.state ?? ""] ?? "idle";
  }

  /** The running turn. */
  get activePromptId(): string | undefined {
    return this.#active;
  }

  /** The user's title, else the agent's. */
  get title(): string | undefined {
    return this.#isNamed ? this.#name : this.#own.latest.title;
  }

  get items(): readonly Item[] {
    return this.#own.items;
  }

  get first(): number {
    return this.#own.first;
  }

  get hasOlder(): boolean {
    return this.#own.hasOlder;
  }

  /** The `before` of the request for the previous page; undefined at the beginning. */
  get before(): number | undefined {
    return this.#own.first || undefined;
  }

  get latest(): Latest {
    return this.#own.latest;
  }

  get terminals(): ReadonlyMap<string, Terminal> {
    return this.#own.terminals;
  }

  get background(): unknown {
    return this.#own.background;
  }

  /** Open permission requests, in order of arrival; those from before the page after `takeSnapshot`. */
  get permissions(): readonly PermissionMembers[] {
    return this.#waits.permissions;
  }

  /** The queued prompts, the next one first; in the right order after `takeSnapshot`. */
  get queue(): readonly Waiting[] {
    this.#queue ??= this.#waits.order.flatMap((promptId) => {
      const record = this.#turns.get(promptId);
      return record?.state === "queued" ? [this.#waiting(record)] : [];
    });
    return this.#queue;
  }

  /** Why no queued prompt is started; known after `takeSnapshot`. */
  get queueHeld(): string | undefined {
    return this.#waits.held;
  }

  /** Return the places of items that were added or replaced since the last call; an index is a place minus `first`. */
  drain(): readonly number[] {
    return this.#own.drain();
  }

  /** Return the content of a prompt; undefined if the agent started the turn, or if it is not loaded. */
  promptOf(promptId: string): readonly ContentBlock[] | undefined {
    const place = this.#turns.get(promptId)?.place;
    const item = place?.prompt === undefined ? undefined : this.#own.transcript.at(place.prompt);
    return item?.item === "message" ? (item.content ?? []) : place?.waiting;
  }

  // -- what is read --------------------------------------------------------------------------------------------

  /** Prepend the page before. False if it does not fit or is too old: read it again. */
  prepend(page: Transcript): boolean {
    if (page.first >= this.#own.first) return true; // it is here
    const since = this.#since(page.lastEventId);
    if (since === undefined || page.first + page.items.length !== this.#own.first) return false;
    const older = new Conversation(page, page.speaker ?? {}, { isOlder: true });
    for (const event of since) this.#catchUp(older, event);
    this.#own.prepend(older, Math.max(page.lastEventId, this.#lastEventId));
    for (const each of page.turns) if (!this.#turns.has(each.promptId)) this.#turns.set(each.promptId, each);
    for (const each of page.children ?? []) this.#learnOfChild(each, page.lastEventId, since);
    return true;
  }

  /**
   * Add a child's transcript, its newest page first, then those before. False if it does not fit or is too old: read it
   * again.
   */
  takeChild(page: ChildTranscript): boolean {
    const child = this.#children.get(page.child.id);
    if (child === undefined) return false;
    const known = child.conversation;
    if (known && page.first >= known.first) return true; // it is here
    const since = this.#since(page.lastEventId);
    if (since === undefined || since.some((each) => each.type === "agent_started")) return false;
    if (known && page.first + page.items.length !== known.first) return false;
    const read = new Conversation(page, this.#own.transcript.speaker, { isOlder: known !== undefined });
    for (const event of since) this.#hearChild(read, page.child.id, event);
    if (known) known.prepend(read, Math.max(page.lastEventId, this.#lastEventId));
    else {
      child.conversation = read;
      child.asOf = page.lastEventId;
      // As if all its items had just arrived.
      for (let place = read.first; place < read.transcript.end; place++) read.transcript.changed.add(place);
    }
    return true;
  }

  /** Apply the queue and permission requests of `GET /session/{id}`. False if it is too old: read it again. */
  takeSnapshot(snapshot: SessionSnapshot): boolean {
    const since = this.#since(snapshot.lastEventId);
    if (since === undefined) return false;
    const order = snapshot.queue.map((each) => each.promptId);
    this.#waits = {
      order: [...order, ...this.#waits.order.filter((each) => !order.includes(each))],
      steering: this.#waits.steering,
      permissions: snapshot.permissions,
      held: snapshot.queueHeld,
    };
    this.#waitsAsOf = snapshot.lastEventId;
    for (const event of since) this.#hearOfWaiting(event);
    this.#queue = undefined;
    return true;
  }

  /** Return the events after one, up to the last; undefined if some are not stored. */
  #since(id: number): readonly AnyEvent[] | undefined {
    if (id >= this.#lastEventId) return [];
    const missing = this.#lastEventId - id;
    return missing > this.#recent.length ? undefined : this.#recent.slice(this.#recent.length - missing);
  }

  // -- events --------------------------------------------------------------------------------------------------

  /** Apply the next event. Throws `RemoteProtocolError` if events are missing. */
  apply(event: AnyEvent): void {
    const id = event.id ?? event._meta?.partOf;
    // A frame without a number belongs to one stream and does not change the session.
    if (id === undefined || id <= this.#lastEventId) return;
    if (id > this.#lastEventId + 1) {
      throw new RemoteProtocolError(
        `events of the session were left out: ${this.#lastEventId + 1} was due, ${id} came; read its transcript anew`,
      );
    }
    this.#fold(event, id);
    this.#hearOfWaiting(event);
    if (event.id === undefined) return;
    this.#lastEventId = event.id;
    this.#recent.push(event);
    if (this.#recent.length > 2 * KEPT_EVENTS) this.#recent = this.#recent.slice(-KEPT_EVENTS);
  }

  #fold(event: AnyEvent, id: number): void {
    const type = storedType(event);
    if (event.type === "session_update" && type !== "user_message") this.#hear(event, id);
    else if (TURN_EVENTS.has(type)) this.#turnEvent(event, type, id);
    else this.#sessionEvent(event, id);
  }

  #sessionEvent(event: AnyEvent, id: number): void {
    switch (event.type) {
      case "session_created":
        this.#name = event.data.title;
        this.#isNamed = event.data.title !== undefined;
        break;
      case "session_metadata_updated":
        this.#name = event.data.title ?? undefined;
        this.#isNamed = event.data.title !== null;
        break;
      case "session_closed":
        this.#isClosed = true;
        this.#loseAgent(id);
        break;
      case "agent_exited":
        this.#loseAgent(id);
        break;
      case "agent_started":
        this.#startAgent(event);
        break;
      case "approval_mode_changed":
        this.#own.latest = { ...this.#own.latest, mode: event.data.mode };
        break;
      case "model_switched":
        this.#own.latest = { ...this.#own.latest, model: event.data.modelId };
        break;
      case "permission_request": {
        this.#ask(event, id);
        const call = callOf(event.data.params);
        if (call && event.data.child === undefined) {
          this.#changeOpenTurn(event.data.promptId, (record) => withRequest(record, event, call));
        }
        break;
      }
      case "permission_resolved":
        this.#changeOpenTurn(event.data.promptId, (record) => withAnswer(record, event));
        break;
      default:
        break;
    }
  }

  #startAgent(event: EventOf<"agent_started">): void {
    const { agentSessionId, protocolVersion, how, offers } = event.data;
    this.#own.background = undefined;
    this.#own.latest = takeOffers(this.#own.latest, offers);
    this.#own.transcript.start(agentSessionId, protocolVersion, how);
    for (const { conversation } of this.#children.values()) {
      conversation?.transcript.start(agentSessionId, protocolVersion, how);
    }
  }

  /** Without an agent background work is unknown. */
  #loseAgent(id: number): void {
    this.#own.background = undefined;
    for (const child of this.#children.values()) {
      if (child.conversation && id > child.asOf) child.conversation.background = undefined;
      if (id > child.recordAsOf && child.record.state !== "idle") child.record = withState(child.record, "unknown");
    }
  }

  #ask(event: EventOf<"permission_request">, id: number): void {
    const { child: childId, params } = event.data;
    const told = { id, at: timeOf(event), promptId: event.data.promptId };
    if (childId === undefined) {
      applyPermissionRequest(this.#own.transcript, told, params);
      return;
    }
    const child = this.#child(childId, told.at);
    if (child.conversation && id > child.asOf) {
      applyPermissionRequest(child.conversation.transcript, told, params);
    }
  }

  // -- what the agent says -------------------------------------------------------------------------------------

  #hear(event: EventOf<"session_update">, id: number): void {
    const told = toldOf(event, id);
    const { child: childId, echo, names } = event.data;
    const child = childId === undefined ? undefined : this.#child(childId, told.at);
    if (child && STATES.has(told.kind) && id > child.recordAsOf) {
      child.record = withState(child.record, readState(told.update["state"]));
    }
    if (names && told.kind === ANNOUNCES) this.#announce(told, childId, child);
    else if (echo) {
      if (child === undefined) this.#hearEcho(this.#own, told);
    } else if (child === undefined) this.#hearOwn(told);
    else if (child.conversation && id > child.asOf) child.conversation.hear(told);
  }

  #hearOwn(told: Told): void {
    const before = this.#own.latest;
    this.#own.hear(told);
    const { latest } = this.#own;
    if (!PLANS.has(told.kind) || latest === before) return;
    this.#changeOpenTurn(told.promptId, (record) => changed(record, { plans: latest.plans }));
  }

  #changeOpenTurn(promptId: string | undefined, change: (record: TurnRecord) => TurnRecord): void {
    const record = promptId === undefined ? undefined : this.#turns.get(promptId);
    if (record && record.state !== "ended") this.#turns.set(record.promptId, change(record));
  }

  #hearEcho(conversation: Conversation, told: Told): void {
    const place = told.promptId === undefined ? undefined : this.#turns.get(told.promptId)?.place.prompt;
    const agentMessageId = textOf(told.update["messageId"]);
    if (place !== undefined && agentMessageId !== undefined) {
      conversation.transcript.bind(place, agentMessageId, told.id);
    }
  }

  /** Add or update an announced child. `parentId`: the child that announced it. */
  #announce(told: Told, parentId: string | undefined, parent: Child | undefined): void {
    const childId = textOf(told.update["sessionId"]);
    if (childId === undefined || childId === this.sessionId) return;
    const { at, promptId, after } = told;
    if (!this.#children.has(childId) && !this.#earlierChildren.has(childId)) {
      const child = this.#child(childId, at);
      child.record = changed<ChildRecord>(child.record, { parentId, promptId });
      const conversation = parentId === undefined ? this.#own : parent?.conversation;
      if (conversation && told.id > (parent?.asOf ?? 0)) {
        const item: Item = { item: "child", at, childId };
        conversation.transcript.add(changed<Item>(item, { promptId, after }), told.id);
      }
    }
    const child = this.#child(childId, at);
    if (told.id > child.recordAsOf) child.record = announced(child.record, told.update);
  }

  /** Return a child, creating it if it is unknown. */
  #child(childId: string, at: number): Child {
    let child = this.#children.get(childId);
    if (child === undefined) {
      const isWhole = !this.#earlierChildren.has(childId);
      const { speaker } = this.#own.transcript;
      const conversation = isWhole ? new Conversation({ lastEventId: 0, first: 0, items: [] }, speaker) : undefined;
      child = new Child(changed<ChildRecord>({ childId }, { announcedAt: at || undefined }), conversation, isWhole);
      this.#children.set(childId, child);
    }
    return child;
  }

  // -- turns ---------------------------------------------------------------------------------------------------

  #turnEvent(event: AnyEvent, type: string, id: number): void {
    const promptId = textOf((event.data as Members)["promptId"]) ?? event.promptId;
    if (promptId === undefined) return;
    const record = stepped(this.#turns.get(promptId), promptId, event);
    if (record === undefined) return;
    this.#turns.set(promptId, record);
    this.#queue = undefined;
    const transcript = this.#own.transcript;
    switch (type) {
      case "user_message": {
        const told = toldOf(event as EventOf<"session_update">, id);
        this.#place(record, { prompt: addPrompt(transcript, told, event.author, event.originatorClientId) });
        break;
      }
      case "prompt_inserted": {
        const { agentMessageId } = (event as EventOf<"prompt_inserted">).data;
        if (record.place.prompt !== undefined) transcript.bind(record.place.prompt, agentMessageId, id);
        break;
      }
      case "turn_started":
        this.#place(record, { first: transcript.end });
        this.#active = promptId;
        break;
      case "prompt_cancelled":
        markCancelled(transcript, record.place.first, promptId, id);
        break;
      case "turn_complete":
      case "turn_error":
        this.#endTurn(record, id);
        break;
      default:
        break;
    }
  }

  #endTurn(record: TurnRecord, id: number): void {
    const { promptId, place } = record;
    if (this.#active !== promptId) return;
    this.#active = undefined;
    markOpen(this.#own.transcript, place.first, promptId, workIds(this.#own.background), id);
    const answer = this.#findAnswer(record);
    if (answer !== undefined) this.#place(record, { answer });
  }

  /** Return the place of the agent's last message in a turn. */
  #findAnswer({ promptId, place }: TurnRecord): number | undefined {
    const { transcript } = this.#own;
    if (place.first === undefined) return undefined;
    for (let at = transcript.end - 1; at >= Math.max(place.first, transcript.first); at--) {
      const item = transcript.at(at);
      if (item?.item !== "message" || item.role !== "agent" || item.promptId !== promptId) continue;
      if (nestedUnder(item.meta) === undefined) return at;
    }
    return undefined;
  }

  #place(record: TurnRecord, place: TurnRecord["place"]): void {
    this.#turns.set(record.promptId, { ...record, place: { ...record.place, ...place } });
  }

  // -- what waits ----------------------------------------------------------------------------------------------

  #hearOfWaiting(event: AnyEvent): void {
    if (event.type === "permission_resolved") {
      const { requestId } = event.data;
      this.#answered.delete(requestId);
      this.#answered.set(requestId, { ...event.data, at: timeOf(event) });
      if (this.#answered.size > KEPT_ANSWERS) this.#answered.delete(this.#answered.keys().next().value as string);
    }
    if ((event.id ?? 0) <= this.#waitsAsOf) return;
    const waits = waitsAfter(this.#waits, event);
    if (waits === this.#waits) return;
    this.#waits = waits;
    this.#queue = undefined;
  }

  #waiting({ promptId, place, queuedAt, author, clientId }: TurnRecord): Waiting {
    const content = place.waiting ?? this.promptOf(promptId) ?? [];
    const steering = this.#waits.steering.get(promptId);
    return changed<Waiting>({ promptId, content }, { queuedAt, author, clientId, steering });
  }

  // -- bringing what was read a moment ago to where the view is ------------------------------------------------

  /** Apply an event that is newer than an older page. */
  #catchUp(older: Conversation, event: AnyEvent): void {
    const id = event.id as number;
    const promptId = event.promptId ?? "";
    const place = this.#turns.get(promptId)?.place;
    if (event.type === "session_update" && storedType(event) !== "user_message") {
      const told = toldOf(event, id);
      if (event.data.child !== undefined || (event.data.names && told.kind === ANNOUNCES)) return;
      if (event.data.echo) this.#hearEcho(older, told);
      else older.hear(told);
    } else if (event.type === "agent_started") {
      const { agentSessionId, protocolVersion, how } = event.data;
      older.background = undefined;
      older.transcript.start(agentSessionId, protocolVersion, how);
    } else if (event.type === "agent_exited" || event.type === "session_closed") older.background = undefined;
    else if (event.type === "permission_request" && event.data.child === undefined) {
      const told = { id, at: timeOf(event), promptId: event.data.promptId };
      applyPermissionRequest(older.transcript, told, event.data.params);
    } else if (event.type === "prompt_inserted" && place?.prompt !== undefined) {
      older.transcript.bind(place.prompt, event.data.agentMessageId, id);
    } else if (place?.first === undefined) return;
    else if (event.type === "prompt_cancelled") markCancelled(older.transcript, place.first, promptId, id);
    else if (event.type === "turn_complete" || event.type === "turn_error") {
      markOpen(older.transcript, place.first, promptId, workIds(older.background), id);
    }
  }

  /** The same for a child's transcript. */
  #hearChild(conversation: Conversation, childId: string, event: AnyEvent): void {
    const id = event.id as number;
    if (event.type === "agent_exited" || event.type === "session_closed") conversation.background = undefined;
    else if (event.type === "permission_request" && event.data.child === childId) {
      const told = { id, at: timeOf(event), promptId: event.data.promptId };
      applyPermissionRequest(conversation.transcript, told, event.data.params);
    } else if (event.type === "session_update" && event.data.child === childId && !event.data.echo) {
      const told = toldOf(event, id);
      if (event.data.names && told.kind === ANNOUNCES) this.#showAnnouncement(conversation, childId, told);
      else conversation.hear(told);
    }
  }

  /** A child announced by a child, in a transcript that was read before. */
  #showAnnouncement(conversation: Conversation, parentId: string, { id, at, update, promptId, after }: Told): void {
    const childId = textOf(update["sessionId"]);
    const record = childId === undefined ? undefined : this.#children.get(childId)?.record;
    const isShown = conversation.items.some((each) => each.item === "child" && each.childId === childId);
    if (childId === undefined || record?.parentId !== parentId || isShown) return;
    conversation.transcript.add(changed<Item>({ item: "child", at, childId }, { promptId, after }), id);
  }

  /** The record of a child that was announced before the newest page. */
  #learnOfChild(record: ChildRecord, asOf: number, since: readonly AnyEvent[]): void {
    const known = this.#children.get(record.childId);
    if (known?.isWhole) return;
    const child = known ?? new Child(record, undefined, true);
    child.record = record;
    child.isWhole = true;
    child.recordAsOf = asOf;
    this.#children.set(record.childId, child);
    for (const event of since) {
      const id = event.id as number;
      if (event.type === "agent_exited" || event.type === "session_closed") {
        if (child.record.state !== "idle") child.record = withState(child.record, "unknown");
      } else if (event.type === "session_update") {
        const told = toldOf(event, id);
        if (event.data.names && told.kind === ANNOUNCES && told.update["sessionId"] === record.childId) {
          child.record = announced(child.record, told.update);
        } else if (event.data.child === record.childId && STATES.has(told.kind)) {
          child.record = withState(child.record, readState(told.update["state"]));
        }
      }
    }
  }
}

function timeOf(event: AnyEvent): number {
  return event._meta?.serverTimestamp ?? 0;
}

/** Return an update with our ids of sessions. */
function toldOf(event: EventOf<"session_update">, id: number): Told {
  const { update, after, names } = event.data;
  const kind = update.sessionUpdate as string;
  const members = update as unknown as Members;
  const shown = names ? renamed(kind, members, names) : members;
  return { id, at: timeOf(event), kind, update: shown, promptId: event.promptId, after };
}

function workIds(background: unknown): ReadonlySet<string> {
  return new Set(readBackground(background)?.flatMap(({ id }) => (id === undefined ? [] : [id])));
}
