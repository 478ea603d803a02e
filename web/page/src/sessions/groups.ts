/** The list of sessions as rows: those with open requests, those at work, and the others by day. Pure. */

import type { Badge, ListedSession } from "../state/session_list.js";

/** A match of a search in a message. */
export interface FoundWords {
  /** `user`, `agent` or `tool`. */
  readonly role: string;
  readonly snippet: string;
  /** Start and end of each word in the snippet. */
  readonly marks?: readonly (readonly [number, number])[];
}

export type Row =
  | { readonly row: "heading"; readonly words: string; readonly count: number }
  | { readonly row: "session"; readonly listed: ListedSession; readonly found: readonly FoundWords[] };

const AT_WORK: ReadonlySet<Badge> = new Set(["working", "cancelling", "stalled", "queued", "held", "background"]);
const DAY_MS = 86_400_000;

/** Return the rows of sessions, which are ordered from the newest; groups keep that order. */
export function rowsOf(sessions: readonly ListedSession[], nowMs: number, canAnswer = true): Row[] {
  const asking = canAnswer ? "Needs you" : "Waiting";
  const groups = new Map<string, ListedSession[]>([
    [asking, []],
    ["Working", []],
  ]);
  const dayWords = dayNamer(nowMs);
  for (const each of sessions) {
    const words = groupOf(each, asking, dayWords);
    const group = groups.get(words);
    if (group) group.push(each);
    else groups.set(words, [each]);
  }
  const rows: Row[] = [];
  for (const [words, group] of groups) {
    if (!group.length) continue;
    rows.push({ row: "heading", words, count: group.length });
    for (const listed of group) rows.push({ row: "session", listed, found: [] });
  }
  return rows;
}

function groupOf({ entry, badge }: ListedSession, asking: string, dayWords: (thenMs: number) => string): string {
  if (badge === "needs_you") return asking;
  if (AT_WORK.has(badge)) return "Working";
  return dayWords(Date.parse(entry.updatedAt));
}

/** Return a function that names days: today, yesterday, a weekday, a month. It creates few dates for many calls. */
function dayNamer(nowMs: number): (thenMs: number) => string {
  const today = new Date(nowMs).setHours(0, 0, 0, 0);
  const words = new Map<number, string>();
  return (thenMs) => {
    const day = Math.floor((today - thenMs) / DAY_MS) + 1;
    let name = words.get(day);
    if (name === undefined) {
      name = nameOf(new Date(thenMs), day);
      words.set(day, name);
    }
    return name;
  };
}

/** `day` is 0 for today or later, 1 for yesterday, and so on. */
function nameOf(then: Date, day: number): string {
  if (day <= 0) return "Today";
  if (day === 1) return "Yesterday";
  if (day < 7) return then.toLocaleDateString("en-GB", { weekday: "long" });
  return then.toLocaleDateString("en-GB", { month: "long", year: "numeric" });
}

// -- what a search found -------------------------------------------------------------------------------------

export interface MarkedPart {
  readonly text: string;
  readonly isMarked: boolean;
}

/** Characters that are shown before the first match. */
const BEFORE = 24;

/** Split a text at the words of a search, to mark them. */
export function markedParts(text: string, search: string): MarkedPart[] {
  const words = search.split(/\s+/).filter(Boolean);
  if (!words.length) return [{ text, isMarked: false }];
  const any = new RegExp(words.map((each) => each.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "giu");
  return partsAt(text, [...text.matchAll(any)].map(({ 0: word, index }) => [index, index + word.length]));
}

/** Return a snippet in one line, from shortly before its first match. */
export function foundParts({ snippet, marks = [] }: FoundWords): MarkedPart[] {
  const parts = partsAt(snippet.replace(/\s/g, " "), marks);
  const [first, ...rest] = parts;
  if (!first || first.isMarked || !rest.length || first.text.length <= BEFORE + 2) return parts;
  return [{ text: `… ${first.text.slice(-BEFORE).replace(/^\S*\s/, "")}`, isMarked: false }, ...rest];
}

function partsAt(text: string, marks: readonly (readonly [number, number])[]): MarkedPart[] {
  const parts: MarkedPart[] = [];
  let at = 0;
  for (const [from, to] of marks) {
    parts.push({ text: text.slice(at, from), isMarked: false }, { text: text.slice(from, to), isMarked: true });
    at = to;
  }
  parts.push({ text: text.slice(at), isMarked: false });
  return parts.filter((part) => part.text);
}
