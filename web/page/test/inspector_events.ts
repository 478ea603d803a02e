/** Events of one turn, made by hand: times in milliseconds after its beginning. */

import type { AnyEvent } from "@turnwire/client";

const BEGIN = 1_700_000_000_000;

export interface More {
  readonly turn?: string | undefined;
  /** The log's own name, where the type is another. */
  readonly event?: string;
  readonly late?: boolean;
  readonly author?: string;
}

/** Makes events with ids 1, 2, 3 … */
export class Made {
  readonly events: AnyEvent[] = [];
  readonly turn: string;

  constructor(turn = "p_1") {
    this.turn = turn;
  }

  add(at: number, type: string, data: object = {}, more: More = {}): this {
    const turn = "turn" in more ? more.turn : this.turn;
    this.events.push({
      id: this.events.length + 1,
      v: 1,
      type,
      data: { sessionId: "s_1", ...data },
      ...(turn === undefined ? {} : { promptId: turn }),
      ...(more.late ? { late: true } : {}),
      ...(more.author === undefined ? {} : { author: more.author }),
      _meta: { serverTimestamp: BEGIN + at, ...(more.event === undefined ? {} : { event: more.event }) },
    } as unknown as AnyEvent);
    return this;
  }

  accepted(at: number): this {
    return this.add(at, "prompt_accepted", { afterOffset: 0 }, { author: "ann" });
  }

  started(at: number, origin = "client"): this {
    return this.add(at, "state_changed", { state: "running", origin }, { event: "turn_started" });
  }

  sent(at: number): this {
    return this.add(at, "prompt_sent", { agentRequestId: 1 });
  }

  says(at: number, text = "words"): this {
    return this.update(at, { sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
  }

  update(at: number, update: object, more: object = {}): this {
    return this.add(at, "session_update", { update, ...more });
  }

  tool(at: number, toolCallId: string, status: string, more: object = {}): this {
    const sessionUpdate = status === "pending" ? "tool_call" : "tool_call_update";
    return this.update(at, { sessionUpdate, toolCallId, status, ...more });
  }

  ends(at: number, stopReason = "end_turn"): this {
    return this.add(at, "turn_complete", { stopReason, ending: "response" });
  }
}

/** How long after the beginning. */
export function since(at: number): number {
  return at - BEGIN;
}
