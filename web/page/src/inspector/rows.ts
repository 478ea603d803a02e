/** The columns of an event in the timeline: time, kind, turn, author, summary; and the filter. */

import type { AnyEvent } from "@turnwire/client";

/** An event of the log. */
export interface Row {
  readonly id: number;
  readonly at: number;
  /** The kind of the agent's update, else the event's type in the log. */
  readonly kind: string;
  /** Its turn, or the ended turn that it followed. */
  readonly turn: string | undefined;
  readonly event: AnyEvent;
}

/** Values in `data` come from a daemon or an agent and may be anything. */
type Said = Readonly<Record<string, unknown>>;

/** Return the row of an event; undefined for a frame that is not in the log. */
export function rowOf(event: AnyEvent): Row | undefined {
  const at = event._meta?.serverTimestamp;
  if (event.id === undefined || at === undefined) return undefined;
  const data = event.data as Said;
  return {
    id: event.id,
    at,
    kind: kindOf(event),
    turn: event.promptId ?? wordOf(data["promptId"]) ?? wordOf(data["after"]),
    event,
  };
}

function kindOf(event: AnyEvent): string {
  const told = event._meta?.event;
  if (told !== undefined) return told;
  const data = event.data as Said;
  const update = event.type === "session_update" ? wordOf(objectOf(data["update"])["sessionUpdate"]) : undefined;
  return update ?? event.type;
}

/** The colour of the mark next to the event. */
export type Tone = "user" | "words" | "thought" | "tool" | "permission" | "end" | "bad" | "turn" | "other";

const TONES: readonly (readonly [Tone, RegExp])[] = [
  ["bad", /^(turn_error|agent_exited|choices_lost|cancel_escalated|prompt_cancelled|child_cancelled)$/],
  ["end", /^turn_complete$/],
  ["permission", /^(permission_|turn_blocked|turn_unblocked)/],
  ["tool", /^(tool_call|terminal_)/],
  ["user", /^user_message/],
  ["words", /^agent_message/],
  ["thought", /^agent_thought/],
  ["turn", /^(prompt_|pending_prompt_|turn_|queue_)/],
];

export function toneOf(kind: string): Tone {
  return TONES.find(([, pattern]) => pattern.test(kind))?.[0] ?? "other";
}

// -- one line ------------------------------------------------------------------------------------------------

const LONGEST = 240;
/** Members that have their own columns, or are the same in every row. */
const TOLD_ELSEWHERE = new Set(["sessionId", "promptId", "author", "clientId", "sessionUpdate", "_meta"]);

/** Return the event in one line. */
export function summaryOf(event: AnyEvent): string {
  const data = event.data as Said;
  const line = event.type === "session_update" ? ofUpdate(objectOf(data["update"])) : ofEvent(event.type, data);
  const marks = [event.late ? "late" : "", data["echo"] === true ? "echo" : "", childOf(data)];
  return oneLine([...marks, line].filter(Boolean).join(" · "));
}

function ofUpdate(update: Said): string {
  const text = textOf(update["content"]);
  const call = wordOf(update["toolCallId"]);
  if (call !== undefined) return dotted(wordOf(update["title"]) ?? call, wordOf(update["status"]), text);
  if (text) return text;
  const entries = update["entries"] ?? objectOf(update["plan"])["entries"];
  if (Array.isArray(entries)) {
    const done = entries.filter((each) => objectOf(each)["status"] === "completed").length;
    return `${done} of ${entries.length} done`;
  }
  if (typeof update["used"] === "number") return `${update["used"]} of ${String(update["size"])} tokens`;
  return members(update);
}

function ofEvent(type: string, data: Said): string {
  switch (type) {
    case "permission_request": {
      const call = objectOf(data["toolCall"]);
      const options = Array.isArray(data["optionIds"]) ? data["optionIds"].join(", ") : undefined;
      return dotted(wordOf(data["title"]) ?? wordOf(call["title"]) ?? wordOf(data["method"]), options);
    }
    case "permission_resolved":
      return dotted(wordOf(data["end"]), wordOf(objectOf(data["outcome"])["optionId"]));
    case "turn_complete":
      return dotted(wordOf(data["stopReason"]), `told by ${String(data["ending"])}`);
    case "turn_error":
      return dotted(wordOf(data["code"]), wordOf(data["message"]));
    case "agent_started":
      return dotted(wordOf(data["how"]), `ACP v${String(data["protocolVersion"])}`);
    case "pending_prompt_added":
      return dotted(`place ${Number(data["position"]) + 1}`, wordOf(data["text"]));
    case "state_changed":
      return dotted(wordOf(data["state"]), data["origin"] === "agent" ? "begun by the agent" : undefined);
    default:
      return members(data);
  }
}

/** Members that summarize an event of an unknown kind in one word. */
function members(data: Said): string {
  const told = Object.entries(data).filter(([name, value]) => !TOLD_ELSEWHERE.has(name) && isWord(value));
  return told.map(([name, value]) => `${name} ${String(value)}`).join(" · ");
}

function isWord(value: unknown): boolean {
  return (typeof value === "string" && value !== "") || typeof value === "number" || typeof value === "boolean";
}

/** Return the text of one or several blocks, including those in the content of a tool call. */
function textOf(content: unknown): string {
  if (Array.isArray(content)) return content.map(textOf).filter(Boolean).join(" ");
  const block = objectOf(content);
  if (block["type"] === "content") return textOf(block["content"]);
  return wordOf(block["text"]) ?? wordOf(block["path"]) ?? wordOf(block["uri"]) ?? "";
}

function dotted(...parts: readonly (string | undefined)[]): string {
  return parts.filter(Boolean).join(" · ");
}

function oneLine(text: string): string {
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  return cut.replace(/\s+/g, " ");
}

/** Return the child session of an event, by its number. */
export function childOf(data: Said): string {
  const child = wordOf(data["child"]);
  return child === undefined ? "" : `child ${child.slice(child.lastIndexOf(".") + 1)}`;
}

export function wordOf(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

export function objectOf(value: unknown): Said {
  return typeof value === "object" && value !== null ? (value as Said) : {};
}

// -- which are shown -----------------------------------------------------------------------------------------

export interface Filter {
  readonly turn?: string | undefined;
  /** Only these; all if empty. */
  readonly kinds: ReadonlySet<string>;
  /** Minimum time since the previous event. */
  readonly gapMs: number;
  /** Text anywhere in the event, in any case. */
  readonly text: string;
}

export const EVERYTHING: Filter = { kinds: new Set(), gapMs: 0, text: "" };

export function showsAll(filter: Filter): boolean {
  return filter.turn === undefined && filter.kinds.size === 0 && filter.gapMs <= 0 && filter.text.trim() === "";
}

/** Whether a row passes the filter; `gapMs`: time since the previous event, if known. */
export function isShown(row: Row, gapMs: number | undefined, filter: Filter): boolean {
  if (filter.turn !== undefined && row.turn !== filter.turn) return false;
  if (filter.kinds.size > 0 && !filter.kinds.has(row.kind)) return false;
  if (filter.gapMs > 0 && (gapMs ?? 0) < filter.gapMs) return false;
  const sought = filter.text.trim().toLowerCase();
  return sought === "" || searched(row).includes(sought);
}

const texts = new WeakMap<Row, string>();

/** Cached for each row: every key typed into the filter asks for it again. */
function searched(row: Row): string {
  let text = texts.get(row);
  if (text === undefined) {
    text = `${row.kind} ${JSON.stringify(row.event)}`.toLowerCase();
    texts.set(row, text);
  }
  return text;
}
