/**
 * The agent's last message of a turn, folded from the turn's updates like the daemon's own view. Messages of child
 * sessions, and those inside a tool call, do not count.
 */

import type { ContentBlock } from "./acp.js";
import type { UpdateEvent } from "./events.js";

interface Message {
  text: string;
}

/** Updates that are not an item of a transcript, so they do not end a message. */
const NO_ITEM = new Set([
  "plan",
  "plan_update",
  "plan_removed",
  "available_commands_update",
  "current_mode_update",
  "config_option_update",
  "session_info_update",
  "usage_update",
  "state_update",
  "terminal_update",
  "terminal_output_chunk",
  "tool_call_content_chunk",
  "compaction_summary_chunk",
]);

export class Said {
  #last: Message | undefined;
  /** The message that text without an id continues: the newest item, if it is one. */
  #open: Message | undefined;
  readonly #byId = new Map<string, Message>();
  /** Tool calls and similar items, which remain one item however often they are updated. */
  readonly #items = new Set<unknown>();

  get text(): string {
    return this.#last?.text ?? "";
  }

  take(event: UpdateEvent): void {
    const update = event.data.update;
    if (event.data.child !== undefined) return;
    if (update.sessionUpdate === "agent_message_chunk") {
      if (isNested(update._meta)) this.#open = undefined;
      else this.#message(update.messageId).text += textOf(update.content);
    } else if (update.sessionUpdate === "agent_message") {
      const message = this.#message(update.messageId);
      if (update.content !== undefined) message.text = (update.content ?? []).map(textOf).join("");
    } else if (!NO_ITEM.has(update.sessionUpdate)) {
      const members = update as { readonly toolCallId?: unknown; readonly compactionId?: unknown };
      const id = members.toolCallId ?? members.compactionId;
      if (id === undefined || !this.#items.has(id)) this.#open = undefined;
      this.#items.add(id);
    }
  }

  #message(id: string | null | undefined): Message {
    let message = id == null ? this.#open : this.#byId.get(id);
    if (message === undefined) {
      message = this.#last = this.#open = { text: "" };
      if (id != null) this.#byId.set(id, message);
    }
    return message;
  }
}

function isNested(meta: Readonly<Record<string, unknown>> | null | undefined): boolean {
  return Object.values(meta ?? {}).some(
    (each) => typeof each === "object" && each !== null && "parentToolUseId" in each,
  );
}

function textOf(block: ContentBlock): string {
  return block.type === "text" ? block.text : "";
}
