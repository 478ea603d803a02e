/**
 * The agent's requests: a card for each open one, and for those of the running turn that were answered. A card is
 * closed by the daemon's event, not by the button.
 */

import type { PermissionMembers } from "@turnwire/client";
import type { Item, ToolCall } from "@turnwire/client/view";
import { useEffect } from "preact/hooks";

import type { Resolved } from "../content/asked.js";
import { LazyFormCard } from "../content/lazy_form.js";
import { PermissionCard, isNumberKey } from "../content/permission.js";
import { singleKeys } from "../frame/shortcuts.js";
import { tellError } from "../frame/toasts.js";
import { type ConversationState, toolCallOf } from "../state/conversation.js";
import { resolvedOf } from "./answers.js";
import { type Shown, useDiffs } from "./item_view.js";

export function AskedCards({ shown, canAnswer }: { readonly shown: Shown; readonly canAnswer: boolean }) {
  const { state } = shown;
  const view = state.view;
  useNumberKeys(canAnswer);
  if (!view) return null;
  const over = state.closedRequests.filter(
    ({ request }) => request.promptId !== undefined && request.promptId === view.activePromptId,
  );
  return (
    <div class="asked">
      {over.map(({ request, closed }) => (
        <Card
          key={closed.requestId}
          request={request}
          resolved={resolvedOf(state, closed)}
          canAnswer={canAnswer}
          shown={shown}
        />
      ))}
      {view.permissions.map((each) => (
        <Card key={each.requestId} request={each} canAnswer={canAnswer} shown={shown} />
      ))}
    </div>
  );
}

/** Let number keys answer the first open request, unless text is being typed. */
function useNumberKeys(canAnswer: boolean): void {
  useEffect(() => {
    if (!canAnswer) return undefined;
    const press = (event: KeyboardEvent) => {
      const isOff = event.defaultPrevented || event.isComposing || singleKeys.peek() === "off";
      if (isOff || !isNumberKey(event) || isTyping(event.target)) return;
      const button = document.querySelector(`.asked .request:not(.over) [aria-keyshortcuts="${event.key}"]`);
      if (!(button instanceof HTMLElement)) return;
      event.preventDefault();
      const { top, bottom } = button.getBoundingClientRect();
      // A key must not give an answer that the user has not seen.
      if (top >= 0 && bottom <= innerHeight) button.click();
      else button.scrollIntoView({ block: "nearest" });
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [canAnswer]);
}

/** Whether a key goes to something else: a field, except the empty prompt field, a dialog or a menu. */
function isTyping(target: EventTarget | null): boolean {
  if (target instanceof HTMLTextAreaElement && target.matches(".composer-field")) return target.value !== "";
  return target instanceof Element && target.closest("input, textarea, select, dialog, [role=menu]") !== null;
}

interface CardProps {
  readonly request: PermissionMembers;
  readonly resolved?: Resolved;
  readonly canAnswer: boolean;
  readonly shown: Shown;
}

function Card({ request, resolved, canAnswer, shown }: CardProps) {
  const { state } = shown;
  const diffs = useDiffs(shown);
  const send = (body: object) => state.answer(request, body).catch(tellError);
  const common = { request, resolved, mayAnswer: canAnswer };
  if (request.method !== "session/request_permission") {
    return <LazyFormCard {...common} onAnswer={(answer) => send({ answer })} onError={tellError} />;
  }
  const terminals = state.view?.terminals;
  return (
    <PermissionCard
      {...common}
      call={callOf(state, request)}
      {...(terminals ? { terminals } : {})}
      diffs={diffs}
      onAnswer={(optionId) => send({ outcome: { outcome: "selected", optionId } })}
    />
  );
}

/** Return the tool call that a request is about, as it was reported before. */
function callOf(state: ConversationState, request: PermissionMembers): ToolCall | undefined {
  const id = toolCallOf(request);
  const isIt = (item: Item): item is ToolCall => item.item === "tool_call" && item.toolCallId === id;
  return state.view?.items.findLast(isIt);
}
