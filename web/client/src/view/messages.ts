/**
 * Messages: chunks that append, whole messages that patch, the user's prompts; and compactions of the agent's memory.
 * Each fold changes or adds one item and returns whether the update could be applied.
 *
 * A chunk without an id continues the last item, if that is a message of the same role and turn. Messages inside a tool
 * call are separate. Late chunks never change the text of a turn: `inTime` keeps it.
 */

import type { ContentBlock } from "../acp.js";
import {
  type Compaction,
  ELSEWHERE,
  type Items,
  type Message,
  type MessageRole,
  type Told,
  endedTurn,
} from "./items.js";
import { type Members, Patch, changed, entriesOf, membersOf, textOf } from "./patch.js";

const ROLES: Readonly<Record<string, MessageRole>> = {
  user_message_chunk: "user",
  agent_message_chunk: "agent",
  agent_thought_chunk: "thought",
  user_message: "user",
  agent_message: "agent",
  agent_thought: "thought",
};

/** Append a block to a message. */
export function appendChunk(items: Items, told: Told): boolean {
  const block = membersOf(told.update["content"]) as ContentBlock | undefined;
  if (block === undefined) return false;
  const meta = told.update["_meta"] === undefined ? undefined : new Patch(told.update, false).meta(undefined);
  const nested = nestedUnder(meta);
  const found = continued(items, told, textOf(told.update["messageId"]), nested);
  if (found !== undefined) {
    const message = { ...found.message, content: appended(found.message.content ?? [], block) };
    keep(items, told, found.place, nested === undefined ? message : { ...message, meta: { ...message.meta, ...meta } });
  }
  return true;
}

/** A v2 message: an absent content keeps the old one, null clears, a list replaces. */
export function updateWhole(items: Items, told: Told): boolean {
  const messageId = textOf(told.update["messageId"]);
  if (messageId === undefined) return false;
  const found = continued(items, told, messageId);
  if (found !== undefined) {
    const patch = new Patch(told.update, true);
    const { content, meta } = found.message;
    const changes = { content: patch.entries("content", content), meta: patch.meta(meta) };
    keep(items, told, found.place, changed<Message>(found.message, changes));
  }
  return true;
}

interface Found {
  /** Undefined for a new message. */
  readonly place: number | undefined;
  readonly message: Message;
}

/** Return the message that an update changes; undefined for a prompt, or if it is not loaded. */
function continued(items: Items, told: Told, messageId: string | undefined, nested?: string): Found | undefined {
  const role = ROLES[told.kind] as MessageRole;
  const place = messageId === undefined ? lastMessage(items, told, role, nested) : items.find(role, messageId);
  if (place === undefined) {
    const { at, promptId, after } = told;
    const message: Message = { item: "message", at, role };
    return { place, message: changed<Message>(message, { promptId, after, messageId }) };
  }
  const message = items.at(place);
  if (message?.item !== "message" || message.isPrompt) return undefined;
  const after = endedTurn(message, told);
  if (after === undefined) return { place, message };
  const inTime = message.inTime ?? (message.promptId === undefined ? undefined : (message.content ?? []));
  return { place, message: changed<Message>(message, { after, inTime }) };
}

function keep(items: Items, told: Told, place: number | undefined, message: Message): void {
  if (place === undefined) items.add(message, told.id);
  else items.put(place, message, {}, told.id);
}

function lastMessage(items: Items, told: Told, role: MessageRole, nested: string | undefined): number | undefined {
  const place = items.last;
  if (place === undefined || place === ELSEWHERE) return place;
  const last = items.at(place);
  const follows =
    last?.item === "message" &&
    last.role === role &&
    !last.isPrompt &&
    (last.life ?? 0) === (items.speaker.life ?? 0) &&
    last.promptId === told.promptId &&
    last.after === told.after &&
    nestedUnder(last.meta) === nested;
  return follows ? place : undefined;
}

/** Return the tool call that contains an update, by its `_meta`. */
export function nestedUnder(meta: Members | undefined): string | undefined {
  for (const value of Object.values(meta ?? {})) {
    const parent = textOf(membersOf(value)?.["parentToolUseId"]);
    if (parent !== undefined) return parent;
  }
  return undefined;
}

/** Append a block; consecutive plain texts are joined. */
function appended(blocks: readonly ContentBlock[], block: ContentBlock): readonly ContentBlock[] {
  const last = blocks.at(-1);
  const text = last === undefined ? undefined : plainText(last);
  const more = text === undefined ? undefined : plainText(block);
  if (text === undefined || more === undefined) return [...blocks, block];
  return [...blocks.slice(0, -1), { type: "text", text: text + more }];
}

function plainText(block: ContentBlock): string | undefined {
  if (block.type !== "text" || typeof block.text !== "string") return undefined;
  for (const name in block) if (name !== "type" && name !== "text") return undefined;
  return block.text;
}

// -- prompts -------------------------------------------------------------------------------------------------

/** Add a client's prompt; return its place. */
export function addPrompt(items: Items, told: Told, author: string | undefined, clientId: string | undefined): number {
  const isPiece = told.kind === "user_message_chunk";
  const given = told.update["content"];
  const content = (isPiece ? [given] : (entriesOf(given) ?? [given])) as readonly ContentBlock[];
  const { at, promptId } = told;
  const messageId = textOf(told.update["messageId"]);
  const before = items.last === undefined ? undefined : items.at(items.last);
  // In v1 each block is a separate envelope.
  if (before?.item === "message" && before.isPrompt && before.firstEventId === told.id) {
    items.put(items.end - 1, before, { content: [...(before.content ?? []), ...content] }, told.id);
    return items.end - 1;
  }
  const message: Message = { item: "message", at, role: "user", isPrompt: true };
  const said = { promptId, messageId, author, clientId, content: content.length ? content : undefined };
  return items.add(changed<Message>(message, said), told.id);
}

// -- compactions ---------------------------------------------------------------------------------------------

/** `compaction_update`: a patch, in which null clears in both versions. */
export function updateCompaction(items: Items, told: Told): boolean {
  const patch = new Patch(told.update, true);
  return changeCompaction(items, told, ({ status, summary, error, meta }) => ({
    status: patch.word("status", status, "in_progress"),
    summary: patch.entries("summary", summary),
    error: patch.text("error", error),
    meta: patch.meta(meta),
  }));
}

/** `compaction_summary_chunk`: append a block. */
export function appendSummary(items: Items, told: Told): boolean {
  const block = membersOf(told.update["content"]) as ContentBlock | undefined;
  if (block === undefined) return false;
  return changeCompaction(items, told, ({ summary = [] }) => ({ summary: appended(summary, block) }));
}

function changeCompaction(
  items: Items,
  told: Told,
  change: (before: Compaction) => { readonly [Name in keyof Compaction]?: Compaction[Name] | undefined },
): boolean {
  const compactionId = textOf(told.update["compactionId"]);
  if (compactionId === undefined) return false;
  const place = items.find("compaction", compactionId);
  if (place === undefined) {
    const { at, promptId, after } = told;
    const blank: Compaction = { item: "compaction", at, compactionId };
    items.add(changed<Compaction>(blank, { promptId, after, ...change(blank) }), told.id);
    return true;
  }
  const before = items.at(place);
  if (before?.item === "compaction") {
    const after = endedTurn(before, told) ?? before.after;
    items.put(place, before, { after, ...change(before) }, told.id);
  }
  return true;
}
