/** Who answered the agent's requests. */

import type { Resolved } from "../content/asked.js";
import type { ClosedRequest, ConversationState } from "../state/conversation.js";

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

/** Return the answer to the last permission request of a tool call, from the record of its turn. */
export function answerOf(state: ConversationState, promptId: string | undefined, toolCallId: string): CallAnswer | undefined {
  const turn = promptId === undefined ? undefined : state.view?.turns.get(promptId);
  const found = Object.values(turn?.asked ?? {}).findLast((each) => each.toolCallId === toolCallId);
  if (found?.allowed === undefined) return undefined;
  const by = found.author === undefined ? "" : ` by ${inSentence(state.nameOf(found.author))}`;
  return { words: `${found.allowed ? "Allowed" : "Rejected"}${by}`, isAllowed: found.allowed };
}

/** Return a display name as it stands inside a sentence. */
export function inSentence(name: string): string {
  return name === "You" ? "you" : name;
}
