/** The exports of `@turnwire/client/view`: sessions for display, folded from the daemon's data. Pure. */

export type { ChildRecord, ChildState } from "./children.js";
export type { Conversation } from "./conversation.js";
export { concernsEntry, foldEntry } from "./entry.js";
export type {
  ChildSession,
  Compaction,
  Earlier,
  Item,
  ItemFields,
  Message,
  MessageRole,
  Speaker,
  ToolCall,
  Unknown,
} from "./items.js";
export type { Latest, Usage } from "./latest.js";
export { nestedUnder } from "./messages.js";
export { type Answered, type Child, SessionView, type Waiting, emptyTranscript } from "./session.js";
export { type StoredTerminal, type Terminal, type Work, readBackground } from "./tools.js";
export type { Outcome, TurnRecord, TurnState } from "./turns.js";
