/** The list of turns: read once, and updated by events. */

import type { AnyEvent, TurnStatus } from "@turnwire/client";

import { objectOf, rowOf, wordOf } from "./rows.js";

/** A turn of the list. */
export interface TurnEntry {
  readonly promptId: string;
  /** Its number in order of arrival, from 1. */
  readonly number: number;
  readonly text: string;
  readonly author?: string | undefined;
  readonly byAgent: boolean;
  readonly queuedAt?: number | undefined;
  readonly startedAt?: number | undefined;
  readonly endedAt?: number | undefined;
  /** The stop reason or the code of the error; before the end, the state. */
  readonly end: string;
  readonly isError: boolean;
}

export type Turns = ReadonlyMap<string, TurnEntry>;

/** A member of `GET …/turns` that the client's types lack. */
type Told = TurnStatus & { readonly origin?: string };

export function turnsOf(told: readonly TurnStatus[]): Turns {
  const turns = new Map<string, TurnEntry>();
  for (const each of told as readonly Told[]) {
    if (each.promptId === null) continue;
    turns.set(each.promptId, {
      promptId: each.promptId,
      number: turns.size + 1,
      text: each.promptText ?? "",
      author: each.author,
      byAgent: each.origin === "agent",
      queuedAt: each.queuedAt,
      startedAt: each.startedAt,
      endedAt: each.endedAt,
      end: each.error?.code ?? each.stopReason ?? each.detailState ?? each.state,
      isError: each.error !== undefined,
    });
  }
  return turns;
}

/** Return the entry updated by an event; the same object if nothing changes. */
export function foldTurns(turns: Turns, event: AnyEvent): Turns {
  const row = rowOf(event);
  if (!row || row.turn === undefined || event.late) return turns;
  const before = turns.get(row.turn);
  const told = before?.endedAt === undefined ? changeOf(row.kind, event.data as Said, row.at) : undefined;
  if (!told) return turns;
  const blank = { promptId: row.turn, number: turns.size + 1, text: "", byAgent: false, end: "queued", isError: false };
  const entry = { ...(before ?? { ...blank, author: event.author }), ...told };
  return new Map(turns).set(row.turn, entry);
}

type Said = Readonly<Record<string, unknown>>;

function changeOf(kind: string, data: Said, at: number): Partial<TurnEntry> | undefined {
  switch (kind) {
    case "prompt_accepted":
      return { queuedAt: at, end: "queued", ...("content" in data ? { text: wordsOf(data["content"]) } : {}) };
    case "pending_prompt_added":
    case "pending_prompt_updated": {
      const text = wordOf(data["text"]);
      return text === undefined ? undefined : { text };
    }
    case "user_message":
      return { text: wordsOf(objectOf(data["update"])["content"]) };
    case "turn_started": {
      const byAgent = data["origin"] === "agent";
      return { startedAt: at, byAgent, end: "running", ...(byAgent ? { queuedAt: at } : {}) };
    }
    case "turn_blocked":
      return { end: "requires_action" };
    case "turn_unblocked":
      return { end: "running" };
    case "prompt_cancelled":
      return { end: "cancelling" };
    case "turn_complete":
      return { endedAt: at, end: String(data["stopReason"]) };
    case "turn_error":
      return { endedAt: at, end: String(data["code"]), isError: true };
    default:
      return undefined;
  }
}

function wordsOf(content: unknown): string {
  const blocks = Array.isArray(content) ? content : [content];
  return blocks.map((each) => wordOf(objectOf(each)["text"]) ?? "").join("");
}
