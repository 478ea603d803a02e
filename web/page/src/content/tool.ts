/**
 * What a tool call does and what became of it, from the words of various agents: the command it runs, the files it
 * changes, the text it shows, how it stands. What an agent leaves out is not there.
 */

import type { ContentBlock, ToolCallContent } from "@turnwire/client";

import { changeOfTexts, changesOfPatch, fileChanges, type FileChange, type ToldDiff } from "./change.js";
import type { TerminalItem, Terminals, ToolCallItem } from "./items.js";
import { type Members, members } from "./told.js";
import { visible } from "./visible.js";

/** What a call is read from: an item of the transcript, or the call of a permission request. */
export type ToldCall = Partial<Omit<ToolCallItem, "item">>;

/** Kinds of calls whose input may be a command. Some editing tools call what they do to a file a command, too. */
const RUNS = new Set(["execute", "other"]);

/** The command that it runs. */
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
  // `bash -lc LINE`: the line is what a person wants to read.
  return words.length === 3 && /^-.*c$/.test(words[1]!) ? words[2] : joined(words);
}

/** Words as a shell would take them. */
function joined(words: readonly string[]): string {
  return words
    .map((each) => (/^[\w@%+=:,./-]+$/.test(each) ? each : `'${each.replaceAll("'", `'"'"'`)}'`))
    .join(" ");
}

/** Where the command runs, if the agent says so. */
export function folderOf(call: ToldCall, terminals: readonly TerminalItem[] = []): string | undefined {
  const given = members(call.rawInput);
  const named = ["cwd", "workdir", "directory"].map((each) => given[each]).find((each) => typeof each === "string");
  return (named as string | undefined) ?? terminals.find((each) => each.cwd)?.cwd ?? undefined;
}

/** What it shows, without what is nothing that could be shown. */
export function contentOf(call: ToldCall): readonly ToolCallContent[] {
  const told: readonly unknown[] = Array.isArray(call.content) ? call.content : [];
  return told.filter((each): each is ToolCallContent => typeof each === "object" && each !== null);
}

/** The places that it works at. */
export function placesOf(call: ToldCall): string[] {
  const told: readonly unknown[] = Array.isArray(call.locations) ? call.locations : [];
  return told.map(members).flatMap(({ path, line }) => {
    if (!isText(path)) return [];
    return typeof line === "number" ? `${path}:${line}` : path;
  });
}

/** How it changes files: as it shows, or else as its input says. */
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

/** The content blocks that it shows: text, images, resources. */
export function blocksOf(call: ToldCall): ContentBlock[] {
  return contentOf(call).flatMap((each) => {
    const { type, content } = each as { readonly type: string; readonly content?: unknown };
    return type === "content" && typeof content === "object" && content !== null ? [content as ContentBlock] : [];
  });
}

/** The terminals among what it shows of which something is known. */
export function terminalsOf(call: ToldCall, terminals: Terminals | undefined): TerminalItem[] {
  return contentOf(call).flatMap((each) => (isTerminal(each) ? (terminals?.get(each.terminalId) ?? []) : []));
}

function isTerminal(
  content: ToolCallContent,
): content is { readonly type: "terminal"; readonly terminalId: string } {
  return content.type === "terminal" && typeof (content as Members)["terminalId"] === "string";
}

/** By which names agents give what a command wrote, if they show it nowhere else. */
const OUTPUTS = ["formatted_output", "output", "stdout", "text"];

/** What it gave, as text; empty if it gave none. */
export function outputOf(call: ToldCall): string {
  const given = call.rawOutput;
  if (typeof given === "string") return given;
  return OUTPUTS.map((each) => members(given)[each]).find(isText) ?? "";
}

/** Text without the fence that some agents put around all of it. */
export function unfenced(text: string): string {
  const lines = text.replace(/^\n+|\n+$/g, "").split("\n");
  const isFenced = lines.length > 1 && lines[0]!.startsWith("```") && lines.at(-1)!.trim() === "```";
  return isFenced ? lines.slice(1, -1).join("\n") : text;
}

/** How its command ended, in words; empty if well, or if it is not known. */
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

/** A finished call is what the agent says; an unfinished one may be what its turn made of it. */
export function stateOf(call: ToldCall, exit = ""): ToolState {
  const said = SAID[call.status ?? "pending"] ?? "running";
  // A command that did not end with 0 has failed, whatever the agent calls it.
  if (said === "completed" && exit !== "") return "failed";
  if (said === "completed" || said === "failed" || said === "cancelled") return said;
  if (call.cancelledLocally) return "cancelled";
  return call.openAtEnd ? "left open" : said;
}

/** Whether it is still at work. */
export function isAtWork(state: ToolState): boolean {
  return state === "pending" || state === "running" || state === "paused";
}

/** What it is called, without the quotes that some agents put around a command. */
export function titleOf(call: ToldCall): string {
  const title = (call.title || call.name || call.toolCallId || "").trim();
  return visible(title.replace(/^`([^`]+)`$/, "$1"));
}

function isText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}
