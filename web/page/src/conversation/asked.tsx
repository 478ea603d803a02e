/**
 * What the agent asks: each open request as a card, and those of the running turn that are answered, with who answered
 * them. A card is over when the daemon says so, not when a button is pressed.
 */

import type { PermissionMembers } from "@turnwire/client";
import type { Item, ToolCall } from "@turnwire/client/view";

import type { Resolved } from "../content/asked.js";
import { FormCard } from "../content/elicitation.js";
import { PermissionCard } from "../content/permission.js";
import { tellError } from "../frame/toasts.js";
import { type ConversationState, toolCallOf } from "../state/conversation.js";
import { type Shown, useDiffs } from "./item_view.js";

export function AskedCards({ shown, canAnswer }: { readonly shown: Shown; readonly canAnswer: boolean }) {
  const { state } = shown;
  const view = state.view;
  if (!view) return null;
  const over = state.closedRequests.filter(
    ({ request }) => request.promptId !== undefined && request.promptId === view.activePromptId,
  );
  return (
    <div class="asked">
      {over.map(({ request, closed }) => {
        const { end, author: by, answer, requestId } = closed;
        const resolved = { end, by, answer, here: state.answeredHere.has(requestId) };
        return <Card key={requestId} request={request} resolved={resolved} canAnswer={canAnswer} shown={shown} />;
      })}
      {view.permissions.map((each) => (
        <Card key={each.requestId} request={each} canAnswer={canAnswer} shown={shown} />
      ))}
    </div>
  );
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
    return <FormCard {...common} onAnswer={(answer) => send({ answer })} />;
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

/** What was told before of the tool call that a request is about. */
function callOf(state: ConversationState, request: PermissionMembers): ToolCall | undefined {
  const id = toolCallOf(request);
  const isIt = (item: Item): item is ToolCall => item.item === "tool_call" && item.toolCallId === id;
  return state.view?.items.findLast(isIt);
}
