/** What the session does now, in one line that is always there: nothing moves when a turn begins or ends. */

import { useEffect, useState } from "preact/hooks";

import { durationInWords } from "../content/amounts.js";

/** The time, anew each second. It is shown, and decides nothing. */
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
  requires_action: "Waits for your answer",
  cancelling: "Stopping",
};

export function Standing({
  state,
  startedAt,
  isSuspected,
  background,
  settle,
}: {
  /** `idle`, `running`, `requires_action`, `cancelling`, `closed`. */
  readonly state: string;
  readonly startedAt: number | undefined;
  /** The daemon thinks that the turn is over and its agent forgot to say so. */
  readonly isSuspected: boolean;
  /** How many things go on in the background. */
  readonly background: number;
  /** Say that the turn is over; none for those who may not. */
  readonly settle: (() => void) | undefined;
}) {
  const words = WORDS[state];
  const now = useNow(words !== undefined);
  const behind = background === 0 ? "" : background === 1 ? "1 thing goes on in the background" : `${background} things go on in the background`;
  return (
    <div class="standing small">
      {words === undefined ? null : (
        <span class={state === "requires_action" ? "badge warn" : "badge info working"}>{words}</span>
      )}
      {words !== undefined && startedAt !== undefined ? (
        <span class="soft" aria-hidden="true">
          {elapsed(Math.max(0, now - startedAt))}
        </span>
      ) : null}
      {state === "closed" ? <span class="badge">Closed</span> : null}
      {isSuspected ? (
        <>
          <span class="soft">The agent seems to be done, and has not said so.</span>
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
