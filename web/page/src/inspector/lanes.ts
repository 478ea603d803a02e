/** How a turn spent its time, from its events: in the queue, at the model, in tools, waiting for an answer. */

import type { AnyEvent } from "@turnwire/client";

import { type Row, childOf, objectOf, rowOf, wordOf } from "./rows.js";
import { type Span, joined, lengthOf, without } from "./time.js";

export const LANES = ["queue", "model", "tools", "permission", "cancel"] as const;
export type LaneName = (typeof LANES)[number];

export interface Bar extends Span {
  readonly name: string;
  /** `open`: no event reported its end. */
  readonly end: "done" | "failed" | "open";
  /** The event at which it begins. */
  readonly eventId: number;
  /** Overlapping bars of a lane are on different levels. */
  readonly level: number;
}

export interface Lanes extends Span {
  readonly lanes: Readonly<Record<LaneName, readonly Bar[]>>;
  /** How it ended; undefined while it is running. */
  readonly ended?: { readonly reason: string; readonly isError: boolean };
  readonly totalMs: number;
  readonly queueMs: number;
  /** Time from the prompt to the agent's first output. */
  readonly firstUpdateMs?: number;
  /** Overlapping times count once. */
  readonly toolsMs: number;
  readonly permissionMs: number;
  readonly toolCount: number;
}

type Begun = { name: string; from: number; to?: number; end: Bar["end"]; eventId: number };
type Said = Readonly<Record<string, unknown>>;

const FINAL = new Set(["completed", "failed", "cancelled"]);

/**
 * Return the lanes of one turn; undefined if none of its events is present. `now`: the current end of a running turn.
 */
export function lanesOf(events: Iterable<AnyEvent>, promptId: string, now = 0): Lanes | undefined {
  const fold = new LanesFold(promptId);
  for (const event of events) {
    const row = rowOf(event);
    if (row) fold.take(row);
  }
  return fold.lanes(now);
}

/** Return the same, updated with each event. */
export class LanesFold {
  readonly #promptId: string;
  #from: number | undefined;
  #last = 0;
  /** The first event at each time. */
  readonly #ids = new Map<number, number>();
  #startedAt: number | undefined;
  #askedAt: number | undefined;
  #joinedAt: number | undefined;
  #endedAt: number | undefined;
  #ended: Lanes["ended"];
  #firstUpdateAt: number | undefined;
  readonly #tools = new Map<string, Begun>();
  readonly #permissions = new Map<string, Begun>();
  readonly #cancels: Begun[] = [];

  constructor(promptId: string) {
    this.#promptId = promptId;
  }

  take({ event, kind, at, id, turn }: Row): void {
    // Late events came after the turn's end and do not count.
    if (turn !== this.#promptId || event.late) return;
    const data = event.data as Said;
    this.#from ??= at;
    if (!this.#ids.has(at)) this.#ids.set(at, id);
    this.#last = Math.max(this.#last, at);
    switch (kind) {
      case "turn_started":
        this.#startedAt ??= at;
        // A turn that the agent started itself has no prompt.
        if (data["origin"] === "agent") this.#askedAt = at;
        return;
      case "prompt_sent":
        this.#askedAt ??= at;
        return;
      case "prompt_injected":
        this.#joinedAt ??= at;
        return;
      case "permission_request":
        this.#permissions.set(String(data["requestId"]), {
          name: permissionName(data),
          from: at,
          end: "open",
          eventId: id,
        });
        this.#tool(subjectOf(data), data, at, id);
        return;
      case "permission_resolved": {
        const asked = this.#permissions.get(String(data["requestId"]));
        if (asked) Object.assign(asked, { to: at, end: data["end"] === "answered" ? "done" : "failed" });
        return;
      }
      case "prompt_cancelled":
      case "cancel_escalated": {
        const before = this.#cancels.at(-1);
        if (before) before.to = at;
        const name = kind === "prompt_cancelled" ? "cancel asked" : String(data["rung"]).replaceAll("_", " ");
        this.#cancels.push({ name, from: at, end: "open", eventId: id });
        return;
      }
      case "turn_complete":
        this.#endedAt = at;
        this.#ended = { reason: String(data["stopReason"]), isError: false };
        return;
      case "turn_error":
        this.#endedAt = at;
        this.#ended = { reason: String(data["code"]), isError: true };
        return;
      default:
        if (event.type === "session_update" && kind !== "user_message" && data["echo"] !== true) {
          this.#firstUpdateAt ??= at;
          this.#tool(objectOf(data["update"]), data, at, id);
        }
    }
  }

  #tool(call: Said, data: Said, at: number, id: number): void {
    const callId = wordOf(call["toolCallId"]);
    if (callId === undefined) return;
    const child = childOf(data);
    const key = `${child} ${callId}`;
    let tool = this.#tools.get(key);
    if (!tool) this.#tools.set(key, (tool = { name: callId, from: at, end: "open", eventId: id }));
    const name = wordOf(call["title"]) ?? wordOf(call["name"]);
    if (name !== undefined) tool.name = child ? `${name} (${child})` : name;
    const status = wordOf(call["status"]);
    if (status !== undefined && FINAL.has(status) && tool.to === undefined) {
      tool.to = at;
      tool.end = status === "completed" ? "done" : "failed";
    }
  }

  /** Return the lanes so far; undefined before the first event. */
  lanes(now = 0): Lanes | undefined {
    if (this.#from === undefined) return undefined;
    const from = this.#from;
    const to = this.#endedAt ?? Math.max(this.#last, now);
    const queuedUntil = this.#startedAt ?? this.#joinedAt ?? to;
    const tools = leveled([...this.#tools.values()], to);
    const permission = leveled([...this.#permissions.values()], to);
    const lanes = {
      queue: this.#waits(from, queuedUntil, to),
      model: this.#model(to, [...tools, ...permission]),
      tools,
      permission,
      cancel: leveled(this.#closed(to), to),
    };
    return {
      from,
      to,
      lanes,
      ...(this.#ended ? { ended: this.#ended } : {}),
      totalMs: to - from,
      queueMs: queuedUntil - from,
      ...this.#firstUpdate(),
      toolsMs: lengthOf(tools),
      permissionMs: lengthOf(permission),
      toolCount: tools.length,
    };
  }

  #firstUpdate(): { firstUpdateMs?: number } {
    const since = this.#askedAt ?? this.#startedAt;
    if (this.#firstUpdateAt === undefined || since === undefined) return {};
    return { firstUpdateMs: Math.max(this.#firstUpdateAt - since, 0) };
  }

  #waits(from: number, until: number, to: number): Bar[] {
    const isOver = this.#startedAt !== undefined || this.#joinedAt !== undefined || this.#ended !== undefined;
    const found: Begun[] = [];
    if (until > from) found.push({ name: "in the queue", from, to: until, end: isOver ? "done" : "open", eventId: this.#idAt(from) });
    if (this.#startedAt !== undefined && (this.#askedAt ?? to) > this.#startedAt) {
      // Starting or resuming an agent takes time before it can be prompted.
      const end = this.#askedAt === undefined ? "open" : "done";
      found.push({ name: "until the agent was asked", from: this.#startedAt, to: this.#askedAt ?? to, end, eventId: this.#idAt(this.#startedAt) });
    }
    return leveled(found, to);
  }

  /** Between tool calls and answers only the model can be working. */
  #model(to: number, others: readonly Span[]): Bar[] {
    const isJoined = this.#startedAt === undefined && this.#joinedAt !== undefined;
    const from = isJoined ? this.#joinedAt : this.#askedAt;
    if (from === undefined) return [];
    const name = isJoined ? "in the turn that it joined" : "model";
    const spans = without({ from, to }, joined(others));
    const isOver = this.#ended !== undefined;
    return leveled(
      spans.map((each) => ({
        ...each,
        name,
        end: !isOver && each.to === to ? ("open" as const) : ("done" as const),
        eventId: this.#idAt(each.from),
      })),
      to,
    );
  }

  #idAt(at: number): number {
    return this.#ids.get(at) ?? 0;
  }

  #closed(to: number): Begun[] {
    const last = this.#cancels.at(-1);
    if (last && this.#ended) Object.assign(last, { to, end: "done" });
    return this.#cancels.map((each) => (each === last ? each : { ...each, end: "done" }));
  }
}

/** Return the bars with their levels: each on the first one that is free. */
function leveled(begun: readonly Begun[], to: number): Bar[] {
  const free: number[] = [];
  return [...begun]
    .sort((one, other) => one.from - other.from || one.eventId - other.eventId)
    .map((each) => {
      const end = Math.min(each.to ?? to, to);
      const found = free.findIndex((since) => since <= each.from);
      const level = found < 0 ? free.length : found;
      // A bar without a length needs room, too.
      free[level] = Math.max(end, each.from + 1);
      return { ...each, to: Math.max(end, each.from), level };
    });
}

function permissionName(data: Said): string {
  const asked = wordOf(data["title"]) ?? wordOf(subjectOf(data)["title"]) ?? wordOf(objectOf(data["params"])["message"]);
  return asked ?? String(data["method"] ?? "permission request");
}

/** Return the tool call of a permission request: v1 has it next to the request, v2 in the subject. */
function subjectOf(data: Said): Said {
  const call = objectOf(data["toolCall"]);
  return "toolCallId" in call ? call : objectOf(objectOf(data["subject"])["toolCall"]);
}
