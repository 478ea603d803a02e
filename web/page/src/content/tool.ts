/**
 * The action and result of a tool call, from the dialects of various agents: its command, its file changes, its text
 * and its state. Members that an agent leaves out are absent.
 */

import type { ContentBlock, ToolCallContent } from "@turnwire/client";

import { changeOfTexts, changesOfPatch, fileChanges, type FileChange, type ToldDiff } from "./change.js";
import type { TerminalItem, Terminals, ToolCallItem } from "./items.js";
import { type Members, members } from "./told.js";
import { visible } from "./visible.js";

/** A source of a call: an item of the transcript, or the call of a permission request. */
export type ToldCall = Partial<Omit<ToolCallItem, "item">>;

/** Kinds of calls whose input may be a command. Some editing tools have a `command` that is none. */
const RUNS = new Set(["execute", "other"]);

/** Return the command that the call runs. */
export function commandOf(call: ToldCall, terminals: readonly TerminalItem[] = []): string | undefined {
  const given = RUNS.has(call.kind ?? "other") ? commandIn(call.rawInput) : undefined;
  return given ?? terminals.find((each) => each.command)?.command ?? undefined;
}

function commandIn(given: unknown): string | undefined {
  const { command, cmd, args: further } = members(given);
  const line = command || cmd;
  if (typeof line === "string") return Array.isArray(further) ? joined([line, ...further.map(String)]) : line;
  if (!Array.isArray(line) || line.length === 0) return undefined;
  const words = line.map(String);
  // For `bash -lc LINE`, return the line.
  return words.length === 3 && /^-.*c$/.test(words[1]!) ? words[2] : joined(words);
}

/** Join words with shell quoting. */
function joined(words: readonly string[]): string {
  return words
    .map((each) => (/^[\w@%+=:,./-]+$/.test(each) ? each : `'${each.replaceAll("'", `'"'"'`)}'`))
    .join(" ");
}

/** Return the directory of the command, if the agent reports it. */
export function folderOf(call: ToldCall, terminals: readonly TerminalItem[] = []): string | undefined {
  const given = members(call.rawInput);
  const named = ["cwd", "workdir", "directory"].map((each) => given[each]).find((each) => typeof each === "string");
  return (named as string | undefined) ?? terminals.find((each) => each.cwd)?.cwd ?? undefined;
}

/** Return the call's content without malformed entries. */
export function contentOf(call: ToldCall): readonly ToolCallContent[] {
  const told: readonly unknown[] = Array.isArray(call.content) ? call.content : [];
  return told.filter((each): each is ToolCallContent => typeof each === "object" && each !== null);
}

/** Return the files and lines that the call works at. */
export function placesOf(call: ToldCall): string[] {
  const told: readonly unknown[] = Array.isArray(call.locations) ? call.locations : [];
  return told.map(members).flatMap(({ path, line }) => {
    if (!isText(path)) return [];
    return typeof line === "number" ? `${path}:${line}` : path;
  });
}

/** Return the file changes in its content, else those in its input. */
export function changesOf(call: ToldCall): FileChange[] {
  const shown = contentOf(call).flatMap((each) => (each.type === "diff" ? fileChanges(each as ToldDiff) : []));
  return shown.length > 0 ? shown : changesIn(call.rawInput);
}

function changesIn(input: unknown): FileChange[] {
  const given = members(input);
  const path = [given["file_path"], given["filePath"], given["filepath"], given["path"]].find(isText) ?? "";
  const patch = given["diff"];
  if (isText(patch)) return changesOfPatch(patch).map((each) => (each.path === "" ? { ...each, path } : each));
  const [old, next] = [given["old_string"] ?? given["oldString"], given["new_string"] ?? given["newString"]];
  return typeof old === "string" && typeof next === "string" ? [changeOfTexts(path, old, next)] : [];
}

/** Return the content blocks: text, images, resources. */
export function blocksOf(call: ToldCall): ContentBlock[] {
  return contentOf(call).flatMap((each) => {
    const { type, content } = each as { readonly type: string; readonly content?: unknown };
    return type === "content" && typeof content === "object" && content !== null ? [content as ContentBlock] : [];
  });
}

/** Return the known terminals in its content. */
export function terminalsOf(call: ToldCall, terminals: Terminals | undefined): TerminalItem[] {
  return contentOf(call).flatMap((each) => (isTerminal(each) ? (terminals?.get(each.terminalId) ?? []) : []));
}

function isTerminal(
  content: ToolCallContent,
): content is { readonly type: "terminal"; readonly terminalId: string } {
  return content.type === "terminal" && typeof (content as Members)["terminalId"] === "string";
}

/** Names under which agents report the output of a command if it is nowhere else. */
const OUTPUTS = ["formatted_output", "output", "stdout", "text"];

/** Return the output as text; empty if there is none. */
export function outputOf(call: ToldCall): string {
  const given = call.rawOutput;
  if (typeof given === "string") return given;
  return OUTPUTS.map((each) => members(given)[each]).find(isText) ?? "";
}

/** Return the text without the fence that some agents put around it. */
export function unfenced(text: string): string {
  const lines = text.replace(/^\n+|\n+$/g, "").split("\n");
  const isFenced = lines.length > 1 && lines[0]!.startsWith("```") && lines.at(-1)!.trim() === "```";
  return isFenced ? lines.slice(1, -1).join("\n") : text;
}

/** Return how the command ended, in words; empty for success, or if unknown. */
export function exitOf(call: ToldCall, terminals: readonly TerminalItem[] = []): string {
  const ends = terminals.map((each) => members(each.exitStatus));
  const signal = ends.map((each) => each["signal"]).find(isText);
  if (signal !== undefined) return signal;
  const given = members(call.rawOutput);
  const codes = [...ends.map((each) => each["exitCode"]), given["exitCode"], given["exit_code"]];
  const code = codes.find((each) => typeof each === "number");
  return code === undefined || code === 0 ? "" : `exit ${code}`;
}

// -- how it stands --------------------------------------------------------------------------------------------

export type ToolState = "pending" | "running" | "paused" | "completed" | "failed" | "cancelled" | "left open";

const SAID: Readonly<Record<string, ToolState>> = {
  pending: "pending",
  in_progress: "running",
  paused: "paused",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
};

/**
 * Return the state of a call: the agent's status if it has finished; an unfinished call may have ended with its turn.
 */
export function stateOf(call: ToldCall, exit = ""): ToolState {
  const said = SAID[call.status ?? "pending"] ?? "running";
  // A command with another exit code than 0 has failed, whatever the agent reports.
  if (said === "completed" && exit !== "") return "failed";
  if (said === "completed" || said === "failed" || said === "cancelled") return said;
  if (call.cancelledLocally) return "cancelled";
  return call.openAtEnd ? "left open" : said;
}

/** Whether the call is still running. */
export function isAtWork(state: ToolState): boolean {
  return state === "pending" || state === "running" || state === "paused";
}

/** Return the title, without the backticks that some agents put around a command. */
export function titleOf(call: ToldCall): string {
  const title = (call.title || call.name || call.toolCallId || "").trim();
  return visible(title.replace(/^`([^`]+)`$/, "$1"));
}

function isText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}
