/**
 * The items of a transcript in order of their first appearance, indexed by the agent's ids. Their form is that of the
 * daemon's JSON, without members that have their default value.
 *
 *   I1  An item never moves. Its place counts from the first item of the whole transcript; its index here is the place
 *       minus `first`.
 *   I2  Items are immutable: a change replaces the object.
 *   I3  If an item was read later than an event, it includes the event's changes already.
 *   I4  Ids of the agent are valid within one incarnation of its session only.
 */

import type { ContentBlock, ToolCallContent } from "../acp.js";
import { type Members, changed } from "./patch.js";

/** Members of every item. */
export interface ItemFields {
  /** Time of its first appearance, in milliseconds of wall time. */
  readonly at: number;
  /** The turn of the item. */
  readonly promptId?: string;
  /** The ended turn that the item, or a change of it, followed: it is late. */
  readonly after?: string;
  readonly life?: number;
  /** The event of its first appearance. */
  readonly firstEventId?: number;
  /** The newest event that changed it. */
  readonly lastEventId?: number;
}
export type MessageRole = "user" | "agent" | "thought";

export interface Message extends ItemFields {
  readonly item: "message";
  readonly role: MessageRole;
  readonly messageId?: string;
  readonly content?: readonly ContentBlock[];
  readonly meta?: Members;
  /** It is a client's prompt. */
  readonly isPrompt?: boolean;
  readonly agentMessageId?: string;
  readonly author?: string;
  readonly clientId?: string;
  /** The content at the end of its turn, if it changed afterwards. */
  readonly inTime?: readonly ContentBlock[];
}
export interface ToolCall extends ItemFields {
  readonly item: "tool_call";
  readonly toolCallId: string;
  readonly name?: string;
  readonly title?: string;
  /** `other` by default. */
  readonly kind?: string;
  /** `pending` by default. */
  readonly status?: string;
  readonly content?: readonly ToolCallContent[];
  readonly locations?: readonly { readonly path: string; readonly line?: number | null }[];
  readonly rawInput?: unknown;
  readonly rawOutput?: unknown;
  readonly capabilities?: unknown;
  readonly meta?: Members;
  /** It was unfinished when its turn was cancelled. */
  readonly cancelledLocally?: boolean;
  /** It was unfinished when its turn ended, and not reported as background work. */
  readonly openAtEnd?: boolean;
}
/** The agent compacted its memory of the conversation. */
export interface Compaction extends ItemFields {
  readonly item: "compaction";
  readonly compactionId: string;
  /** `in_progress` by default. */
  readonly status?: string;
  readonly summary?: readonly ContentBlock[];
  readonly error?: string;
  readonly meta?: Members;
}
/** The announcement of a child session. */
export interface ChildSession extends ItemFields {
  readonly item: "child";
  readonly childId: string;
}
/** An update of an unknown kind, or without a required member. */
export interface Unknown extends ItemFields {
  readonly item: "unknown";
  readonly kind: string;
  readonly update: Members;
}
export type Item = Message | ToolCall | Compaction | ChildSession | Unknown;

/** The agent whose updates are folded now. */
export interface Speaker {
  readonly agentSessionId?: string;
  /** 1 by default. */
  readonly protocolVersion?: number;
  /** The incarnation of the agent's session; 0 by default. */
  readonly life?: number;
}

/** Items before a page that the agent may still change, by its ids. */
export interface Earlier {
  readonly toolCalls?: readonly string[];
  readonly compactions?: readonly string[];
  readonly children?: readonly string[];
}

/** An update to be applied to the items. */
export interface Told {
  /** The event's number. */
  readonly id: number;
  readonly at: number;
  readonly kind: string;
  readonly update: Members;
  readonly promptId?: string | undefined;
  readonly after?: string | undefined;
}

type Changes<Kind> = { readonly [Name in keyof Kind]?: Kind[Name] | undefined };

/** The place of an item that is not loaded: updates of it are ignored. */
export const ELSEWHERE = -1;

export class Items {
  readonly list: Item[];
  first: number;
  speaker: Speaker;
  /** Places of items that were added or replaced since the last call. */
  readonly changed = new Set<number>();
  readonly #places = new Map<string, number>();
  /** Places of items that were read after the current events, with the event up to which they are current. */
  readonly #ahead = new Map<number, number>();
  readonly #earlier: Set<string>;
  readonly #isOlder: boolean;

  /** `isOlder`: an older page, to which nothing is added. */
  constructor(
    page: { readonly items: readonly Item[]; readonly first: number; readonly earlier?: Earlier },
    speaker: Speaker,
    { isOlder = false } = {},
  ) {
    this.list = [...page.items];
    this.first = page.first;
    this.speaker = speaker;
    this.#isOlder = isOlder;
    const { toolCalls = [], compactions = [] } = page.earlier ?? {};
    this.#earlier = new Set([
      ...toolCalls.map((each) => `tool_call ${each}`),
      ...compactions.map((each) => `compaction ${each}`),
    ]);
    this.#indexAll();
  }

  /** Whether null in a patch clears a field, as in v2, or leaves it, as in v1. */
  get nullClears(): boolean {
    return (this.speaker.protocolVersion ?? 1) >= 2;
  }

  at(place: number): Item | undefined {
    return place < this.first ? undefined : this.list[place - this.first];
  }

  /** The place after the last item. */
  get end(): number {
    return this.first + this.list.length;
  }

  /**
   * Return the place of the item with the agent's id; `ELSEWHERE` if it is not loaded, undefined if there is no such
   * item.
   */
  find(kind: MessageRole | "tool_call" | "compaction", id: string): number | undefined {
    const place = this.#places.get(`${kind} ${id}`);
    if (place !== undefined) return place < this.first ? ELSEWHERE : place;
    return this.#isOlder || this.#earlier.has(`${kind} ${id}`) ? ELSEWHERE : undefined;
  }

  /** Return the place of the last item; `ELSEWHERE` if it is not loaded, undefined without items. */
  get last(): number | undefined {
    if (this.#isOlder) return ELSEWHERE;
    return this.list.length ? this.end - 1 : undefined;
  }

  add(item: Item, id: number): number {
    if (this.#isOlder) return ELSEWHERE;
    const place = this.end;
    const added = changed<Item>(item, { life: this.speaker.life || undefined, firstEventId: id, lastEventId: id });
    this.list.push(added);
    this.changed.add(place);
    this.#index(added, place);
    return place;
  }

  put<Kind extends Item>(place: number, item: Kind, changes: Changes<Kind>, id: number): void {
    if (place < this.first || (this.#ahead.get(place) ?? 0) >= id) return;
    this.list[place - this.first] = changed<Kind>(item, { ...changes, lastEventId: id });
    this.changed.add(place);
  }

  keepUnknown(told: Told): void {
    const { at, promptId, after, kind, update } = told;
    this.add(changed<Unknown>({ item: "unknown", at, kind, update }, { promptId, after }), told.id);
  }

  /** Store the agent's id for a prompt, unless the id is in use. */
  bind(place: number, agentMessageId: string, id: number): void {
    const key = `user ${agentMessageId}`;
    const prompt = this.at(place);
    if (this.#places.has(key) || (prompt?.item === "message" && prompt.agentMessageId !== undefined)) return;
    if (!this.#isOlder || prompt !== undefined) this.#places.set(key, place);
    if (prompt?.item !== "message") return;
    this.put(place, prompt, { agentMessageId, life: this.speaker.life || undefined }, id);
  }

  /** Another agent takes over. */
  start(agentSessionId: string, protocolVersion: number, how: string): void {
    const { agentSessionId: known, life = 0 } = this.speaker;
    // An agent that lost the session may use the old id for the new one.
    const isSame = protocolVersion >= 2 && agentSessionId === known && how !== "lost";
    this.speaker = { agentSessionId, protocolVersion, life: isSame ? life : life + 1 };
    if (isSame) return;
    this.#places.clear();
    this.#earlier.clear();
    // An older page may have been read after this event.
    this.#indexAll();
  }

  /** Prepend the page before; its items are current up to the event `asOf`. */
  prepend(page: { readonly items: readonly Item[]; readonly first: number }, asOf: number): void {
    this.list.unshift(...page.items);
    this.first = page.first;
    page.items.forEach((item, index) => {
      const place = page.first + index;
      this.changed.add(place);
      this.#ahead.set(place, asOf);
      this.#index(item, place);
    });
  }

  #indexAll(): void {
    this.list.forEach((item, index) => this.#index(item, this.first + index));
  }

  #index(item: Item, place: number): void {
    if ((item.life ?? 0) !== (this.speaker.life ?? 0)) return;
    if (item.item === "tool_call") this.#places.set(`tool_call ${item.toolCallId}`, place);
    else if (item.item === "compaction") this.#places.set(`compaction ${item.compactionId}`, place);
    else if (item.item === "message") {
      const id = item.isPrompt ? item.agentMessageId : item.messageId;
      if (id !== undefined) this.#places.set(`${item.role} ${id}`, place);
    }
  }
}

/** Return the ended turn that a change of `item` follows; undefined for a change in time, or by background work. */
export function endedTurn(item: ItemFields, told: Told): string | undefined {
  if (told.after !== undefined) return told.after;
  return told.promptId === undefined || told.promptId === item.promptId ? undefined : item.promptId;
}
