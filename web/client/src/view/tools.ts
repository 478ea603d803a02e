/**
 * Tool calls, and the terminals of v2 agents that some of them run in. Each fold gives whether the update could be
 * applied. An update for an unseen id makes the call. No status is invented: that a call was left unfinished is a mark
 * beside what the agent said last. A terminal's output is bytes, because a chunk may end inside of a character.
 */

import type { ToolCallContent } from "../acp.js";
import { type Items, type Told, type ToolCall, endedTurn } from "./items.js";
import { type Members, Patch, changed, entriesOf, membersOf, textOf } from "./patch.js";

export const FINAL_STATUS: ReadonlySet<string | undefined> = new Set(["completed", "failed", "cancelled"]);

/** v1 `tool_call`: replaces all fields, at the call's place if it has one. */
export function announceToolCall(items: Items, told: Told): boolean {
  return changeToolCall(items, told, () => patched({}, new Patch(told.update, true)));
}

/** `tool_call_update`: what null means depends on the version. */
export function updateToolCall(items: Items, told: Told): boolean {
  const patch = new Patch(told.update, items.nullClears);
  return changeToolCall(items, told, (before) => patched(before, patch));
}

/** v2 `tool_call_content_chunk`. */
export function appendContent(items: Items, told: Told): boolean {
  const more = membersOf(told.update["content"]) as ToolCallContent | undefined;
  if (more === undefined) return false;
  return changeToolCall(items, told, ({ content = [] }) => ({ content: [...content, more] }));
}

/** The tool call that a permission request is about: an ordinary update. v1 has it in the params, v2 in the subject. */
export function applyPermissionRequest(items: Items, told: Omit<Told, "kind" | "update">, params: unknown): void {
  const update = callOf(params);
  if (update !== undefined) updateToolCall(items, { ...told, kind: "tool_call_update", update });
}

/** Return the tool call in the params of a permission request. */
export function callOf(params: unknown): Members | undefined {
  const members = membersOf(params);
  const subject = membersOf(members?.["subject"]);
  return membersOf((subject && Object.keys(subject).length ? subject : members)?.["toolCall"]);
}

type Changes = { readonly [Name in keyof ToolCall]?: ToolCall[Name] | undefined };

function changeToolCall(items: Items, told: Told, change: (before: Partial<ToolCall>) => Changes): boolean {
  const toolCallId = textOf(told.update["toolCallId"]);
  if (toolCallId === undefined) return false;
  const place = items.find("tool_call", toolCallId);
  if (place === undefined) {
    const { at, promptId, after } = told;
    const blank: ToolCall = { item: "tool_call", at, toolCallId };
    items.add(changed<ToolCall>(blank, { promptId, after, ...change(blank) }), told.id);
    return true;
  }
  const before = items.at(place);
  if (before?.item === "tool_call") {
    const after = endedTurn(before, told) ?? before.after;
    items.put(place, before, { after, ...change(before) }, told.id);
  }
  return true;
}

function patched(before: Partial<ToolCall>, patch: Patch): Changes {
  return {
    name: patch.text("name", before.name),
    title: patch.text("title", before.title),
    kind: patch.word("kind", before.kind, "other"),
    status: patch.word("status", before.status, "pending"),
    content: patch.entries("content", before.content),
    locations: patch.entries("locations", before.locations),
    rawInput: patch.raw("rawInput", before.rawInput),
    rawOutput: patch.raw("rawOutput", before.rawOutput),
    capabilities: patch.raw("capabilities", before.capabilities),
    meta: patch.meta(before.meta),
  };
}

// -- the turn's word -----------------------------------------------------------------------------------------

/** The turn, whose output begins at `first`, was asked to cancel. */
export function markCancelled(items: Items, first: number | undefined, promptId: string, id: number): void {
  for (const [place, call] of unfinished(items, first, promptId)) {
    items.put(place, call, { cancelledLocally: true }, id);
  }
}

/** The turn ended. Work that the agent lists as background continues and is not left open. */
export function markOpen(
  items: Items,
  first: number | undefined,
  promptId: string,
  background: ReadonlySet<string>,
  id: number,
): void {
  for (const [place, call] of unfinished(items, first, promptId)) {
    const names = [call.toolCallId, ...terminalIds(call)];
    if (!names.some((each) => background.has(each))) items.put(place, call, { openAtEnd: true }, id);
  }
}

function unfinished(items: Items, first = 0, promptId: string): (readonly [number, ToolCall])[] {
  const found: (readonly [number, ToolCall])[] = [];
  for (let place = Math.max(first, items.first); place < items.end; place++) {
    const item = items.at(place);
    if (item?.item !== "tool_call" || item.promptId !== promptId || FINAL_STATUS.has(item.status)) continue;
    found.push([place, item]);
  }
  return found;
}

function terminalIds(call: ToolCall): string[] {
  const named = (call.content ?? []).map((each) => textOf(membersOf(each)?.["terminalId"]));
  return named.filter((each) => each !== undefined);
}

// -- background work -----------------------------------------------------------------------------------------

export interface Work {
  readonly kind: string;
  /** Undefined for a kind whose ids are unknown here. */
  readonly id: string | undefined;
}
const ID_OF: readonly (readonly [kind: string, member: string])[] = [
  ["terminal", "terminalId"],
  ["tool_call", "toolCallId"],
  ["subagent", "sessionId"],
];

/** What an agent lists as running in the background; none if it is no list of objects. */
export function readBackground(background: unknown): readonly Work[] | undefined {
  const listed = entriesOf(background)?.map(membersOf);
  if (listed === undefined || listed.includes(undefined)) return undefined;
  return (listed as Members[]).map((each) => {
    const read = ID_OF.map(([kind, member]) => [kind, textOf(each[member])] as const);
    const named = read.filter(([, id]) => id !== undefined);
    const kind = textOf(each["type"]) ?? named[0]?.[0] ?? "unknown";
    return { kind, id: named.find(([other]) => other === kind)?.[1] || named[0]?.[1] };
  });
}

// -- terminals -----------------------------------------------------------------------------------------------

/** A terminal as the daemon tells it. */
export interface StoredTerminal {
  readonly terminalId: string;
  readonly at: number;
  readonly command?: string;
  readonly cwd?: string;
  /** Base64. */
  readonly output: string;
  readonly exitStatus?: unknown;
  readonly size?: unknown;
  readonly capabilities?: unknown;
  readonly meta?: Members;
  readonly life?: number;
}

/** A terminal that an agent runs. */
export interface Terminal extends Omit<StoredTerminal, "output"> {
  readonly output: Uint8Array;
}

export function terminalOf(stored: StoredTerminal): Terminal {
  return { ...stored, output: decoded(stored.output) ?? new Uint8Array() };
}

/** `terminal_update`: a patch, in which null clears. */
export function updateTerminal(terminals: Map<string, Terminal>, told: Told, life: number): boolean {
  const before = terminalFor(terminals, told, life);
  if (before === undefined) return false;
  const patch = new Patch(told.update, true);
  const changes = {
    command: patch.text("command", before.command),
    cwd: patch.text("cwd", before.cwd),
    exitStatus: patch.raw("exitStatus", before.exitStatus),
    size: patch.raw("size", before.size),
    capabilities: patch.raw("capabilities", before.capabilities),
    meta: patch.meta(before.meta),
    output: outputAfter(before.output, told.update["output"]),
  };
  terminals.set(before.terminalId, changed<Terminal>(before, changes));
  return true;
}

/** `terminal_output_chunk`. An unseen id is a terminal of which nothing else is known yet. */
export function appendOutput(terminals: Map<string, Terminal>, told: Told, life: number): boolean {
  const more = decoded(textOf(told.update["data"]));
  const before = more === undefined ? undefined : terminalFor(terminals, told, life);
  if (more === undefined || before === undefined) return false;
  terminals.set(before.terminalId, { ...before, output: joined(before.output, more) });
  return true;
}

function terminalFor(terminals: Map<string, Terminal>, told: Told, life: number): Terminal | undefined {
  const terminalId = textOf(told.update["terminalId"]);
  if (terminalId === undefined) return undefined;
  const known = terminals.get(terminalId);
  if (known !== undefined && (known.life ?? 0) === life) return known;
  return { terminalId, at: told.at, output: new Uint8Array(), ...(life ? { life } : {}) };
}

function outputAfter(before: Uint8Array, snapshot: unknown): Uint8Array {
  if (snapshot === null) return new Uint8Array();
  return decoded(textOf(membersOf(snapshot)?.["data"])) ?? before;
}

/** Both, one after the other. The buffer has room to grow, so that a thousand chunks are not a thousand copies. */
function joined(before: Uint8Array, more: Uint8Array): Uint8Array {
  const length = before.length + more.length;
  const { buffer, byteOffset } = before;
  const room = grown.get(buffer as ArrayBuffer);
  if (byteOffset === 0 && room === before.length && buffer.byteLength >= length) {
    const bytes = new Uint8Array(buffer, 0, length);
    bytes.set(more, before.length);
    grown.set(buffer as ArrayBuffer, length);
    return bytes;
  }
  const roomy = new Uint8Array(Math.max(length * 2, 256));
  roomy.set(before);
  roomy.set(more, before.length);
  grown.set(roomy.buffer, length);
  return roomy.subarray(0, length);
}

/** Length of the used part of a buffer: only the holder of all of it may append. */
const grown = new WeakMap<ArrayBuffer, number>();

/** Base64 without anything else in it. */
function decoded(encoded: string | undefined): Uint8Array | undefined {
  if (encoded === undefined || encoded.length % 4 || /[^A-Za-z0-9+/]/.test(encoded.replace(/={1,2}$/, ""))) {
    return undefined;
  }
  return Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
}
