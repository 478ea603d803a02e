/**
 * The change of a file, line by line, from either form that agents send: old and new text (v1), or a Git patch (v2).
 * Unchanged lines far from a change are folded.
 */

import { edits } from "./edits.js";
import { type Members, members, text } from "./told.js";

export type Side = "old" | "new";

export interface Line {
  readonly kind: "same" | "added" | "removed";
  /** Line number in the file, from 1, on the sides that have the line. */
  readonly old?: number;
  readonly new?: number;
  readonly text: string;
}
/** Lines that the agent left out. */
export interface Gap {
  readonly kind: "gap";
  /** Their number, if known. */
  readonly count: number;
}

export interface FileChange {
  readonly path: string;
  /** The previous path, if it differs. */
  readonly oldPath?: string;
  /** `add`, `delete`, `modify`, `move`, `copy`, or an agent-specific kind. */
  readonly operation: string;
  readonly isBinary: boolean;
  readonly lines: readonly (Line | Gap)[];
  readonly added: number;
  readonly removed: number;
}

/** The members of a diff in v1 or v2. */
export interface ToldDiff {
  readonly path?: unknown;
  readonly oldText?: unknown;
  readonly newText?: unknown;
  readonly changes?: unknown;
  readonly patch?: unknown;
}

/** Return the file changes of a diff. In v2 the list of changes decides, and the patch has their lines. */
export function fileChanges(diff: ToldDiff): FileChange[] {
  if (!Array.isArray(diff.changes)) {
    const old = typeof diff.oldText === "string" ? diff.oldText : undefined;
    return [changeOfTexts(text(diff.path), old, text(diff.newText))];
  }
  const patched = changesOfPatch(text(members(diff.patch)["text"]));
  const told = diff.changes.map((each) => toldChange(members(each)));
  const missing = told.filter((each) => !patched.some((other) => isSamePath(other.path, each.path)));
  return [...patched, ...missing];
}

function toldChange(told: Members): FileChange {
  const oldPath = text(told["oldPath"]);
  return {
    path: text(told["path"]) || oldPath,
    ...(oldPath === "" ? {} : { oldPath }),
    operation: text(told["operation"]) || "modify",
    isBinary: told["fileType"] === "binary",
    lines: [],
    added: 0,
    removed: 0,
  };
}

/** The paths of a patch may lack the leading slash of the change. */
function isSamePath(one: string, other: string): boolean {
  return one === other || one.replace(/^\//, "") === other.replace(/^\//, "");
}

// -- texts ----------------------------------------------------------------------------------------------------

/** Without an old text the file is new. */
export function changeOfTexts(path: string, old: string | undefined, next: string): FileChange {
  const before = old === undefined ? [] : splitLines(old);
  const after = splitLines(next);
  const lines: Line[] = [];
  let [oldLine, newLine] = [1, 1];
  for (const kind of edits(before, after)) {
    if (kind === "added") lines.push({ kind, new: newLine, text: after[newLine++ - 1]! });
    else if (kind === "removed") lines.push({ kind, old: oldLine, text: before[oldLine++ - 1]! });
    else lines.push({ kind, old: oldLine++, new: newLine, text: after[newLine++ - 1]! });
  }
  return counted({ path, operation: old === undefined ? "add" : "modify", isBinary: false, lines });
}

/** Only a line feed ends a line; the end of the text ends the last one. */
function splitLines(whole: string): string[] {
  const lines = whole.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.map((each) => (each.endsWith("\r") ? each.slice(0, -1) : each));
}

function counted(change: Omit<FileChange, "added" | "removed">): FileChange {
  const count = (kind: string): number => change.lines.reduce((sum, each) => sum + (each.kind === kind ? 1 : 0), 0);
  return { ...change, added: count("added"), removed: count("removed") };
}

// -- patches --------------------------------------------------------------------------------------------------

/** Return the change of each file in a patch: one or more Git sections, or a bare unified diff. */
export function changesOfPatch(patch: string): FileChange[] {
  return sections(patch).map(changeOfSection);
}

function sections(patch: string): string[][] {
  const found: string[][] = [];
  let [old, next] = [0, 0];
  for (const line of splitLines(patch)) {
    const isInHunk = old > 0 || next > 0;
    const isBare =
      !isInHunk && line.startsWith("--- ") && (found.at(-1)?.some((each) => each.startsWith("--- ")) ?? true);
    if (!isInHunk && (line.startsWith("diff --git ") || isBare)) found.push([]);
    found.at(-1)?.push(line);
    const range = isInHunk ? null : hunkRange(line);
    if (range) [old, next] = [range.oldCount, range.newCount];
    else if (isInHunk && !line.startsWith("\\")) {
      if (!line.startsWith("+")) old--;
      if (!line.startsWith("-")) next--;
    }
  }
  return found;
}

interface Range {
  readonly old: number;
  readonly oldCount: number;
  readonly new: number;
  readonly newCount: number;
}

function hunkRange(line: string): Range | undefined {
  const match = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
  if (match === null) return undefined;
  const count = (told: string | undefined): number => (told === undefined ? 1 : Number(told));
  return { old: Number(match[1]), oldCount: count(match[2]), new: Number(match[3]), newCount: count(match[4]) };
}

function changeOfSection(section: readonly string[]): FileChange {
  const begin = section.findIndex((each) => each.startsWith("@@ "));
  const head = begin < 0 ? section : section.slice(0, begin);
  const named = (prefix: string): string | undefined => {
    const line = head.find((each) => each.startsWith(prefix));
    return line === undefined ? undefined : pathOf(line.slice(prefix.length));
  };
  const [from, to] = [named("--- "), named("+++ ")];
  const [first, second] = gitPaths(head[0] ?? "");
  const renamedFrom = named("rename from ") ?? named("copy from ");
  const isAdd = from === NOWHERE || named("new file mode ") !== undefined;
  const isDelete = to === NOWHERE || named("deleted file mode ") !== undefined;
  const oldPath = renamedFrom ?? (from === NOWHERE ? undefined : from) ?? first;
  const path = named("rename to ") ?? named("copy to ") ?? (to === NOWHERE ? undefined : to) ?? second;
  const [a, b] = [withoutPrefix(isAdd ? path : oldPath), withoutPrefix(isDelete ? oldPath : path)];
  const moved =
    named("copy from ") !== undefined ? "copy" : renamedFrom !== undefined || a !== b ? "move" : "modify";
  return counted({
    path: b ?? a ?? "",
    ...(a === undefined || a === b ? {} : { oldPath: a }),
    operation: isAdd ? "add" : isDelete ? "delete" : moved,
    isBinary: head.some((each) => each.startsWith("Binary files ") || each === "GIT binary patch"),
    lines: begin < 0 ? [] : hunkLines(section.slice(begin)),
  });
}

const NOWHERE = "/dev/null";

/**
 * Return a path from a Git header: quoted if it has unusual characters, followed by a tab and a time from other tools.
 */
function pathOf(written: string): string {
  if (!written.startsWith('"')) return written.split("\t")[0]!;
  const bytes: number[] = [];
  const inner = written.slice(1, written.lastIndexOf('"'));
  for (const [part, octal, escaped] of inner.matchAll(/\\([0-7]{3})|\\(.)|[^\\]+/gs)) {
    if (octal !== undefined) bytes.push(parseInt(octal, 8));
    else bytes.push(...new TextEncoder().encode(escaped === undefined ? part : (ESCAPES[escaped] ?? escaped)));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

const ESCAPES: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r" };

/** Return the two paths of `diff --git`. Spaces make it ambiguous, unless both paths are equal. */
function gitPaths(line: string): [string?, string?] {
  const both = line.startsWith("diff --git ") ? line.slice("diff --git ".length) : "";
  const quoted = /^("(?:\\.|[^"\\])*"|\S+) ("(?:\\.|[^"\\])*"|\S+)$/.exec(both);
  if (quoted !== null) return [pathOf(quoted[1]!), pathOf(quoted[2]!)];
  const [one, other] = [both.slice(0, (both.length - 1) / 2), both.slice((both.length + 1) / 2)];
  return one.slice(2) === other.slice(2) && one !== "" ? [one, other] : [];
}

/** Git prefixes paths with `a/` and `b/`; ACP does not. */
function withoutPrefix(path: string | undefined): string | undefined {
  return path?.replace(/^[ab]\//, "");
}

function hunkLines(section: readonly string[]): (Line | Gap)[] {
  const lines: (Line | Gap)[] = [];
  let [oldLine, newLine] = [1, 1];
  let [oldLeft, newLeft] = [0, 0];
  for (const line of section) {
    const range = oldLeft > 0 || newLeft > 0 ? undefined : hunkRange(line);
    if (range) {
      // The number of an empty side is that of the line before it.
      const [old, next] = [range.old + (range.oldCount === 0 ? 1 : 0), range.new + (range.newCount === 0 ? 1 : 0)];
      if (next > newLine || old > oldLine)
        lines.push({ kind: "gap", count: Math.max(next - newLine, old - oldLine) });
      [oldLine, newLine, oldLeft, newLeft] = [old, next, range.oldCount, range.newCount];
    } else if (line.startsWith("+") && newLeft > 0) {
      newLeft--;
      lines.push({ kind: "added", new: newLine++, text: line.slice(1) });
    } else if (line.startsWith("-") && oldLeft > 0) {
      oldLeft--;
      lines.push({ kind: "removed", old: oldLine++, text: line.slice(1) });
    } else if (oldLeft > 0 && newLeft > 0 && !line.startsWith("\\")) {
      oldLeft--;
      newLeft--;
      lines.push({ kind: "same", old: oldLine++, new: newLine++, text: line.slice(1) });
    }
  }
  return lines;
}

// -- what is shown --------------------------------------------------------------------------------------------

/** Unchanged lines that are folded. */
export interface Fold {
  readonly kind: "fold";
  readonly lines: readonly Line[];
}
export type Row = Line | Gap | Fold;

const CONTEXT = 3;

/** Return the lines, with a fold in place of lines further than `context` from a change. */
export function folded(lines: readonly (Line | Gap)[], context = CONTEXT): Row[] {
  const rows: Row[] = [];
  for (let start = 0; start < lines.length;) {
    let end = start;
    while (end < lines.length && lines[end]!.kind === "same") end++;
    if (end === start) {
      rows.push(lines[end]!);
      start = end + 1;
      continue;
    }
    const run = lines.slice(start, end) as readonly Line[];
    const before = start === 0 || lines[start - 1]!.kind === "gap" ? 0 : context;
    const after = end === lines.length || lines[end]!.kind === "gap" ? 0 : context;
    // The agent chose the lines of a patch, and folding a single line saves no room.
    if (run.length <= before + after + 1 || lines.some((each) => each.kind === "gap")) rows.push(...run);
    else {
      rows.push(...run.slice(0, before), { kind: "fold", lines: run.slice(before, run.length - after) });
      rows.push(...run.slice(run.length - after));
    }
    start = end;
  }
  return rows;
}

/** A row of two sides; the other side of a line may be empty. */
export interface Pair {
  readonly kind: "pair";
  readonly old?: Line;
  readonly new?: Line;
}

/** Return rows side by side: removed lines opposite the added lines that replace them. */
export function sideBySide(rows: readonly Row[]): (Pair | Gap | Fold)[] {
  const pairs: (Pair | Gap | Fold)[] = [];
  let removed: Line[] = [];
  let added: Line[] = [];
  const flush = (): void => {
    for (let index = 0; index < Math.max(removed.length, added.length); index++) {
      const [old, next] = [removed[index], added[index]];
      pairs.push({ kind: "pair", ...(old && { old }), ...(next && { new: next }) });
    }
    [removed, added] = [[], []];
  };
  for (const row of rows) {
    if (row.kind === "gap" || row.kind === "fold") {
      flush();
      pairs.push(row);
    } else if (row.kind === "same") {
      flush();
      pairs.push({ kind: "pair", old: row, new: row });
    } else if (row.kind === "added") {
      added.push(row);
    } else {
      if (added.length > 0) flush();
      removed.push(row);
    }
  }
  flush();
  return pairs;
}
