/** The open requests of all sessions. */

import { LazyFormCard } from "../content/lazy_form.js";
import { PermissionCard } from "../content/permission.js";
import { Icon } from "../frame/icon.js";
import { canNotify, isNotified, setNotified } from "../frame/notifications.js";
import { ago, moment, now } from "../frame/time.js";
import { tellError } from "../frame/toasts.js";
import { hrefOf } from "../route.js";
import { type Daemon, mayControl } from "../state/daemon.js";
import type { Asked, Inbox } from "../state/inbox.js";
import { titleOf } from "./badge.js";

export function InboxPane({ daemon, inbox }: { readonly daemon: Daemon; readonly inbox: Inbox }) {
  const asked = inbox.asked.value;
  if (!asked.length) {
    return (
      <div class="empty">
        <p>You're all caught up.</p>
        <p class="soft">When an agent asks for permission or has a question, it appears here and in its session.</p>
        {canNotify && !isNotified.value && (
          <button type="button" class="button" onClick={() => void setNotified(true)}>
            <Icon name="bell" />
            Turn on notifications
          </button>
        )}
      </div>
    );
  }
  return (
    <ul class="inbox" aria-live="polite" aria-relevant="additions">
      {asked.map((each) => (
        <li key={`${each.sessionId}/${each.request.requestId}`}>
          <AskedCard asked={each} mayAnswer={mayControl(daemon.caller)} inbox={inbox} />
        </li>
      ))}
    </ul>
  );
}

interface CardProps {
  readonly asked: Asked;
  readonly mayAnswer: boolean;
  readonly inbox: Inbox;
}

/** The card disappears when the daemon reports the request as closed, not when it is answered here. */
function AskedCard({ asked, mayAnswer, inbox }: CardProps) {
  const { request, sessionId, at } = asked;
  const answer = (body: object) =>
    inbox.answer(asked, body).catch((error: unknown) => {
      tellError(error);
      throw error;
    });
  const from = (
    <span class="inbox-from">
      <a href={hrefOf({ at: "session", sessionId })}>{titleOf(asked)}</a>
      {at > 0 && (
        <time class="soft" title={moment(at)}>
          {ago(at, now.value)}
        </time>
      )}
    </span>
  );
  if (request.method !== "session/request_permission") {
    return (
      <LazyFormCard
        request={request}
        mayAnswer={mayAnswer}
        onAnswer={(given) => answer({ answer: given })}
        onError={tellError}
      >
        {from}
      </LazyFormCard>
    );
  }
  const select = (optionId: string) => answer({ outcome: { outcome: "selected", optionId } });
  return (
    <PermissionCard request={request} mayAnswer={mayAnswer} onAnswer={select}>
      {from}
    </PermissionCard>
  );
}
