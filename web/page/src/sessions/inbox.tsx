/** Everything that waits for an answer, of all sessions, in one place. */

import type { PermissionOption } from "@turnwire/client";

import { ago, moment, now } from "../frame/time.js";
import { hrefOf } from "../route.js";
import { type Daemon, mayControl } from "../state/daemon.js";
import type { Asked, Inbox } from "../state/inbox.js";
import { done } from "./actions.js";
import { titleOf } from "./badge.js";

export function InboxPane({ daemon, inbox }: { readonly daemon: Daemon; readonly inbox: Inbox }) {
  const asked = inbox.asked.value;
  if (!asked.length) {
    return (
      <div class="empty">
        <p>Nothing waits for you.</p>
        <p class="soft">When an agent asks for permission or has a question, it is here and in its session.</p>
      </div>
    );
  }
  return (
    <ul class="inbox" aria-live="polite" aria-relevant="additions">
      {asked.map((each) => (
        <li key={`${each.sessionId}/${each.request.requestId}`}>
          <header class="inbox-head">
            <a href={hrefOf({ at: "session", sessionId: each.sessionId })}>{titleOf(each)}</a>
            {each.at > 0 && (
              <time class="soft small" title={moment(each.at)}>
                {ago(each.at, now.value)}
              </time>
            )}
          </header>
          <AskedCard asked={each} mayAnswer={mayControl(daemon.caller)} onAnswer={(answer) => void done(inbox.answer(each, answer))} />
        </li>
      ))}
    </ul>
  );
}

interface CardProps {
  readonly asked: Asked;
  readonly mayAnswer: boolean;
  readonly onAnswer: (answer: object) => void;
}

function AskedCard({ asked, mayAnswer, onAnswer }: CardProps) {
  const { request } = asked;
  const select = ({ optionId }: PermissionOption) => onAnswer({ outcome: { outcome: "selected", optionId } });
  return (
    <div class="inbox-card">
      <p>{questionOf(request)}</p>
      {mayAnswer && (
        <div class="inbox-options">
          {request.options?.map((each) => (
            <button type="button" class="button" key={each.optionId} onClick={() => select(each)}>
              {each.name ?? each.optionId}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** What is asked, in a few words of the agent's. */
export function questionOf({ title, params, toolCall }: Asked["request"]): string {
  const { message } = (params ?? {}) as { readonly message?: unknown };
  const words = title ?? message ?? toolCall?.title;
  return typeof words === "string" && words ? words : "The agent asks for permission";
}
