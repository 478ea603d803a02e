/** What is worth a notification: a turn that ended, a question that waits. Decided from events alone. Pure. */

import type { AnyEvent, PermissionOption } from "@turnwire/client";

import { askedOf, optionsOf } from "../content/asked.js";

export interface Note {
  /** One for each thing that happened, in all tabs: a second note with it takes the place of the first. */
  readonly tag: string;
  readonly sessionId: string;
  readonly about: "asked" | "ended" | "failed";
  /** Its turn, or its permission request. */
  readonly id: string;
  /** What is known already. */
  readonly text: string;
  readonly options: readonly PermissionOption[];
}

export interface Notes {
  readonly raised: readonly Note[];
  /** Tags of notes whose reason is gone. */
  readonly over: readonly string[];
}

/** A turn that ended by these was somebody's wish, or was never one of its own. */
const WISHED = new Set(["removed", "joined", "settled", "cancelled"]);

/** What events ask for. Sessions that somebody looks at now raise nothing. */
export function notesOf(events: readonly AnyEvent[], seen: ReadonlySet<string>): Notes {
  const raised = new Map<string, Note>();
  const over: string[] = [];
  for (const event of events) {
    if (event.type === "permission_resolved") {
      const tag = tagOf("asked", event.data.sessionId, event.data.requestId);
      raised.delete(tag);
      over.push(tag);
      continue;
    }
    const note = noteOf(event);
    if (note && !seen.has(note.sessionId)) raised.set(note.tag, note);
  }
  return { raised: [...raised.values()], over };
}

function noteOf(event: AnyEvent): Note | undefined {
  if (event.type === "permission_request") {
    const { sessionId, requestId } = event.data;
    return note("asked", sessionId, requestId, askedOf(event.data).title, optionsOf(event.data));
  }
  if (event.type === "turn_complete") {
    const { sessionId, promptId, ending, stopReason } = event.data;
    if (WISHED.has(ending) || stopReason === "cancelled") return undefined;
    return note("ended", sessionId, promptId, "");
  }
  if (event.type === "turn_error") return note("failed", event.data.sessionId, event.data.promptId, event.data.message);
  return undefined;
}

function note(about: Note["about"], sessionId: string, id: string, text: string, options: readonly PermissionOption[] = []): Note {
  return { tag: tagOf(about, sessionId, id), about, sessionId, id, text, options };
}

function tagOf(about: Note["about"], sessionId: string, id: string): string {
  return `${about === "asked" ? "asked" : "turn"} ${sessionId} ${id}`;
}

/** The two answers that fit on a notification: the first one, and the first that refuses. */
export function twoOptions(options: readonly PermissionOption[]): readonly PermissionOption[] {
  const [first, second] = options;
  if (!first || !second) return options;
  return [first, options.slice(1).find((each) => each.kind?.startsWith("reject")) ?? second];
}
