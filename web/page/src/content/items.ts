/** Items of a transcript as the daemon tells them (`acp=agent`): what the views here read of them. Nothing runs here. */

import type { ContentBlock, ToolCallContent } from "@turnwire/client";

interface Item {
  /** When it first appeared, in milliseconds. */
  readonly at: number;
  /** The turn that it was said in. */
  readonly promptId?: string;
  /** The ended turn that it, or a change of it, came after: it is late then. */
  readonly after?: string;
}

export interface MessageItem extends Item {
  readonly item: "message";
  readonly role: "user" | "agent" | "thought";
  readonly content?: readonly ContentBlock[];
  /** It is what a client prompted. */
  readonly isPrompt?: boolean;
  readonly author?: string;
  /** The content at the end of its turn, if it changed afterwards. */
  readonly inTime?: readonly ContentBlock[];
}

export interface ToolCallItem extends Item {
  readonly item: "tool_call";
  readonly toolCallId: string;
  readonly name?: string;
  readonly title?: string;
  /** `other` if it is not there. */
  readonly kind?: string;
  /** `pending` if it is not there. */
  readonly status?: string;
  readonly content?: readonly ToolCallContent[];
  readonly locations?: readonly { readonly path: string; readonly line?: number | null }[];
  readonly rawInput?: unknown;
  readonly rawOutput?: unknown;
  /** It was unfinished when its turn was asked to cancel. */
  readonly cancelledLocally?: boolean;
  /** It was unfinished when its turn ended, and no background work. */
  readonly openAtEnd?: boolean;
}

export interface CompactionItem extends Item {
  readonly item: "compaction";
  readonly compactionId: string;
  /** `in_progress` if it is not there. */
  readonly status?: string;
  readonly summary?: readonly ContentBlock[];
  readonly error?: string;
}

export interface UnknownItem extends Item {
  readonly item: "unknown";
  readonly kind: string;
  readonly update: unknown;
}

/** A terminal of the agent. */
export interface TerminalItem {
  readonly terminalId: string;
  readonly command?: string | null;
  readonly cwd?: string | null;
  /** Bytes, or base64 of them. */
  readonly output?: string | Uint8Array;
  /** `exitCode` or `signal`, once it ended. */
  readonly exitStatus?: unknown;
}
/** Terminals by their id. */
export type Terminals = ReadonlyMap<string, TerminalItem> | Readonly<Record<string, TerminalItem>>;
