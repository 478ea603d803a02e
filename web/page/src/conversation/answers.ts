/** Who answered the agent's requests, from the events that closed them. */

import { type Resolved, outcomeInWords, wasAllowed } from "../content/asked.js";
import { type ClosedRequest, type ConversationState, toolCallOf } from "../state/conversation.js";

export function resolvedOf(state: ConversationState, closed: ClosedRequest["closed"]): Resolved {
  const { end, author, answer, requestId } = closed;
  const by = author === undefined ? undefined : state.nameOf(author);
  return { end, by, answer, here: state.answeredHere.has(requestId) };
}

/** The answer to the permission request of a tool call. */
export interface CallAnswer {
  readonly words: string;
  readonly isAllowed: boolean;
}

export function answerOf(state: ConversationState, toolCallId: string): CallAnswer | undefined {
  const found = state.closedRequests.findLast(({ request }) => toolCallOf(request) === toolCallId);
  if (!found || found.closed.end !== "answered") return undefined;
  const resolved = resolvedOf(state, found.closed);
  return { words: outcomeInWords(found.request, resolved), isAllowed: wasAllowed(found.request, resolved) };
}
