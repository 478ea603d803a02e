/** A conversation as markdown, for a reader without our software. */

import type { Transcript } from "@turnwire/client";

import { objectOf, wordOf } from "./rows.js";
import { momentOf } from "./time.js";

export interface MarkdownOptions {
  /** Thoughts are left out unless they are asked for. */
  readonly thoughts?: boolean;
}

type Said = Readonly<Record<string, unknown>>;
type Told = Pick<Transcript, "sessionId" | "items" | "turns" | "title" | "terminals">;

/** All of a transcript: a heading for each turn, words as they are, tool calls with what they changed and printed. */
export function markdownOf(transcript: Told, { thoughts = false }: MarkdownOptions = {}): string {
  const numbers = new Map(transcript.turns.map((each, index) => [each.promptId, index + 1]));
  const turns = new Map(transcript.turns.map((each) => [each.promptId, each as Said]));
  const parts = [`# ${oneLine(transcript.title ?? transcript.sessionId)}`];
  let current: string | undefined;
  const close = () => {
    const end = current === undefined ? "" : endOf(turns.get(current));
    if (end) parts.push(end);
  };
  for (const item of transcript.items) {
    const told = partOf(item, transcript.terminals ?? {}, thoughts);
    if (told === "") continue;
    // What is late stands where it came, under the turn that it followed.
    const turn = wordOf(item["promptId"]) ?? wordOf(item["after"]);
    if (turn !== undefined && turn !== current) {
      close();
      current = turn;
      parts.push(headingOf(numbers.get(turn), turns.get(turn), item));
    }
    parts.push(told);
  }
  close();
  return `${parts.join("\n\n")}\n`;
}

function headingOf(number: number | undefined, turn: Said | undefined, item: Said): string {
  const at = turn?.["acceptedAt"] ?? turn?.["startedAt"] ?? item["at"];
  const author = wordOf(turn?.["author"]);
  const who = author ? ` · ${author}` : turn?.["origin"] === "agent" ? " · begun by the agent" : "";
  return `## Turn${number === undefined ? "" : ` ${number}`}${typeof at === "number" ? ` · ${momentOf(at)}` : ""}${who}`;
}

function endOf(turn: Said | undefined): string {
  const outcome = objectOf(turn?.["outcome"]);
  const error = objectOf(outcome["error"]);
  if (wordOf(error["code"])) return `*Failed: ${String(error["code"])}, ${oneLine(String(error["message"] ?? ""))}*`;
  const reason = wordOf(outcome["stopReason"]);
  return reason === undefined || reason === "end_turn" ? "" : `*Ended: ${reason}*`;
}

function partOf(item: Said, terminals: Readonly<Record<string, unknown>>, thoughts: boolean): string {
  const late = item["after"] === undefined ? "" : " (late)";
  switch (item["item"]) {
    case "message": {
      const role = String(item["role"]);
      if (role === "thought" && !thoughts) return "";
      const words = blocksOf(item["content"]);
      if (words === "") return "";
      return role === "thought" ? `### Thought${late}\n\n${quoted(words)}` : `### ${role === "user" ? "User" : "Agent"}${late}\n\n${words}`;
    }
    case "tool_call":
      return toolOf(item, terminals, late);
    case "compaction":
      return `*The agent shortened its memory (${String(item["status"] ?? "in_progress")}).*`;
    case "child":
      return `*A child session began: ${String(item["childId"])}*`;
    default:
      return "";
  }
}

function toolOf(call: Said, terminals: Readonly<Record<string, unknown>>, late: string): string {
  const name = oneLine(wordOf(call["title"]) ?? wordOf(call["name"]) ?? String(call["toolCallId"]));
  const head = `### Tool: ${name} (${String(call["status"] ?? "pending")})${late}`;
  const content = Array.isArray(call["content"]) ? call["content"] : [];
  return [head, ...content.map((each) => contentOf(objectOf(each), terminals)).filter(Boolean)].join("\n\n");
}

function contentOf(content: Said, terminals: Readonly<Record<string, unknown>>): string {
  switch (content["type"]) {
    case "content": {
      const block = objectOf(content["content"]);
      const text = wordOf(block["text"]);
      // What a tool prints may look like markdown and is not meant so.
      return text === undefined ? blockOf(block) : fenced(text);
    }
    case "diff":
      return diffOf(content);
    case "terminal": {
      const terminal = objectOf(terminals[String(content["terminalId"])]);
      const output = decoded(wordOf(terminal["output"]) ?? "");
      const command = wordOf(terminal["command"]);
      return command === undefined && output === "" ? "" : fenced(`${command === undefined ? "" : `$ ${command}\n`}${output}`, "console");
    }
    default:
      return "";
  }
}

/** A patch as the agent made it; else all old lines and all new ones, since a patch would be our guess at what it did. */
function diffOf(diff: Said): string {
  const patch = wordOf(objectOf(diff["patch"])["text"]);
  if (patch !== undefined) return fenced(patch, "diff");
  const path = wordOf(diff["path"]);
  if (path === undefined) {
    const changes = Array.isArray(diff["changes"]) ? diff["changes"].map(objectOf) : [];
    return changes.map((each) => `- ${String(each["operation"])} \`${String(each["path"] ?? each["oldPath"])}\``).join("\n");
  }
  const old = wordOf(diff["oldText"]);
  const [before, after] = [linesOf(old), linesOf(wordOf(diff["newText"]))];
  // What both begin and end with is the same in both.
  let same = 0;
  while (same < Math.min(before.length, after.length) && before[same] === after[same]) same++;
  let tail = 0;
  const most = Math.min(before.length, after.length) - same;
  while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const lead = before.slice(Math.max(same - CONTEXT, 0), same);
  const rest = before.slice(before.length - tail, before.length - tail + CONTEXT);
  const removed = before.slice(same, before.length - tail);
  const added = after.slice(same, after.length - tail);
  const first = same - lead.length;
  const lengths = [lead.length + removed.length + rest.length, lead.length + added.length + rest.length];
  const start = (length: number) => (length === 0 ? first : first + 1);
  const lines = [
    old === undefined ? "--- /dev/null" : `--- ${path}`,
    `+++ ${path}`,
    `@@ -${start(lengths[0]!)},${lengths[0]} +${start(lengths[1]!)},${lengths[1]} @@`,
    ...lead.map((each) => ` ${each}`),
    ...removed.map((each) => `-${each}`),
    ...added.map((each) => `+${each}`),
    ...rest.map((each) => ` ${each}`),
  ];
  return fenced(lines.join("\n"), "diff");
}

const CONTEXT = 3;

function linesOf(text: string | undefined): string[] {
  return text === undefined ? [] : text.replace(/\n$/, "").split("\n");
}

// -- words -----------------------------------------------------------------------------------------------------

function blocksOf(content: unknown): string {
  if (!Array.isArray(content)) return "";
  // Pieces of text go on where the last ended; anything else stands by itself.
  let words = "";
  for (const each of content.map(objectOf)) {
    const text = each["type"] === "text" ? String(each["text"] ?? "") : undefined;
    words += text ?? `\n\n${blockOf(each)}\n\n`;
  }
  return words.trim();
}

function blockOf(block: Said): string {
  const resource = objectOf(block["resource"]);
  switch (block["type"]) {
    case "text":
      return String(block["text"] ?? "");
    case "resource_link":
      return `[${oneLine(wordOf(block["title"]) ?? String(block["name"]))}](<${String(block["uri"])}>)`;
    case "resource": {
      const text = wordOf(resource["text"]);
      return `\`${String(resource["uri"])}\`${text === undefined ? "" : `\n\n${fenced(text)}`}`;
    }
    default:
      return `*(${String(block["type"] ?? "something that is no text")}${wordOf(block["mimeType"]) ? `, ${String(block["mimeType"])}` : ""})*`;
  }
}

/** Inside of a fence that is longer than any in it. */
function fenced(text: string, language = ""): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

function quoted(text: string): string {
  return text
    .split("\n")
    .map((each) => `> ${each}`.trimEnd())
    .join("\n");
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, " ").trim();
}

/** The output of a terminal is bytes, and comes in base64. */
function decoded(output: string): string {
  try {
    const bytes = Uint8Array.from(atob(output), (each) => each.charCodeAt(0));
    // Colours and cursor movements mean nothing in a file.
    return new TextDecoder().decode(bytes).replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");
  } catch {
    return "";
  }
}

/** One transcript of its pages, which were read from the newest to the oldest. */
export function assembled(pages: readonly Transcript[]): Transcript {
  const inOrder = [...pages].reverse();
  const turns = new Map(inOrder.flatMap((each) => each.turns.map((turn) => [turn.promptId, turn] as const)));
  return {
    ...pages[0]!,
    items: inOrder.flatMap((each) => each.items),
    turns: [...turns.values()],
    terminals: Object.assign({}, ...inOrder.map((each) => each.terminals ?? {})) as Record<string, unknown>,
  };
}
