/**
 * Bodies of requests and answers, as `GET /openapi.json` has them: the ones that this package uses. Nothing runs
 * here.
 */

import type { ConfigOption, ContentBlock } from "./acp.js";
import type { PermissionMembers } from "./events.js";

/** What to do with a prompt while another turn runs. */
export type WhenBusy = "queue" | "reject" | "interrupt" | "steer" | "agent";

/** Where a session stands. */
export type Standing = "idle" | "running" | "requires_action" | "cancelling" | "closed";

export interface Capabilities {
  readonly version: string;
  readonly features: readonly string[];
  readonly workspaceCwd: string;
  readonly workspaces: readonly { readonly id: string; readonly cwd: string; readonly primary: boolean }[];
  readonly policy: { readonly permission: string; readonly whenBusy: string };
  readonly agent: { readonly name: string };
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

/** What to create. All of it is optional. */
export interface NewSession {
  /** A directory on the daemon's machine, inside of those that it allows. */
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
  readonly cwd: string;
  readonly agent: string;
  readonly title?: string;
  readonly forkOf?: string;
  readonly createdAt: string;
  readonly updatedAt: string;
  readonly state: Standing;
  readonly hasActivePrompt: boolean;
  readonly isWaitingForPermission: boolean;
  readonly clientCount: number;
  readonly closed: boolean;
  readonly archived?: boolean;
  /** The event up to which all of this is true: what a stream tells after it is news. */
  readonly lastEventId: number;
  readonly eventEpoch: string;
  readonly permissionCount: number;
  readonly queuedCount: number;
  readonly queueHeld?: string;
  readonly backgroundCount: number;
  readonly runningChildCount: number;
  readonly suspectedComplete: boolean;
  readonly agentGone?: string;
  /** Where the words of a search were said in it, the newest first; absent if they were not. */
  readonly matches?: readonly SearchMatch[];
}
/** Words of a search in something that was said. */
export interface SearchMatch {
  /** A user's words, the agent's, or the title of a tool call. */
  readonly role: "user" | "agent" | "tool";
  readonly snippet: string;
  /** Where in the snippet each word begins and ends. */
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

/** Where a session stands, with what a client that joins late must know. */
export interface SessionSnapshot extends SessionEntry {
  readonly isClosed: boolean;
  readonly activePromptId?: string;
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
  /** It waits for its turn. */
  readonly queued?: boolean;
  /** It was accepted before, with the same key. */
  readonly repeated?: boolean;
  /** What became of one that was to be steered. */
  readonly outcome?: "injected" | "queued" | "started";
  /** Why it was not taken into the running turn. */
  readonly reason?: string;
}

export interface QueuedPrompt {
  readonly promptId: string;
  readonly content: readonly ContentBlock[];
  readonly text: string;
  readonly queuedAt: number;
  /** Its place, 0 is next. */
  readonly position?: number;
  readonly author?: string;
  readonly originatorClientId?: string;
  readonly steering?: boolean;
}
export interface Queue {
  readonly prompts: readonly QueuedPrompt[];
  /** Nothing starts from it. */
  readonly held: boolean;
  readonly heldReason?: string;
}

/** A turn as the daemon knows it. */
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
  readonly agentStopReason?: string;
  readonly joinedInto?: string;
}

/** What was said and done, as of one event. */
export interface Transcript {
  readonly sessionId: string;
  readonly eventEpoch: string;
  readonly lastEventId: number;
  readonly state: Standing;
  readonly title?: string;
  readonly items: readonly { readonly item: string; readonly [member: string]: unknown }[];
  readonly latest: Readonly<Record<string, unknown>>;
  readonly turns: readonly { readonly promptId: string; readonly [member: string]: unknown }[];
  readonly terminals?: Readonly<Record<string, unknown>>;
  readonly background?: unknown;
  readonly children?: readonly unknown[];
}

/** What became of an answer to a permission request. */
export interface AnswerReceipt {
  /** It counts. */
  readonly won: boolean;
  /** The answer that counts. */
  readonly answer: unknown;
  readonly by?: string;
}
