/** What is worth a notification: a turn that ended, a question that waits. Decided from events alone. Pure. */

import type { AnyEvent, PermissionOption } from "@turnwire/client";

import { type Asked, askedOf, optionsOf } from "../content/asked.js";

export interface Note {
  /** One for each thing that happened, in all tabs: a second note with it takes the place of the first. */
  readonly tag: string;
  readonly sessionId: string;
  readonly about: "asked" | "ended" | "failed";
  /** Its turn, or its permission request. */
  readonly id: string;
  /** What is known already. */
  readonly text: string;
  /** The answers that a permission request offers on its notification. */
  readonly options: readonly PermissionOption[];
}

/** Characters of a command that every system shows whole. */
const WHOLE = 100;

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
    const asked = askedOf(event.data);
    const options = optionsOf(event.data);
    const whole = wholeCommand(asked);
    if (whole === undefined) return note("asked", sessionId, requestId, asked.title, rejecting(options));
    return note("asked", sessionId, requestId, whole, twoOptions(options));
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

/** The command, if it is all that is asked and a notification shows all of it. */
function wholeCommand({ command, folder, changes, text, hasMarks }: Asked): string | undefined {
  if (command === undefined || hasMarks || changes.length > 0 || (text !== "" && text !== command)) return undefined;
  const whole = folder === undefined ? command : `${command} (in ${folder})`;
  return whole.length <= WHOLE && !whole.includes("\n") ? whole : undefined;
}

/** Nobody allows what they do not see: what remains is the first answer that rejects. */
function rejecting(options: readonly PermissionOption[]): readonly PermissionOption[] {
  return options.filter((each) => each.kind?.startsWith("reject")).slice(0, 1);
}

/** The two answers that fit on a notification: the first one, and the first that refuses. */
export function twoOptions(options: readonly PermissionOption[]): readonly PermissionOption[] {
  const [first, second] = options;
  if (!first || !second) return options;
  return [first, options.slice(1).find((each) => each.kind?.startsWith("reject")) ?? second];
}
