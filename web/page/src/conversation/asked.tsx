/**
 * What the agent asks: each open request as a card, and those of the running turn that are answered, with who answered
 * them. A card goes when the daemon says that the request is over, not when a button is pressed.
 */

import type { PermissionMembers } from "@turnwire/client";

import { PermissionCard } from "../content/permission_card.js";
import { tellError } from "../frame/toasts.js";
import type { ConversationState } from "../state/conversation.js";

export function AskedCards({ state, canAnswer }: { readonly state: ConversationState; readonly canAnswer: boolean }) {
  const view = state.view;
  if (!view) return null;
  const answer = async (request: PermissionMembers, body: object) => {
    try {
      await state.answer(request, body);
    } catch (error) {
      tellError(error);
    }
  };
  return (
    <div class="asked">
      {view.permissions.map((each) => (
        <PermissionCard key={each.requestId} request={each} mayAnswer={canAnswer} onAnswer={(optionId: string) => void answer(each, { outcome: { outcome: "selected", optionId } })} />
      ))}
    </div>
  );
}
