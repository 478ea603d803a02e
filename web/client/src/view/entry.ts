/**
 * An entry of a session list, updated by events: the entry of `GET /session`, or the one of a new session, and the
 * events since.
 *
 * An entry has counts, while events have ids. Each entry that was made here has a memory of ids; a listed or copied
 * entry starts from its counts. So four counts may be wrong by events about ids that are unknown here:
 * `backgroundCount` until the agent lists its work or exits, `runningChildCount` until it exits, `queuedCount` by a
 * prompt that its agent had accepted, and `clientCount`, from which the daemon also removes clients that were silent
 * for long.
 */

import type { AnyEvent, EventOf } from "../events.js";
import type { SessionEntry } from "../rest.js";
import { ANNOUNCES, type ChildState, STATES, readState, stateAfter } from "./children.js";
import { type Members, changed, textOf } from "./patch.js";
import { FINAL_STATUS, readBackground } from "./tools.js";
import { storedType } from "./turns.js";

const LEFT_OPEN = "in_progress";
const AT_WORK: ReadonlySet<ChildState | undefined> = new Set<ChildState>(["running", "requires_action"]);

/** Ids, and the number of further things that an entry only counts. */
interface Known {
  readonly names: ReadonlySet<string>;
  readonly others: number;
}

/** The memory of an entry. Immutable, like the entry. */
interface Memory {
  readonly permissions: Known;
  readonly queue: Known;
  /** Our ids. */
  readonly children: ReadonlyMap<string, ChildState>;
  /** Working children whose ids are unknown. */
  readonly otherChildren: number;
  readonly agentSessionId: string | undefined;
  readonly hasAgent: boolean;
  /** Background work, by key. */
  readonly work: ReadonlyMap<string, { readonly isCall: boolean; readonly id: string | undefined }>;
  readonly otherWork: number;
  /** The agent lists its background work itself. */
  readonly listsWork: boolean;
  /** The tool calls of the running turn, with their status. */
  readonly tools: ReadonlyMap<string, string>;
  readonly clients: Known;
}

const memories = new WeakMap<SessionEntry, Memory>();

const NOTHING: Known = { names: new Set(), others: 0 };

function memoryOf(entry: SessionEntry): Memory {
  return (
    memories.get(entry) ?? {
      permissions: { ...NOTHING, others: entry.permissionCount },
      queue: { ...NOTHING, others: entry.queuedCount },
      children: new Map(),
      otherChildren: entry.runningChildCount,
      agentSessionId: undefined,
      hasAgent: entry.agentGone === undefined,
      work: new Map(),
      otherWork: entry.backgroundCount,
      listsWork: false,
      tools: new Map(),
      clients: { ...NOTHING, others: entry.clientCount },
    }
  );
}

function withName(known: Known, name: string): Known {
  return known.names.has(name) ? known : { ...known, names: new Set([...known.names, name]) };
}

/** Return the ids without one: if it is unknown, it is one of the others. */
function withoutName({ names, others }: Known, name: string): Known {
  if (!names.has(name)) return { names, others: Math.max(others - 1, 0) };
  return { names: new Set([...names].filter((each) => each !== name)), others };
}

const countOf = ({ names, others }: Known): number => names.size + others;

type Entry = { readonly [Name in keyof SessionEntry]?: SessionEntry[Name] | undefined };
/** The changes of an event to an entry and to its memory. */
interface Change {
  readonly entry?: Entry;
  readonly memory?: Partial<Memory>;
}

/**
 * Return the entry after an event; the same object if the event is not newer. `session_created` creates one. Events for
 * which `concernsEntry` is false may be left out.
 */
export function foldEntry(entry: SessionEntry | undefined, event: AnyEvent): SessionEntry | undefined {
  const id = event.id;
  if (entry === undefined) return event.type === "session_created" && id !== undefined ? created(event, id) : undefined;
  if (id === undefined || id <= entry.lastEventId) return entry;
  const memory = memoryOf(entry);
  const change = changeBy(entry, memory, event);
  const at = event._meta?.serverTimestamp;
  const updatedAt = at === undefined ? entry.updatedAt : newer(entry.updatedAt, new Date(at).toISOString());
  const after = change.memory ? { ...memory, ...change.memory } : memory;
  const next = changed<SessionEntry>(entry, {
    ...change.entry,
    ...(change.memory ? countsOf(after) : {}),
    ...(event.promptId === undefined ? {} : { suspectedComplete: false }),
    updatedAt,
    lastEventId: id,
  });
  memories.set(next, after);
  return next;
}

/** Whether an event may change more of an entry than `updatedAt`. Chunks and repeated updates do not. */
export function concernsEntry(event: AnyEvent): boolean {
  if (event.type !== "session_update") return true;
  const kind = event.data.update.sessionUpdate as string;
  if (kind === "session_info_update") return event.data.child === undefined;
  return kind === ANNOUNCES || STATES.has(kind) || CALLS.has(kind);
}

const CALLS: ReadonlySet<string> = new Set(["tool_call", "tool_call_update"]);

const newer = (one: string, other: string): string => (other > one ? other : one);

function countsOf(memory: Memory): Entry {
  const permissionCount = countOf(memory.permissions);
  const atWork = [...memory.children.values()].filter((each) => AT_WORK.has(each)).length;
  return {
    permissionCount,
    isWaitingForPermission: permissionCount > 0,
    queuedCount: countOf(memory.queue),
    runningChildCount: atWork + memory.otherChildren,
    backgroundCount: memory.work.size + memory.otherWork,
    clientCount: countOf(memory.clients),
  };
}

function created(event: EventOf<"session_created">, id: number): SessionEntry {
  const { sessionId, cwd, title, forkOf, agentName, additionalDirectories } = event.data;
  const at = new Date(event._meta?.serverTimestamp ?? 0).toISOString();
  const blank: SessionEntry = {
    sessionId,
    workspaceCwd: cwd,
    cwd,
    agent: agentName ?? "",
    createdAt: at,
    updatedAt: at,
    state: "idle",
    hasActivePrompt: false,
    isWaitingForPermission: false,
    clientCount: 0,
    closed: false,
    lastEventId: id,
    eventEpoch: "",
    permissionCount: 0,
    queuedCount: 0,
    backgroundCount: 0,
    runningChildCount: 0,
    suspectedComplete: false,
  };
  const directories = additionalDirectories?.length ? additionalDirectories : undefined;
  const named = title === undefined ? undefined : true;
  const entry = changed<SessionEntry>(blank, {
    ...{ title, displayName: title, named, forkOf },
    additionalDirectories: directories,
  });
  memories.set(entry, { ...memoryOf(entry), hasAgent: false });
  return entry;
}

function changeBy(entry: SessionEntry, memory: Memory, event: AnyEvent): Change {
  switch (event.type) {
    case "session_metadata_updated": {
      const given = event.data.title;
      const agentTitle = entry.named ? entry.agentTitle : entry.title;
      if (given === null) return { entry: { ...titled(agentTitle), named: undefined, agentTitle: undefined } };
      return { entry: { ...titled(given), named: true, agentTitle } };
    }
    case "session_setup_changed": {
      const listed = event.data.additionalDirectories;
      return { entry: { additionalDirectories: listed?.length ? listed : undefined } };
    }
    case "session_archived":
      return { entry: { archived: true } };
    case "session_unarchived":
      return { entry: { archived: undefined } };
    case "session_closed":
      return { entry: { state: "closed", closed: true }, memory: { ...withoutAgent(memory), clients: NOTHING } };
    case "client_attached":
      return { memory: { clients: withName(memory.clients, event.data.clientId ?? "") } };
    case "client_detached":
      return { memory: { clients: withoutName(memory.clients, event.data.clientId) } };
    case "agent_started":
      return { entry: { agentGone: undefined }, memory: withAgent(memory, event) };
    case "agent_exited":
      return { entry: { agentGone: event.data.reason }, memory: withoutAgent(memory) };
    case "queue_held":
      return { entry: { queueHeld: event.data.reason } };
    case "queue_released":
      return { entry: { queueHeld: undefined } };
    case "permission_request":
      return { memory: { permissions: withName(memory.permissions, event.data.requestId) } };
    case "permission_resolved":
      return { memory: { permissions: withoutName(memory.permissions, event.data.requestId) } };
    case "session_update":
      return storedType(event) === "user_message" ? {} : heard(entry, memory, event);
    default:
      return turnChange(entry, memory, event);
  }
}

const titled = (title: string | undefined): Entry => ({ title, displayName: title });

// -- turns -----------------------------------------------------------------------------------------------------

function turnChange(entry: SessionEntry, memory: Memory, event: AnyEvent): Change {
  switch (event.type) {
    case "prompt_accepted":
      return { memory: { queue: withName(memory.queue, event.data.promptId) } };
    case "prompt_offered":
    case "prompt_injected":
      return { memory: { queue: withoutName(memory.queue, event.data.promptId) } };
    case "state_changed":
      return stateChange(memory, event);
    case "prompt_cancelled":
      return event.data.promptId === entry.activePromptId ? { entry: { state: "cancelling" } } : {};
    case "turn_complete":
    case "turn_error":
      return ended(entry, memory, event);
    default:
      return {};
  }
}

function stateChange(memory: Memory, event: EventOf<"state_changed">): Change {
  const { promptId, state, origin } = event.data;
  if (storedType(event) !== "turn_started") return { entry: { state } };
  const queue = origin === "agent" ? memory.queue : withoutName(memory.queue, promptId);
  return {
    entry: { state: "running", hasActivePrompt: true, activePromptId: promptId },
    memory: { queue, tools: new Map() },
  };
}

function ended(
  entry: SessionEntry,
  memory: Memory,
  event: EventOf<"turn_complete"> | EventOf<"turn_error">,
): Change {
  const { promptId } = event.data;
  if (promptId === entry.activePromptId) {
    const state = entry.closed ? "closed" : "idle";
    return { entry: { state, hasActivePrompt: false, activePromptId: undefined }, memory: leftOpen(memory) };
  }
  // A joined prompt left the queue earlier.
  if (event.type === "turn_complete" && event.data.ending === "joined") return {};
  return { memory: { queue: withoutName(memory.queue, promptId) } };
}

/** Tool calls in progress at the end of their turn continue, for an agent that does not list its background work. */
function leftOpen(memory: Memory): Partial<Memory> {
  if (memory.listsWork || !memory.hasAgent) return { tools: new Map() };
  const work = new Map(memory.work);
  for (const [id, status] of memory.tools) if (status === LEFT_OPEN) work.set(`call ${id}`, { isCall: true, id });
  return { tools: new Map(), work };
}

// -- what the agent says ---------------------------------------------------------------------------------------

function withAgent(memory: Memory, { data }: EventOf<"agent_started">): Partial<Memory> {
  const { agentSessionId, how } = data;
  const cameBack = (how === "load" || how === "resume") && agentSessionId === memory.agentSessionId;
  return {
    agentSessionId,
    hasAgent: true,
    ...(cameBack ? {} : { children: new Map(), otherChildren: 0 }),
    ...{ work: new Map(), otherWork: 0, listsWork: false },
  };
}

/** Without an agent the state of the children is unknown. */
function withoutAgent(memory: Memory): Partial<Memory> {
  const children = new Map([...memory.children.keys()].map((each) => [each, "unknown" as const]));
  return { children, hasAgent: false, otherChildren: 0, work: new Map(), otherWork: 0, listsWork: false };
}

function heard(entry: SessionEntry, memory: Memory, event: EventOf<"session_update">): Change {
  const update = event.data.update as unknown as Members;
  const kind = event.data.update.sessionUpdate as string;
  const { child, names } = event.data;
  if (kind === ANNOUNCES && names) {
    const agentId = textOf(update["sessionId"]);
    const childId = agentId !== undefined && Object.hasOwn(names, agentId) ? names[agentId] : undefined;
    if (childId === undefined || childId === entry.sessionId) return {};
    const state = stateAfter(update, memory.children.get(childId));
    // A child that is announced as working is usually new.
    return state === undefined ? {} : toldOfChild(memory, childId, state, { isNew: AT_WORK.has(state) });
  }
  if (child !== undefined) {
    return STATES.has(kind) ? toldOfChild(memory, child, readState(update["state"]), { isNew: false }) : {};
  }
  if (kind === "session_info_update") return retitled(entry, update);
  if (STATES.has(kind)) return memory.hasAgent ? listed(update["background"]) : {};
  return CALLS.has(kind) ? called(memory, update, event.promptId !== undefined) : {};
}

function toldOfChild(memory: Memory, childId: string, state: ChildState, { isNew }: { isNew: boolean }): Change {
  const { children, otherChildren, hasAgent } = memory;
  if (!hasAgent) return {};
  // A child with an unknown id may be one of those that were counted.
  const wasCounted = !isNew && !children.has(childId) && otherChildren > 0;
  return {
    memory: {
      children: new Map([...children, [childId, state]]),
      otherChildren: wasCounted ? otherChildren - 1 : otherChildren,
    },
  };
}

function retitled(entry: SessionEntry, update: Members): Change {
  const title = update["title"];
  if (title !== null && typeof title !== "string") return {};
  const given = title ?? undefined;
  return { entry: entry.named ? { agentTitle: given } : titled(given) };
}

function listed(background: unknown): Change {
  const work = readBackground(background);
  if (work === undefined) return {};
  const entries = work.map(({ kind, id }, index) => [`${index}`, { isCall: kind === "tool_call", id }] as const);
  return { memory: { work: new Map(entries), otherWork: 0, listsWork: true } };
}

/** A tool call was updated: in the running turn, or in the background. */
function called(memory: Memory, update: Members, isOfTurn: boolean): Change {
  const toolCallId = textOf(update["toolCallId"]);
  if (toolCallId === undefined) return {};
  const status = textOf(update["status"]);
  const work = FINAL_STATUS.has(status)
    ? new Map([...memory.work].filter(([, each]) => !each.isCall || each.id !== toolCallId))
    : memory.work;
  const tools = isOfTurn
    ? new Map([...memory.tools, [toolCallId, status ?? memory.tools.get(toolCallId) ?? "pending"]])
    : memory.tools;
  return { memory: { work, tools } };
}
