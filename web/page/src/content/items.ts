/** Items of a transcript as these views read them. Types only. */

import type { Terminal } from "@turnwire/client/view";

export type {
  Compaction as CompactionItem,
  Message as MessageItem,
  ToolCall as ToolCallItem,
  Unknown as UnknownItem,
} from "@turnwire/client/view";

/** The parts of an agent's terminal that a view needs. */
export type TerminalItem = Pick<Terminal, "terminalId"> & Partial<Pick<Terminal, "command" | "cwd" | "output" | "exitStatus">>;
/** Terminals by id. */
export type Terminals = ReadonlyMap<string, TerminalItem>;
