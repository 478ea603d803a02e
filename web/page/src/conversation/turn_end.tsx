/** How a turn ended, in words. It is told by the turn's terminal event alone. */

import { durationInWords } from "../content/amounts.js";

/** A turn as the transcript and the events have it. */
export interface EndedTurn {
  readonly promptId: string;
  readonly startedAt?: number;
  readonly endedAt?: number;
  readonly cancelledBy?: string;
  readonly joinedInto?: string;
  readonly outcome?: {
    readonly stopReason?: string;
    readonly ending?: string;
    readonly usage?: unknown;
    readonly agentStopReason?: string;
    readonly receipt?: { readonly hash: string };
    readonly error?: {
      readonly code: string;
      readonly message: string;
      readonly exitCode?: number;
      readonly signal?: string;
      readonly stderrTail?: string;
    };
  };
}

const STOPPED: Readonly<Record<string, string>> = {
  end_turn: "Done",
  cancelled: "Cancelled",
  refusal: "The agent refused",
  max_tokens: "Cut: the model's limit of tokens was reached",
  max_turn_requests: "Cut: the limit of requests in a turn was reached",
};
const ENDED: Readonly<Record<string, string>> = {
  removed: "Removed from the queue",
  joined: "Became a part of another turn",
  settled: "Settled: somebody said that it is over",
};
const FAILED: Readonly<Record<string, string>> = {
  agent_exited: "The agent's process ended",
  agent_launch_failed: "The agent could not be started",
  daemon_restarted: "The daemon was restarted",
  node_lost: "The node that ran it was lost",
  cancel_escalated: "The agent did not stop by itself and was ended",
  agent_error: "The agent reported an error",
  auth_required: "The agent wants a login",
};

/** In one line. */
export function endOf(turn: EndedTurn): string {
  const { outcome, cancelledBy } = turn;
  if (outcome?.error) return FAILED[outcome.error.code] ?? "The turn failed";
  const ended = ENDED[outcome?.ending ?? ""];
  if (ended !== undefined) return ended;
  const reason = outcome?.stopReason ?? "";
  const words = STOPPED[reason] ?? `Ended: ${reason || "no reason given"}`;
  return reason === "cancelled" && cancelledBy ? `${words} by ${cancelledBy}` : words;
}

function tokensOf(usage: unknown): string {
  const total = (usage as { readonly totalTokens?: unknown } | undefined)?.totalTokens;
  return typeof total === "number" ? `${total.toLocaleString("en")} tokens` : "";
}

export function TurnEnd({ turn }: { readonly turn: EndedTurn }) {
  const { outcome, startedAt, endedAt } = turn;
  const error = outcome?.error;
  const span = startedAt !== undefined && endedAt !== undefined ? durationInWords(endedAt - startedAt) : "";
  const title = outcome?.receipt && `Receipt ${outcome.receipt.hash}`;
  const facts = [endOf(turn), span, tokensOf(outcome?.usage)].filter(Boolean).join(" · ");
  if (!error) {
    return (
      <p class="turn-end small soft" title={title} data-turn={turn.promptId} data-end={outcome?.stopReason}>
        {facts}
      </p>
    );
  }
  return (
    <div class="turn-end failed small" title={title} data-turn={turn.promptId} data-end={error.code}>
      <strong>{facts}</strong>
      <p>{error.message}</p>
      {error.stderrTail ? (
        <details>
          <summary>What it wrote last</summary>
          <pre class="mono">{error.stderrTail}</pre>
        </details>
      ) : null}
    </div>
  );
}
