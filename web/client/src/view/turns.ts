/**
 * The record of each turn: who asked, when it went through which state, how it ended. Only what the daemon's own table
 * allows changes a record: a repeat, or anything about a turn that has ended, is ignored. Texts are in the transcript;
 * a record knows where.
 */

import type { ContentBlock } from "../acp.js";
import type { AnyEvent, EventOf, Receipt } from "../events.js";
import { type Members, changed, entriesOf, membersOf, textOf } from "./patch.js";

export type TurnState = "queued" | "running" | "requires_action" | "cancelling" | "offered" | "joined" | "ended";

/** How a turn ended: with a stop reason or with an error. */
export interface Outcome {
  readonly stopReason?: string;
  readonly ending?: EventOf<"turn_complete">["data"]["ending"];
  readonly usage?: Members;
  readonly error?: {
    readonly code: string;
    readonly message: string;
    readonly exitCode?: number;
    readonly signal?: string;
    readonly stderrTail?: string;
    readonly agentError?: unknown;
  };
  /** The agent's own word for a turn that was cancelled, if it is another one. */
  readonly agentStopReason?: string;
  readonly receipt?: Receipt;
}

/** A permission request about a tool call, and its answer. */
export interface Asked {
  readonly toolCallId: string;
  /** The kind of each option; absent once it is answered. */
  readonly kinds?: Readonly<Record<string, string>>;
  readonly allowed?: boolean;
  /** The user who answered. */
  readonly author?: string;
}

/** A turn, from acceptance to its end. */
export interface TurnRecord {
  readonly promptId: string;
  readonly state: TurnState;
  /** `client` if it is left out. */
  readonly origin?: "client" | "agent";
  readonly author?: string;
  readonly clientId?: string;
  readonly promptRequestId?: string | number;
  readonly agentRequestId?: string | number;
  readonly acceptedAt?: number;
  readonly queuedAt?: number;
  readonly startedAt?: number;
  readonly endedAt?: number;
  readonly outcome?: Outcome;
  readonly cancelledBy?: string;
  readonly joinedInto?: string;
  /** The plans that the agent reported in it, as of its end. */
  readonly plans?: Readonly<Record<string, Members>>;
  /** Permission requests about tool calls, by request id. */
  readonly asked?: Readonly<Record<string, Asked>>;
  /** Where its words are: places of items in the transcript. */
  readonly place: {
    /** The prompt's content, until it becomes a message. */
    readonly waiting?: readonly ContentBlock[];
    readonly prompt?: number;
    /** Where its output begins. */
    readonly first?: number;
    /** The last message of the agent in it, once it has ended. */
    readonly answer?: number;
  };
}

type Steps = Readonly<Record<string, TurnState>>;

const steps = (state: TurnState, ...kinds: string[]): Steps => Object.fromEntries(kinds.map((each) => [each, state]));
const ENDS = steps("ended", "turn_complete", "turn_error");
const SPOKEN = ["prompt_sent", "prompt_answered", "prompt_inserted", "pending_prompt_completed", "user_message"];
const LEAVES: Steps = { prompt_injected: "joined", turn_started: "running", ...ENDS };
const CANCELS: Steps = { prompt_cancelled: "cancelling", ...ENDS };

/** Which event may follow in which state, and what the state is then: the daemon's table. */
const NEXT: Readonly<Record<"new" | TurnState, Steps>> = {
  new: { prompt_accepted: "queued", turn_started: "running" },
  queued: {
    ...steps("queued", "pending_prompt_added", "pending_prompt_updated", "pending_prompt_started"),
    ...steps("queued", "pending_prompt_completed", "user_message", "prompt_steer_declined"),
    prompt_offered: "offered",
    ...LEAVES,
  },
  offered: {
    ...steps("offered", "prompt_sent", "pending_prompt_started", "pending_prompt_completed", "prompt_cancelled"),
    ...LEAVES,
  },
  running: { ...steps("running", ...SPOKEN), turn_blocked: "requires_action", ...CANCELS },
  requires_action: { ...steps("requires_action", ...SPOKEN), turn_unblocked: "running", ...CANCELS },
  cancelling: { ...steps("cancelling", ...SPOKEN, "cancel_escalated"), ...ENDS },
  joined: { ...steps("joined", ...SPOKEN), ...ENDS },
  ended: {},
};

/** Every event of a turn, by the name that the log has for it. */
export const TURN_EVENTS: ReadonlySet<string> = new Set(Object.values(NEXT).flatMap((each) => Object.keys(each)));

/** What the log calls an event. */
export function storedType(event: AnyEvent): string {
  return event._meta?.event ?? event.type;
}

/** Step a turn; gives its record, none if the table does not allow the event. */
export function stepped(record: TurnRecord | undefined, promptId: string, event: AnyEvent): TurnRecord | undefined {
  const type = storedType(event);
  const following = NEXT[record?.state ?? "new"][type];
  if (following === undefined) return undefined;
  const before = record ?? { promptId, state: following, place: {} };
  return changed<TurnRecord>(before, { state: following, ...written(before, event) });
}

/** Record a permission request about a tool call. */
export function withRequest(record: TurnRecord, { data }: EventOf<"permission_request">, call: Members): TurnRecord {
  const toolCallId = textOf(call["toolCallId"]);
  if (toolCallId === undefined) return record;
  const options = entriesOf(membersOf(data.params)?.["options"]) ?? [];
  const kinds: Record<string, string> = {};
  for (const each of options) {
    const [optionId, kind] = [textOf(membersOf(each)?.["optionId"]), textOf(membersOf(each)?.["kind"])];
    if (optionId !== undefined && kind !== undefined) kinds[optionId] = kind;
  }
  const asked: Asked = Object.keys(kinds).length ? { toolCallId, kinds } : { toolCallId };
  return { ...record, asked: { ...record.asked, [data.requestId]: asked } };
}

/** Record who allowed or rejected a tool call. A request without such an answer is forgotten. */
export function withAnswer(record: TurnRecord, { data }: EventOf<"permission_resolved">): TurnRecord {
  const { [data.requestId]: asked, ...others } = record.asked ?? {};
  if (asked === undefined) return record;
  const answer = membersOf(data.answer);
  const optionId = textOf((membersOf(answer?.["outcome"]) ?? answer)?.["optionId"]);
  const kind = data.end === "answered" && optionId !== undefined ? asked.kinds?.[optionId] : undefined;
  if (kind === undefined) return changed(record, { asked: Object.keys(others).length ? others : undefined });
  const { toolCallId } = asked;
  const answered = changed<Asked>({ toolCallId, allowed: kind.startsWith("allow") }, { author: data.author });
  return { ...record, asked: { ...others, [data.requestId]: answered } };
}

type Written = { readonly [Name in keyof TurnRecord]?: TurnRecord[Name] | undefined };

/** What an event tells besides the step. */
function written(record: TurnRecord, event: AnyEvent): Written {
  const at = event._meta?.serverTimestamp;
  const place = record.place;
  switch (event.type) {
    case "prompt_accepted": {
      const { author, clientId, promptRequestId, content } = event.data;
      const waiting = content === undefined ? place : { ...place, waiting: content };
      return { acceptedAt: at, author, clientId, promptRequestId, place: waiting };
    }
    case "pending_prompt_added":
      return { queuedAt: at, place: { ...place, waiting: event.data.content } };
    case "pending_prompt_updated":
      return event.data.content === undefined ? {} : { place: { ...place, waiting: event.data.content } };
    case "session_update":
      return { place: changed(place, { waiting: undefined }) };
    case "prompt_sent":
      return { agentRequestId: event.data.agentRequestId };
    case "prompt_injected":
      return { joinedInto: event.data.into };
    case "state_changed":
      if (storedType(event) !== "turn_started") return {};
      return { startedAt: at, origin: event.data.origin === "agent" ? "agent" : undefined };
    case "prompt_cancelled":
      return { cancelledBy: event.data.author || event.data.clientId };
    case "turn_complete": {
      const { stopReason, ending, usage, cancelledBy, agentStopReason, receipt } = event.data;
      const outcome = changed<Outcome>({ stopReason, ending }, { usage, agentStopReason, receipt });
      return { endedAt: at, cancelledBy: cancelledBy || record.cancelledBy, outcome };
    }
    case "turn_error": {
      const { code, message, exitCode, signal, stderrTail, agentError, receipt } = event.data;
      const error = changed<NonNullable<Outcome["error"]>>(
        { code, message },
        { exitCode, signal, stderrTail, agentError },
      );
      return { endedAt: at, outcome: changed<Outcome>({ error }, { receipt }) };
    }
    default:
      return {};
  }
}
