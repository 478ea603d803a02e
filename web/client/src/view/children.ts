/**
 * Child sessions for readers: their parent, name and state. An announcement is a patch: an absent member stays, null
 * clears. Also maps the session ids in updates, which with `acp=agent` are the agent's, to ours.
 */

import { type Members, Patch, changed, entriesOf, membersOf, textOf } from "./patch.js";

/** `unknown`: its agent has not reported it, or is gone. */
export type ChildState = "running" | "requires_action" | "idle" | "unknown";

export interface ChildRecord {
  readonly childId: string;
  /** The child that announced it; undefined for the session itself. */
  readonly parentId?: string;
  /** The turn in which it was announced. */
  readonly promptId?: string;
  readonly announcedAt?: number;
  readonly title?: string;
  readonly description?: string;
  /** `unknown` by default. */
  readonly state?: ChildState;
  readonly canCancel?: boolean;
  readonly cwd?: string;
  readonly additionalDirectories?: readonly string[];
  readonly meta?: Members;
}

export const STATES: ReadonlySet<string> = new Set(["state_update", "state_change"]);
export const ANNOUNCES = "subagent_update";
const MESSAGES: ReadonlySet<string> = new Set(["session_message", "session_message_chunk"]);
const KNOWN: ReadonlySet<string> = new Set(["running", "requires_action", "idle"]);

/** Read a state of ACP; an unknown one is not idle. */
export function readState(state: unknown): ChildState {
  const word = textOf(state);
  if (word === undefined || word === "unknown") return "unknown";
  return KNOWN.has(word) ? (word as ChildState) : "running";
}

export function withState(record: ChildRecord, state: ChildState): ChildRecord {
  return changed<ChildRecord>(record, { state: state === "unknown" ? undefined : state });
}

/** Return the child's state after an announcement; unchanged without a state in it. */
export function stateAfter(update: Members, before: ChildState | undefined): ChildState | undefined {
  const state = update["state"];
  return state === undefined ? before : readState(membersOf(state)?.["state"]);
}

/** Return the state after a `subagent_update`. */
export function announced(record: ChildRecord, update: Members): ChildRecord {
  const patch = new Patch(update, true);
  const capabilities = update["capabilities"];
  const canCancel =
    capabilities === undefined ? record.canCancel : membersOf(membersOf(capabilities)?.["cancel"]) !== undefined;
  const next = changed<ChildRecord>(record, {
    title: patch.text("title", record.title),
    description: patch.text("description", record.description),
    cwd: patch.text("cwd", record.cwd),
    additionalDirectories: patch.raw("additionalDirectories", record.additionalDirectories) as
      | readonly string[]
      | undefined,
    meta: patch.meta(record.meta),
    canCancel: canCancel || undefined,
  });
  return withState(next, stateAfter(update, record.state) ?? "unknown");
}

// -- names ---------------------------------------------------------------------------------------------------

/** Return the update with our ids in place of the agent's. */
export function renamed(kind: string, update: Members, names: Readonly<Record<string, string>>): Members {
  if (kind === ANNOUNCES) {
    const state = membersOf(update["state"]);
    const listed = state && inBackground(state, names);
    return { ...update, ...named(update, "sessionId", names), ...(listed && { state: { ...state, ...listed } }) };
  }
  if (STATES.has(kind)) return { ...update, ...inBackground(update, names) };
  if (!MESSAGES.has(kind)) return update;
  return { ...update, ...named(update, "senderSessionId", names), ...named(update, "recipientSessionId", names) };
}

function named(members: Members, name: string, names: Readonly<Record<string, string>>): Members {
  const id = textOf(members[name]);
  return id === undefined || !Object.hasOwn(names, id) ? {} : { [name]: names[id] };
}

/** Return a list of background work with our ids of its children. */
function inBackground(state: Members, names: Readonly<Record<string, string>>): Members | undefined {
  const items = entriesOf(state["background"])?.map(membersOf);
  if (!items?.length || items.includes(undefined)) return undefined;
  return { background: items.map((each) => ({ ...each, ...named(each as Members, "sessionId", names) })) };
}
