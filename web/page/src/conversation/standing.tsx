/** The session's state, in a line that is always there, so nothing moves when a turn begins or ends. */

import { useEffect, useState } from "preact/hooks";

import { durationInWords } from "../content/amounts.js";
import { isAway } from "../frame/link_mark.js";

/** The current time, updated each second. For display only. */
function useNow(isShown: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isShown) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isShown]);
  return now;
}

function elapsed(ms: number): string {
  return ms < 60_000 ? `${Math.floor(ms / 1_000)} s` : durationInWords(ms);
}

const WORDS: Readonly<Record<string, string>> = {
  running: "Working",
  requires_action: "Waiting for you",
  cancelling: "Stopping",
};

export function Standing({
  state,
  startedAt,
  isSuspected,
  background,
  canAnswer,
  settle,
}: {
  /** `idle`, `running`, `requires_action`, `cancelling`, `closed`. */
  readonly state: string;
  readonly startedAt: number | undefined;
  /** The daemon suspects that the turn is over although the agent has not reported its end. */
  readonly isSuspected: boolean;
  /** Number of items that the agent continues in the background. */
  readonly background: number;
  readonly canAnswer: boolean;
  /** Declare the turn over; undefined for observers. */
  readonly settle: (() => void) | undefined;
}) {
  const known = state === "requires_action" && !canAnswer ? "Waiting for an answer" : WORDS[state];
  const words = known !== undefined && isAway.value ? "Unknown" : known;
  const now = useNow(words !== undefined && !isAway.value);
  const behind = background === 0 ? "" : `${background} ${background === 1 ? "task" : "tasks"} running in the background`;
  return (
    <div class="standing small">
      {words === undefined ? null : (
        <span class={isAway.value ? "badge" : state === "requires_action" ? "badge warn" : "badge info working"}>{words}</span>
      )}
      {words !== undefined && startedAt !== undefined && !isAway.value ? (
        <span class="soft" aria-hidden="true">
          {elapsed(Math.max(0, now - startedAt))}
        </span>
      ) : null}
      {state === "closed" ? <span class="badge">Closed</span> : null}
      {isSuspected ? (
        <>
          <span class="soft">The agent seems to have finished without reporting it.</span>
          {settle ? (
            <button class="button small" type="button" onClick={settle}>
              Settle the turn
            </button>
          ) : null}
        </>
      ) : null}
      <span class="soft">{behind}</span>
    </div>
  );
}
