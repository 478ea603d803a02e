/** Bodies of requests and responses, as in `GET /openapi.json`: those that this package uses. Types only. */

import type { ConfigOption, ContentBlock } from "./acp.js";
import type { AnyEvent, PermissionMembers } from "./events.js";
import type { ChildRecord, ChildState } from "./view/children.js";
import type { Earlier, Item, Speaker } from "./view/items.js";
import type { Latest } from "./view/latest.js";
import type { StoredTerminal } from "./view/tools.js";
import type { TurnRecord } from "./view/turns.js";

/** What to do with a prompt while another turn runs. */
export type WhenBusy = "queue" | "reject" | "interrupt" | "steer" | "agent";

/** The state of a session. */
export type Standing = "idle" | "running" | "requires_action" | "cancelling" | "closed";

export interface Capabilities {
  readonly version: string;
  readonly features: readonly string[];
  readonly workspaceCwd: string;
  readonly workspaces: readonly { readonly id: string; readonly cwd: string; readonly primary: boolean }[];
  readonly policy: { readonly permission: string; readonly whenBusy: string };
  readonly agent: { readonly name: string };
  readonly caller: Caller;
}

/** The rights of a credential. */
export type Role = "observer" | "controller" | "owner";

/** The caller, by their credential. */
export interface Caller {
  readonly name: string;
  readonly role: Role;
  /** The only session that it is valid for. */
  readonly sessionId?: string;
}

export interface HostedAgent {
  readonly name: string;
  readonly label: string;
  readonly icon?: string;
  readonly default: boolean;
  readonly state: string;
  readonly why?: string;
  readonly protocolVersion?: number;
  readonly agentName?: string;
  readonly version?: string;
  readonly capabilities?: unknown;
  readonly sessions: number;
}

/** Parameters of a new session. All are optional. */
export interface NewSession {
  /** A directory on the daemon's machine, inside the allowed ones. */
  readonly cwd?: string;
  readonly agent?: string;
  readonly title?: string;
  readonly approvalMode?: string;
  readonly mcpServers?: readonly Readonly<Record<string, unknown>>[];
  readonly additionalDirectories?: readonly string[];
  readonly _meta?: Readonly<Record<string, unknown>>;
}

export interface SessionOpened {
  readonly sessionId: string;
  readonly workspaceCwd: string;
  readonly agent: string;
  readonly clientId?: string;
  readonly createdAt: string;
  readonly lastEventId: number;
  readonly eventEpoch: string;
}

/** A session in a list. */
export interface SessionEntry {
  readonly sessionId: string;
  readonly workspaceCwd: string;
  readonly cwd: string;
  readonly agent: string;
  readonly title?: string;
  readonly displayName?: string;
  /** A user set the title, so the agent does not change it. */
  readonly named?: boolean;
  /** The agent's title, if a user set the title. */
  readonly agentTitle?: string;
  /** The first line of its first prompt, a name for a session without a title. Events do not change it here. */
  readonly firstPrompt?: string;
  readonly forkOf?: string;
  readonly createdAt: string;
  readonly updatedAt: string;
  readonly state: Standing;
  readonly hasActivePrompt: boolean;
  /** The turn that the agent works on. */
  readonly activePromptId?: string;
  readonly isWaitingForPermission: boolean;
  readonly clientCount: number;
  readonly closed: boolean;
  readonly archived?: boolean;
  readonly additionalDirectories?: readonly string[];
  /** The event up to which this entry is current: later events of a stream are news. */
  readonly lastEventId: number;
  readonly eventEpoch: string;
  readonly permissionCount: number;
  readonly queuedCount: number;
  readonly queueHeld?: string;
  readonly backgroundCount: number;
  readonly runningChildCount: number;
  readonly suspectedComplete: boolean;
  readonly agentGone?: string;
  /** The latest matches of a search; absent if there are none. */
  readonly matches?: readonly SearchMatch[];
}
/** A match of a search in a message. */
export interface SearchMatch {
  /** A user's message, the agent's, or the title of a tool call. */
  readonly role: "user" | "agent" | "tool";
  readonly snippet: string;
  /** Start and end of each word in the snippet. */
  readonly marks: readonly (readonly [number, number])[];
  readonly eventId?: number;
  readonly promptId?: string;
  readonly childId?: string;
}
export interface SessionPage {
  readonly sessions: readonly SessionEntry[];
  readonly nextCursor?: string;
}
/** Which sessions to list. */
export interface SessionFilter {
  readonly state?: Standing | "open";
  readonly cwd?: string;
  readonly agent?: string;
  readonly archived?: "true" | "all";
  readonly search?: string;
}

/** The state of a session for a client that joins late. */
export interface SessionSnapshot extends SessionEntry {
  readonly isClosed: boolean;
  readonly commands?: unknown;
  readonly mode?: string;
  readonly modes?: unknown;
  readonly model?: string;
  readonly models?: unknown;
  readonly configOptions?: readonly ConfigOption[];
  readonly usage?: { readonly used: number; readonly size: number; readonly cost?: unknown };
  readonly background?: unknown;
  readonly plans: Readonly<Record<string, unknown>>;
  readonly queue: readonly { readonly promptId: string; readonly text: string; readonly queuedAt: number }[];
  readonly permissions: readonly PermissionMembers[];
}

/** An accepted prompt. */
export interface PromptReceipt {
  readonly promptId: string;
  /** The position before the first event of the turn. */
  readonly lastEventId: number;
  readonly eventEpoch: string;
  /** The prompt is queued. */
  readonly queued?: boolean;
  /** It was accepted before, with the same key. */
  readonly repeated?: boolean;
  /** The outcome of a prompt that was to be steered. */
  readonly outcome?: "injected" | "queued" | "started";
  /** Why it was not injected into the running turn. */
  readonly reason?: string;
}

export interface QueuedPrompt {
  readonly promptId: string;
  readonly content: readonly ContentBlock[];
  readonly text: string;
  readonly queuedAt: number;
  /** Its position; 0 is next. */
  readonly position?: number;
  readonly author?: string;
  readonly originatorClientId?: string;
  readonly steering?: boolean;
}
export interface Queue {
  readonly prompts: readonly QueuedPrompt[];
  /** No prompt of the queue is started. */
  readonly held: boolean;
  readonly heldReason?: string;
}

/** A turn. */
export interface TurnStatus {
  readonly sessionId: string;
  readonly promptId: string | null;
  readonly state: "idle" | "queued" | "running" | "completed" | "cancelled" | "error";
  readonly detailState?: string;
  readonly promptText?: string;
  readonly resultText?: string;
  readonly queuedAt?: number;
  readonly startedAt?: number;
  readonly endedAt?: number;
  readonly stopReason?: string;
  readonly error?: { readonly code: string; readonly message: string; readonly [member: string]: unknown };
  readonly usage?: Readonly<Record<string, unknown>>;
  readonly author?: string;
  readonly cancelledBy?: string;
  /** Who started it; `client` by default. */
  readonly origin?: "client" | "agent";
  readonly agentStopReason?: string;
  readonly joinedInto?: string;
}

/** A transcript as of one event: complete, or one page. */
export interface Transcript {
  readonly sessionId: string;
  readonly eventEpoch: string;
  readonly lastEventId: number;
  readonly workspaceCwd: string;
  readonly createdAt: string;
  readonly state: Standing;
  readonly title?: string;
  /** A user set the title, so the agent does not change it. */
  readonly named?: boolean;
  /** The place of the first of these items in the whole transcript, counted from 0. */
  readonly first: number;
  /** The `before` of the request for earlier items; undefined at the beginning. */
  readonly before?: number;
  readonly items: readonly Item[];
  readonly latest: Latest;
  readonly turns: readonly TurnRecord[];
  readonly terminals?: Readonly<Record<string, StoredTerminal>>;
  readonly background?: unknown;
  readonly children?: readonly ChildRecord[];
  /** The current agent. */
  readonly speaker?: Speaker;
  /** Items before the newest page that the agent may still change. */
  readonly earlier?: Earlier;
}

/** The transcript of a child session. */
export interface ChildTranscript {
  readonly child: {
    readonly id: string;
    readonly sessionId: string;
    readonly parentId: string;
    readonly state: ChildState;
    readonly cancellable: boolean;
    readonly workspaceCwd: string;
    readonly announcedAt: string;
    readonly title?: string;
    readonly description?: string;
    readonly promptId?: string;
    readonly permissions: readonly string[];
  };
  readonly lastEventId: number;
  readonly first: number;
  readonly before?: number;
  readonly items: readonly Item[];
  readonly terminals?: Readonly<Record<string, StoredTerminal>>;
  readonly background?: unknown;
  readonly earlier?: Earlier;
}

/** Consecutive events of a session. */
export interface LogPart {
  readonly sessionId: string;
  readonly eventEpoch: string;
  /** The newest event of the session. */
  readonly lastEventId: number;
  /** The `after` of the next request; there is more until it equals `lastEventId`. */
  readonly nextAfter: number;
  readonly events: readonly AnyEvent[];
}

/** A share link without its secret. */
export interface Share {
  readonly tokenId: string;
  /** Wall time in milliseconds. */
  readonly createdAt: number;
  readonly expiresAt: number;
}
export interface NewShare extends Share {
  /** A link by which anyone can watch the session. It is shown only once. */
  readonly url: string;
}

/** The result of an answer to a permission request. */
export interface AnswerReceipt {
  /** This answer won. */
  readonly won: boolean;
  /** The winning answer. */
  readonly answer: unknown;
  readonly by?: string;
}
