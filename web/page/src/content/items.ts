/** Items of a transcript as the views here read them. Nothing runs here. */

import type { Terminal } from "@turnwire/client/view";

export type {
  Compaction as CompactionItem,
  Message as MessageItem,
  ToolCall as ToolCallItem,
  Unknown as UnknownItem,
} from "@turnwire/client/view";

/** A terminal of the agent: what a view needs of it. */
export type TerminalItem = Pick<Terminal, "terminalId"> & Partial<Pick<Terminal, "command" | "cwd" | "output" | "exitStatus">>;
/** Terminals by their id. */
export type Terminals = ReadonlyMap<string, TerminalItem>;
