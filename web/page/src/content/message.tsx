/** Messages of users and the agent, thoughts, compactions, and updates of an unknown kind. */

import type { ContentBlock } from "@turnwire/client";
import { type ComponentChildren } from "preact";

import { ContentBlockView } from "./block.js";
import { Folded } from "./fold.js";
import type { CompactionItem, MessageItem, UnknownItem } from "./items.js";
import { JsonView } from "./json.js";
import { LateMark } from "./marks.js";

interface ContentProps {
  readonly content: readonly ContentBlock[];
  readonly streaming: boolean;
  readonly showsTags?: boolean;
}

function Content({ content, streaming, showsTags = false }: ContentProps) {
  return (
    <div class="content">
      {content.map((each, index) => (
        <ContentBlockView
          key={index}
          block={each}
          streaming={streaming && index === content.length - 1}
          showsTags={showsTags}
        />
      ))}
    </div>
  );
}

export interface MessageViewProps {
  readonly item: MessageItem;
  /** More chunks will follow. */
  readonly streaming?: boolean;
  /** Display name of the author; by default the author of the item. */
  readonly author?: string;
  /** Shown next to the author: time, buttons. */
  readonly children?: ComponentChildren;
}

export function MessageView({ item, streaming = false, author = item.author, children }: MessageViewProps) {
  const isUser = item.role === "user";
  const isLate = item.after !== undefined;
  const hasHead = isLate || children !== undefined || (isUser && author !== undefined);
  return (
    <article class={`message ${item.role}`} aria-label={isUser ? `Message from ${author ?? "user"}` : "Message from the agent"}>
      {hasHead && (
        <header class="message-head">
          {author !== undefined && <span class="author">{author}</span>}
          {isLate && <LateMark />}
          {children}
        </header>
      )}
      <Content content={item.content ?? []} streaming={streaming} showsTags={isUser} />
      {item.inTime !== undefined && (
        <Folded summary="Text at the end of the turn" class="in-time">
          {() => <Content content={item.inTime!} streaming={false} />}
        </Folded>
      )}
    </article>
  );
}

export interface ThoughtViewProps {
  readonly item: MessageItem;
  readonly streaming?: boolean;
  readonly open?: boolean | undefined;
  readonly onOpen?: (open: boolean) => void;
}

export function ThoughtView({ item, streaming = false, open, onOpen }: ThoughtViewProps) {
  const content = item.content ?? [];
  const line = lineOf(content, streaming);
  return (
    <Folded
      class={streaming ? "thought live" : "thought"}
      open={open}
      onToggle={onOpen}
      summary={
        <>
          <span class="thought-name">{streaming ? "Thinking" : "Thought"}</span>
          <span class="thought-line">{line}</span>
          {item.after !== undefined && <LateMark />}
        </>
      }
    >
      {() => <Content content={content} streaming={streaming} />}
    </Folded>
  );
}

/** Return one line of a thought: the newest while it is streamed, the first one afterwards. */
function lineOf(content: readonly ContentBlock[], isLive: boolean): string {
  const texts = content.flatMap((each) => (each.type === "text" ? [each.text] : []));
  // Read only the ends: a thought may be long, and it grows.
  const lines = (isLive ? (texts.at(-1) ?? "").slice(-400) : (texts[0] ?? "").slice(0, 400))
    .split("\n")
    .filter((each) => each.trim());
  return ((isLive ? lines.at(-1) : lines[0]) ?? "").replace(/[*_`#>]+/g, "").trim();
}

const COMPACTIONS: Readonly<Record<string, string>> = {
  in_progress: "Compacting the conversation",
  completed: "Conversation compacted",
  failed: "Compacting the conversation failed",
  cancelled: "Compacting the conversation was cancelled",
};

export function CompactionView({ item }: { readonly item: CompactionItem }) {
  const words = COMPACTIONS[item.status ?? "in_progress"] ?? COMPACTIONS["in_progress"]!;
  const summary = item.summary ?? [];
  return (
    <div class="compaction" role="note">
      {summary.length === 0 ? (
        <p class="divider">{words}</p>
      ) : (
        <Folded summary={words}>
          {() => <Content content={summary} streaming={item.status === "in_progress"} />}
        </Folded>
      )}
      {item.error !== undefined && <p class="soft small">{item.error}</p>}
    </div>
  );
}

/** An update of an unknown kind. It is shown rather than hidden. */
export function UnknownView({ item }: { readonly item: UnknownItem }) {
  return <JsonView label={`Update of unknown kind ${item.kind}`} value={item.update} />;
}
