/** One item of a conversation: a message, a thought, a tool call, a child session, or an item of an unknown kind. */

import type { ReadonlySignal, Signal } from "@preact/signals";
import { useComputed } from "@preact/signals";
import { type Child, type ChildSession, type Item, type ToolCall, nestedUnder } from "@turnwire/client/view";
import { useEffect, useState } from "preact/hooks";

import { type DiffUse, ToolCallCard } from "../content/call.js";
import type { DiffLayout, LineComment } from "../content/diff.js";
import { CompactionView, MessageView, ThoughtView, UnknownView } from "../content/message.js";
import { tellError } from "../frame/toasts.js";
import type { ConversationState } from "../state/conversation.js";
import { answerOf } from "./answers.js";

/** State that all items of a conversation share. */
export interface Shown {
  readonly state: ConversationState;
  /** Line comments for the next prompt; undefined for observers. */
  readonly comments: Signal<readonly LineComment[]> | undefined;
  readonly layout: Signal<DiffLayout>;
  /** Items that the reader opened or closed, by key. It outlives the row. */
  readonly opened: Signal<ReadonlyMap<string, boolean>>;
}

export function ItemView({
  item,
  place,
  shown,
}: {
  readonly item: ReadonlySignal<Item>;
  readonly place: number;
  readonly shown: Shown;
}) {
  const isGrowing = useComputed(() => shown.state.growing.value === place);
  return <ItemBody item={item.value} name={`${place}`} isGrowing={isGrowing.value} shown={shown} />;
}

interface BodyProps<Kind> {
  readonly item: Kind;
  /** A key that is unique among the items of the conversation. */
  readonly name: string;
  /** More chunks may follow. */
  readonly isGrowing: boolean;
  readonly shown: Shown;
}

function ItemBody(props: BodyProps<Item>) {
  const { item, isGrowing, shown } = props;
  switch (item.item) {
    case "message": {
      if (item.role === "thought") return <Thought {...props} item={item} />;
      const isNested = nestedUnder(item.meta) !== undefined;
      return (
        <div class={isNested ? "nested" : undefined}>
          <MessageView
            item={item}
            streaming={isGrowing}
            {...(item.author === undefined ? {} : { author: shown.state.nameOf(item.author) })}
          />
        </div>
      );
    }
    case "tool_call":
      return <Call {...props} item={item} />;
    case "compaction":
      return <CompactionView item={item} />;
    case "child":
      return <ChildView {...props} item={item} />;
    case "unknown":
      return <UnknownView item={item} />;
  }
}

/** Return whether the reader opened or closed an item, and a setter. */
function useOpened({ opened }: Shown, name: string): [boolean | undefined, (open: boolean) => void] {
  const chosen = useComputed(() => opened.value.get(name));
  return [chosen.value, (open) => (opened.value = new Map([...opened.peek(), [name, open]]))];
}

function Thought({ item, name, isGrowing, shown }: BodyProps<Parameters<typeof ThoughtView>[0]["item"]>) {
  const [open, onOpen] = useOpened(shown, name);
  return <ThoughtView item={item} streaming={isGrowing} open={open} onOpen={onOpen} />;
}

function Call({ item, name, shown }: BodyProps<ToolCall>) {
  const [open, onOpen] = useOpened(shown, name);
  // Folded while its request is open: the card below shows the same command or change.
  const isAsked = useComputed(() => shown.state.askedCalls.value.has(item.toolCallId));
  const hasTerminal = item.content?.some((each) => each.type === "terminal") ?? false;
  // A terminal continues independently of its call, so a call that shows one is rendered with every change.
  const terminals = hasTerminal ? shown.state.view?.terminals : undefined;
  const answer = useComputed(() => answerOf(shown.state, item.promptId, item.toolCallId)?.words).value;
  const isAllowed = useComputed(() => answerOf(shown.state, item.promptId, item.toolCallId)?.isAllowed ?? true).value;
  return (
    <div class={nestedUnder(item.meta) === undefined ? undefined : "nested"}>
      <ToolCallCard
        item={item}
        {...(terminals ? { terminals } : {})}
        answer={answer}
        isAllowed={isAllowed}
        open={open ?? (isAsked.value ? false : undefined)}
        onOpen={onOpen}
        diffs={useDiffs(shown)}
      />
    </div>
  );
}

/** Return the layout of diffs and the handlers of their comments. */
export function useDiffs({ layout, comments }: Pick<Shown, "layout" | "comments">): DiffUse {
  return {
    layout: layout.value,
    onLayout: (wanted) => (layout.value = wanted),
    ...(comments
      ? {
          comments: comments.value,
          onComment: (comment) => (comments.value = [...comments.peek(), comment]),
          onRemoveComment: (comment) => (comments.value = comments.peek().filter((each) => each !== comment)),
        }
      : {}),
  };
}

// -- child sessions ------------------------------------------------------------------------------------------

const CHILD_WORDS: Readonly<Record<string, string>> = {
  running: "working",
  requires_action: "needs an answer",
  idle: "done",
};

function ChildView({ item, name, shown }: BodyProps<ChildSession>) {
  const [chosen, choose] = useOpened(shown, name);
  const child = shown.state.view?.children.get(item.childId);
  const isOpen = chosen ?? false;
  const title = child?.record.title ?? child?.record.description ?? "Child session";
  const words = CHILD_WORDS[child?.record.state ?? ""];
  return (
    <section class="child" aria-label={`Child session: ${title}`}>
      <button type="button" class="call-head" aria-expanded={isOpen} onClick={() => choose(!isOpen)}>
        <span class="call-title">{title}</span>
        {words ? <span class={words === "done" ? "badge" : "badge info"}>{words}</span> : null}
      </button>
      {isOpen && child ? <ChildItems child={child} name={name} shown={shown} /> : null}
    </section>
  );
}

function ChildItems({ child, name, shown }: { readonly child: Child; readonly name: string; readonly shown: Shown }) {
  const { state } = shown;
  const { childId } = child.record;
  const [isAsked, setAsked] = useState(false);
  const load = () => {
    setAsked(true);
    state.loadChild(childId).then(() => setAsked(false), tellError);
  };
  useEffect(() => {
    if (!child.conversation) load();
  }, [childId]);
  // Rendered with every change of the session.
  void state.view;
  const { conversation } = child;
  if (!conversation) return <p class="soft small">Loading…</p>;
  return (
    <div class="child-items">
      {conversation.hasOlder ? (
        <button type="button" class="button small" disabled={isAsked} onClick={load}>
          Show earlier messages
        </button>
      ) : null}
      {conversation.items.map((each, at) => (
        <div class="row" key={conversation.first + at}>
          <ItemBody item={each} name={`${name}.${conversation.first + at}`} isGrowing={false} shown={shown} />
        </div>
      ))}
    </div>
  );
}
