/**
 * ACP's types for agents: content blocks, updates, capabilities. Types only. Kinds that are not listed arrive as
 * `UnknownBlock` and `UnknownUpdate`.
 */

/**
 * Any text other than the listed words. As the type of an enumeration's open member it lets `===` with a listed word
 * narrow the type. No such object exists at run time.
 */
declare enum OtherWord {
  any = "…",
}
export type { OtherWord };

type Meta = { readonly _meta?: Readonly<Record<string, unknown>> | null };

export interface TextBlock extends Meta {
  readonly type: "text";
  readonly text: string;
}
export interface ImageBlock extends Meta {
  readonly type: "image";
  /** Base64. */
  readonly data: string;
  readonly mimeType: string;
  readonly uri?: string | null;
}
export interface AudioBlock extends Meta {
  readonly type: "audio";
  readonly data: string;
  readonly mimeType: string;
}
export interface ResourceLink extends Meta {
  readonly type: "resource_link";
  readonly uri: string;
  readonly name: string;
  readonly title?: string | null;
  readonly description?: string | null;
  readonly mimeType?: string | null;
  readonly size?: number | null;
}
export interface EmbeddedResource extends Meta {
  readonly type: "resource";
  readonly resource: {
    readonly uri: string;
    readonly text?: string | null;
    readonly blob?: string | null;
    readonly mimeType?: string | null;
  };
}
export interface UnknownBlock {
  readonly type: OtherWord;
  readonly [member: string]: unknown;
}
export type ContentBlock = TextBlock | ImageBlock | AudioBlock | ResourceLink | EmbeddedResource | UnknownBlock;

/** A text, or content blocks. */
export type Content = string | readonly ContentBlock[];

// -- updates -------------------------------------------------------------------------------------------------

interface Chunk<Kind extends string> extends Meta {
  readonly sessionUpdate: Kind;
  readonly content: ContentBlock;
  readonly messageId?: string | null;
}
export type AgentMessageChunk = Chunk<"agent_message_chunk">;
export type AgentThoughtChunk = Chunk<"agent_thought_chunk">;
export type UserMessageChunk = Chunk<"user_message_chunk">;

/** v2: a list replaces the content, null clears it, an absent member keeps it. */
interface Whole<Kind extends string> extends Meta {
  readonly sessionUpdate: Kind;
  readonly messageId: string;
  readonly content?: readonly ContentBlock[] | null;
}
export type AgentMessage = Whole<"agent_message">;
export type AgentThought = Whole<"agent_thought">;
export type UserMessage = Whole<"user_message">;

export type ToolCallContent =
  | { readonly type: "content"; readonly content: ContentBlock }
  | {
      readonly type: "diff";
      /** v1. */
      readonly path?: string;
      readonly oldText?: string | null;
      readonly newText?: string;
      /** v2. */
      readonly changes?: readonly {
        readonly operation: string;
        readonly path?: string | null;
        readonly oldPath?: string | null;
      }[];
      readonly patch?: { readonly format: string; readonly text: string } | null;
    }
  | { readonly type: "terminal"; readonly terminalId: string }
  | { readonly type: OtherWord; readonly [member: string]: unknown };

export interface ToolCallFields extends Meta {
  readonly toolCallId: string;
  readonly title?: string | null;
  readonly name?: string | null;
  readonly kind?: string | null;
  /** `pending`, `in_progress`, `completed`, `failed` … */
  readonly status?: string | null;
  readonly content?: readonly ToolCallContent[] | null;
  readonly locations?: readonly { readonly path: string; readonly line?: number | null }[] | null;
  readonly rawInput?: unknown;
  readonly rawOutput?: unknown;
}
export interface ToolCall extends ToolCallFields {
  readonly sessionUpdate: "tool_call";
}
export interface ToolCallUpdate extends ToolCallFields {
  readonly sessionUpdate: "tool_call_update";
}
export interface ToolCallContentChunk extends Meta {
  readonly sessionUpdate: "tool_call_content_chunk";
  readonly toolCallId: string;
  readonly content: ToolCallContent;
}
export interface PlanEntry {
  readonly content: string;
  readonly priority?: string;
  readonly status: string;
}
export interface Plan extends Meta {
  readonly sessionUpdate: "plan";
  readonly entries: readonly PlanEntry[];
}
export interface AvailableCommand {
  readonly name: string;
  readonly description: string;
  readonly input?: { readonly hint?: string } | null;
}
export interface AvailableCommandsUpdate extends Meta {
  readonly sessionUpdate: "available_commands_update";
  readonly availableCommands: readonly AvailableCommand[];
}
export interface CurrentModeUpdate extends Meta {
  readonly sessionUpdate: "current_mode_update";
  readonly currentModeId: string;
}
export interface ConfigOption {
  readonly type: string;
  /** v1. */
  readonly id?: string;
  /** v2. */
  readonly configId?: string;
  readonly name: string;
  readonly category?: string | null;
  readonly description?: string | null;
  readonly currentValue: string | boolean;
  readonly options?: readonly unknown[];
}
export interface ConfigOptionUpdate extends Meta {
  readonly sessionUpdate: "config_option_update";
  readonly configOptions: readonly ConfigOption[];
}
export interface UsageUpdate extends Meta {
  readonly sessionUpdate: "usage_update";
  readonly used: number;
  readonly size: number;
  readonly cost?: { readonly amount: number; readonly currency: string } | null;
}
export interface UnknownUpdate {
  readonly sessionUpdate: OtherWord;
  readonly [member: string]: unknown;
}
/** The payload of a `session/update`. */
export type Update =
  | AgentMessageChunk
  | AgentThoughtChunk
  | UserMessageChunk
  | AgentMessage
  | AgentThought
  | UserMessage
  | ToolCall
  | ToolCallUpdate
  | ToolCallContentChunk
  | Plan
  | AvailableCommandsUpdate
  | CurrentModeUpdate
  | ConfigOptionUpdate
  | UsageUpdate
  | UnknownUpdate;

// -- permission requests -------------------------------------------------------------------------------------

export interface PermissionOption {
  readonly optionId: string;
  readonly name?: string;
  /** `allow_once`, `allow_always`, `reject_once`, `reject_always`. */
  readonly kind?: string;
}
export type PermissionOutcome =
  { readonly outcome: "selected"; readonly optionId: string } | { readonly outcome: "cancelled" };
