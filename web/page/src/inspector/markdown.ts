/** A conversation as Markdown, for readers without turnwire. */

import type { ContentBlock, ToolCallContent, Transcript } from "@turnwire/client";
import type { Item, ToolCall, TurnRecord } from "@turnwire/client/view";

import { bytesOf, terminalLines } from "../content/ansi.js";
import { type FileChange, type Line, fileChanges, folded } from "../content/change.js";
import { wordOf } from "./rows.js";
import { momentOf } from "./time.js";

export interface MarkdownOptions {
  /** Thoughts are left out by default. */
  readonly thoughts?: boolean;
}

type Told = Pick<Transcript, "sessionId" | "title" | "items" | "turns" | "terminals">;

/** Join the pages of a transcript, which were read from the newest to the oldest. */
export function assembled(pages: readonly Transcript[]): Told {
  const inOrder = [...pages].reverse();
  const turns = new Map(inOrder.flatMap((each) => each.turns.map((turn) => [turn.promptId, turn] as const)));
  return {
    ...pages[0]!,
    items: inOrder.flatMap((each) => each.items),
    turns: [...turns.values()],
    terminals: Object.assign({}, ...inOrder.map((each) => each.terminals)) as NonNullable<Told["terminals"]>,
  };
}

/** Return the document: a heading for each turn, messages, tool calls with their changes and output. */
export function markdownOf(transcript: Told, { thoughts = false }: MarkdownOptions = {}): string {
  const turns = new Map(transcript.turns.map((each, index) => [each.promptId, { record: each, number: index + 1 }]));
  const parts = [`# ${oneLine(transcript.title ?? transcript.sessionId)}`];
  let current: string | undefined;
  const close = () => {
    const turn = current === undefined ? undefined : turns.get(current);
    if (turn) parts.push(...endOf(turn.record));
  };
  for (const item of transcript.items) {
    const told = partOf(item, transcript.terminals ?? {}, thoughts);
    if (told === "") continue;
    // A late item stands where it arrived, under the turn that it followed.
    const turn = item.promptId ?? item.after;
    if (turn !== undefined && turn !== current) {
      close();
      current = turn;
      parts.push(headingOf(turns.get(turn), item));
    }
    parts.push(told);
  }
  close();
  return `${parts.join("\n\n")}\n`;
}

function headingOf(turn: { record: TurnRecord; number: number } | undefined, { at }: Item): string {
  if (!turn) return `## Turn · ${momentOf(at)}`;
  const { acceptedAt, startedAt, author, origin } = turn.record;
  const who = origin === "agent" ? "begun by the agent" : author;
  return ["## Turn " + turn.number, momentOf(acceptedAt ?? startedAt ?? at), who].filter(Boolean).join(" · ");
}

/** Return how a turn ended, if that is notable. */
function endOf({ outcome }: TurnRecord): string[] {
  if (outcome?.error) return [`*Failed: ${outcome.error.code}, ${oneLine(outcome.error.message)}*`];
  const reason = outcome?.stopReason;
  return reason === undefined || reason === "end_turn" ? [] : [`*Ended: ${reason}*`];
}

const SPEAKERS = { user: "User", agent: "Agent", thought: "Thought" };

function partOf(item: Item, terminals: NonNullable<Told["terminals"]>, thoughts: boolean): string {
  const late = item.after === undefined ? "" : " (late)";
  switch (item.item) {
    case "message": {
      const words = wordsOf(item.content ?? []);
      if (words === "" || (item.role === "thought" && !thoughts)) return "";
      return `### ${SPEAKERS[item.role]}${late}\n\n${item.role === "thought" ? quoted(words) : words}`;
    }
    case "tool_call":
      return [toolHeading(item, late), ...(item.content ?? []).map((each) => contentOf(each, terminals))]
        .filter(Boolean)
        .join("\n\n");
    case "compaction":
      return `*The agent shortened its memory (${item.status ?? "in_progress"}).*`;
    case "child":
      return `*A child session began: ${item.childId}*`;
    default:
      return "";
  }
}

function toolHeading(call: ToolCall, late: string): string {
  return `### Tool: ${oneLine(call.title ?? call.name ?? call.toolCallId)} (${call.status ?? "pending"})${late}`;
}

function contentOf(content: ToolCallContent, terminals: NonNullable<Told["terminals"]>): string {
  switch (content.type) {
    case "content":
      // Output of a tool may look like Markdown by accident.
      return content.content.type === "text" ? fenced(content.content.text) : blockOf(content.content);
    case "diff":
      return fileChanges(content).map(changeOf).join("\n\n");
    case "terminal": {
      const terminal = terminals[content.terminalId];
      if (!terminal) return "";
      const output = terminalLines(new TextDecoder().decode(bytesOf(terminal.output)));
      const lines = output.map((spans) => spans.map((each) => each.text).join(""));
      return fenced([...(terminal.command ? [`$ ${terminal.command}`] : []), ...lines].join("\n"), "console");
    }
    default:
      return "";
  }
}

// -- changes of files --------------------------------------------------------------------------------------------

const SIGNS = { same: " ", added: "+", removed: "-" };

/** Return a change as a unified diff, or its path if its lines are unknown. */
function changeOf(change: FileChange): string {
  if (change.lines.length === 0) return `- ${change.operation} \`${change.path}\``;
  const hunks: Line[][] = [[]];
  for (const row of folded(change.lines)) {
    if (row.kind === "gap" || row.kind === "fold") hunks.push([]);
    else hunks.at(-1)!.push(row);
  }
  const lines = [
    `--- ${change.operation === "add" ? "/dev/null" : (change.oldPath ?? change.path)}`,
    `+++ ${change.operation === "delete" ? "/dev/null" : change.path}`,
    ...hunks.filter((each) => each.length > 0).flatMap((each) => [rangeOf(each), ...each.map((line) => SIGNS[line.kind] + line.text)]),
  ];
  return fenced(lines.join("\n"), "diff");
}

function rangeOf(hunk: readonly Line[]): string {
  const side = (name: "old" | "new") => {
    const numbers = hunk.flatMap((each) => each[name] ?? []);
    return `${numbers[0] ?? 0},${numbers.length}`;
  };
  return `@@ -${side("old")} +${side("new")} @@`;
}

// -- words -------------------------------------------------------------------------------------------------------

/** Consecutive chunks of text are joined; other blocks are separate. */
function wordsOf(content: readonly ContentBlock[]): string {
  return content
    .map((each) => (each.type === "text" ? each.text : `\n\n${blockOf(each)}\n\n`))
    .join("")
    .trim();
}

function blockOf(block: ContentBlock): string {
  switch (block.type) {
    case "text":
      return block.text;
    case "resource_link":
      return `[${oneLine(block.title ?? block.name)}](<${block.uri}>)`;
    case "resource": {
      const { uri, text } = block.resource;
      return `\`${uri}\`${text ? `\n\n${fenced(text)}` : ""}`;
    }
    default: {
      const mimeType = "mimeType" in block ? wordOf(block.mimeType) : undefined;
      return `*(${[block.type, mimeType].filter(Boolean).join(", ")})*`;
    }
  }
}

/** Return the text in a fence that is longer than any fence in it. */
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
