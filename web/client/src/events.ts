/**
 * Events in the daemon's envelopes, one type for each kind. Types only. `EventMembers` has the members of `data`
 * besides the session id; a test compares its names with the daemon's. A kind that is not listed arrives as
 * `UnknownEvent`.
 */

import type {
  ContentBlock,
  OtherWord,
  PermissionOption,
  PermissionOutcome,
  ToolCallFields,
  Update,
} from "./acp.js";

/** The author, if the event has one. */
interface By {
  readonly author?: string;
  readonly clientId?: string;
}
interface OfTurn {
  readonly promptId: string;
}

/** The members of `data` for each type of event, besides `sessionId`. */
export interface EventMembers {
  session_created: By & {
    readonly cwd: string;
    readonly title?: string;
    readonly forkOf?: string;
    readonly agentName?: string;
    readonly additionalDirectories?: readonly string[];
  };
  session_setup_changed: By & { readonly additionalDirectories?: readonly string[] };
  session_archived: By;
  session_unarchived: By;
  session_metadata_updated: By & { readonly title: string | null; readonly displayName: string | null };
  session_closed: By & { readonly reason: string };
  client_attached: By & { readonly role: string };
  client_detached: { readonly clientId: string; readonly reason: string };

  agent_started: {
    readonly agentSessionId: string;
    readonly protocolVersion: number;
    readonly turnEnd: "response" | "marker" | "idle";
    readonly steering: boolean;
    /** `new`, `load`, `resume`, `fork`; `lost` if the agent returned without its memory of the session. */
    readonly how: string;
    readonly capabilities: unknown;
    readonly offers: unknown;
    readonly refused?: readonly { readonly how: string; readonly agentError: unknown }[];
  };
  agent_exited: {
    readonly reason: string;
    readonly message?: string;
    readonly exitCode?: number;
    readonly signal?: string;
    readonly stderrTail?: string;
    readonly agentError?: unknown;
  };
  history_compared: {
    readonly replayed: number;
    readonly matched: number;
    readonly missing: number;
    readonly firstDifference?: string;
  };

  /** An agent's update, or the user's message (then `_meta.event` is `user_message`). */
  session_update: {
    readonly update: Update;
    /** The ended turn that a late update followed. */
    readonly after?: string;
    readonly echo?: boolean;
    /** The child session of the update. */
    readonly child?: string;
    readonly beside?: Readonly<Record<string, unknown>>;
    readonly names?: Readonly<Record<string, string>>;
  };
  /** An event that the requested version of ACP cannot express, or that repeats others. */
  session_update_omitted: { readonly sessionUpdate: string };

  approval_mode_changed: By & { readonly mode: string; readonly next: string; readonly previous?: string };
  model_switched: By & { readonly modelId: string; readonly previous?: string };
  config_option_set: By & { readonly configId: string; readonly value: string | boolean };
  choices_restored: Readonly<Record<never, never>>;
  choices_lost: {
    readonly lost: readonly { readonly name: string; readonly wanted: string | boolean; readonly why: string }[];
  };

  queue_held: By & { readonly reason: string };
  queue_released: By;
  pending_prompt_added: OfTurn & {
    readonly state: "queued";
    readonly content: readonly ContentBlock[];
    readonly text: string;
    readonly position: number;
    readonly queuedAt: number;
    readonly steering: boolean;
  };
  pending_prompt_updated: OfTurn &
    By & {
      readonly state: "queued";
      readonly content?: readonly ContentBlock[];
      readonly text?: string;
      readonly position?: number;
    };
  pending_prompt_started: OfTurn & { readonly state: "running" };
  pending_prompt_completed: OfTurn & { readonly state: "completed" | "removed" };

  prompt_accepted: OfTurn &
    By & {
      readonly afterOffset: number;
      readonly promptRequestId?: string | number;
      /** The idempotency key. */
      readonly key?: string;
      readonly digest?: string;
      readonly deadlineAt?: number;
      readonly meta?: Readonly<Record<string, unknown>>;
      readonly content?: readonly ContentBlock[];
    };
  prompt_offered: OfTurn;
  prompt_sent: OfTurn & { readonly agentRequestId: string | number };
  prompt_answered: OfTurn & { readonly stopReason?: string; readonly usage?: unknown; readonly beside?: unknown };
  prompt_inserted: OfTurn & { readonly agentMessageId: string; readonly beside?: unknown };
  prompt_injected: OfTurn & { readonly into: string };
  prompt_steer_declined: OfTurn & { readonly reason: string };
  prompt_cancelled: OfTurn & By;
  cancel_escalated: OfTurn & { readonly rung: string };
  child_cancelled: By & { readonly child: string };

  /** A turn started, was blocked by a request, or continued. */
  state_changed: OfTurn & {
    readonly state: "running" | "requires_action";
    readonly origin?: "client" | "agent";
    readonly waitsFor?: readonly { readonly requestId: string; readonly kind: string }[];
  };
  permission_request: PermissionMembers;
  permission_resolved: By & {
    readonly requestId: string;
    readonly end: "answered" | "cancelled" | "withdrawn";
    readonly answer: unknown;
    readonly outcome?: PermissionOutcome;
    readonly voterClientId?: string;
    readonly promptId?: string;
  };
  /** A permission request was answered after another answer had won. */
  permission_already_resolved: By & { readonly requestId: string };

  turn_complete: OfTurn & {
    /** `end_turn`, `max_tokens`, `max_turn_requests`, `refusal`, `cancelled`, or an agent-specific reason. */
    readonly stopReason: string;
    /** The fact that ended it. */
    readonly ending: "response" | "marker" | "idle" | "removed" | "joined" | "settled" | "cancelled";
    readonly assumed?: boolean;
    readonly promptRequestId?: string | number;
    readonly usage?: Readonly<Record<string, unknown>>;
    readonly cancelledBy?: string;
    readonly settledBy?: string;
    readonly agentStopReason?: string;
    readonly agentError?: unknown;
    readonly beside?: unknown;
    readonly receipt?: Receipt;
  };
  turn_error: OfTurn & {
    readonly code: string;
    readonly message: string;
    readonly promptRequestId?: string | number;
    readonly exitCode?: number;
    readonly signal?: string;
    readonly stderrTail?: string;
    readonly agentError?: unknown;
    readonly beside?: unknown;
    readonly receipt?: Receipt;
  };
}

/** Proof of the events since the end of the previous turn. */
export interface Receipt {
  /** SHA-256 over their stored bytes, in hexadecimal. */
  readonly hash: string;
}

export interface PermissionMembers {
  readonly requestId: string;
  /** `session/request_permission` or `elicitation/create`. */
  readonly method: string;
  /** The agent's complete params. */
  readonly params: unknown;
  readonly optionIds?: readonly string[];
  readonly options?: readonly PermissionOption[];
  /** v1. */
  readonly toolCall?: ToolCallFields;
  /** v2. */
  readonly title?: string | null;
  readonly description?: string | null;
  readonly subject?: unknown;
  readonly promptId?: string;
  readonly child?: string;
}

/** The members of `data` in frames that are made for one stream. They have no id and are not in the log. */
export interface FrameMembers {
  replay_complete: {
    readonly sessionId?: string;
    readonly replayedCount: number;
    readonly lastReplayedEventId?: number;
  };
  /** The cursor could not be honoured; the stream continues from the oldest stored event. */
  state_resync_required: {
    /** Absent if it concerns all sessions that the cursor of a stream of many did not name. */
    readonly sessionId?: string;
    readonly reason: "ring_evicted" | "epoch_reset" | "deleted" | "unnamed";
    readonly detail?: "trimmed" | "epoch" | "ahead";
    readonly lastDeliveredId: number;
    readonly earliestAvailableId?: number;
  };
  session_snapshot: { readonly sessionId: string; readonly [member: string]: unknown };
}

/** Members of every event. */
export interface Envelope {
  /** Its number in the session's log: 1, 2, 3 … Only the last of several envelopes of one event has it. */
  readonly id?: number;
  readonly v: 1;
  /** The turn it belongs to. */
  readonly promptId?: string;
  /** The ended turn that it followed. */
  readonly late?: boolean;
  /** The name of the token that caused it, or that prompted. */
  readonly author?: string;
  /** The client that prompted. */
  readonly originatorClientId?: string;
  readonly _meta?: {
    readonly serverTimestamp: number;
    /** Its name in the log, if different. */
    readonly event?: string;
    /** The number of the event whose envelope follows. */
    readonly partOf?: number;
  };
}

type InSession = { readonly sessionId: string };
export type EventType = keyof EventMembers | keyof FrameMembers;

/** Return type: the event of one type. */
export type EventOf<Type extends EventType> = Envelope & { readonly type: Type } & {
  readonly data: Type extends keyof EventMembers
    ? InSession & EventMembers[Type]
    : Type extends keyof FrameMembers
      ? FrameMembers[Type]
      : never;
};

/** A kind of event that is not listed here. */
export interface UnknownEvent extends Envelope {
  readonly type: OtherWord;
  readonly data: Readonly<Record<string, unknown>>;
}

/** All known events. */
export type KnownEvent = { [Type in EventType]: EventOf<Type> }[EventType];
export type AnyEvent = KnownEvent | UnknownEvent;

/** An agent's update. */
export type UpdateEvent = EventOf<"session_update">;
