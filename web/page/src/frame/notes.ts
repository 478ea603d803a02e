/** Notifications about events: a turn that ended, an open request. Pure. */

import type { AnyEvent, PermissionOption } from "@turnwire/client";

import { type Asked, askedOf, optionsOf } from "../content/asked.js";

export interface Note {
  /** Identifies the cause across all tabs: a second note with the same tag replaces the first. */
  readonly tag: string;
  readonly sessionId: string;
  readonly about: "asked" | "ended" | "failed";
  /** The id of the turn or of the permission request. */
  readonly id: string;
  /** The text, as far as known. */
  readonly text: string;
  /** The answers that a permission request offers in its notification. */
  readonly options: readonly PermissionOption[];
}

/** Maximum length of a command that every system shows completely. */
const WHOLE = 100;

export interface Notes {
  readonly raised: readonly Note[];
  /** Tags of notes whose cause is gone. */
  readonly over: readonly string[];
}

/** Turns that ended by a user's action need no notification. */
const WISHED = new Set(["removed", "joined", "settled", "cancelled"]);

/** Return the notes for events. Visible sessions raise none. */
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

/** Return the command, if it is the whole request and fits into a notification. */
function wholeCommand({ command, folder, changes, text, hasMarks }: Asked): string | undefined {
  if (command === undefined || hasMarks || changes.length > 0 || (text !== "" && text !== command)) return undefined;
  const whole = folder === undefined ? command : `${command} (in ${folder})`;
  return whole.length <= WHOLE && !whole.includes("\n") ? whole : undefined;
}

/** A request that is not shown completely can only be rejected from the notification. */
function rejecting(options: readonly PermissionOption[]): readonly PermissionOption[] {
  return options.filter((each) => each.kind?.startsWith("reject")).slice(0, 1);
}

/** Return two options for a notification: the first one, and the first that rejects. */
export function twoOptions(options: readonly PermissionOption[]): readonly PermissionOption[] {
  const [first, second] = options;
  if (!first || !second) return options;
  return [first, options.slice(1).find((each) => each.kind?.startsWith("reject")) ?? second];
}
