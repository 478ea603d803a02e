/** The end of a turn, from its terminal event alone. */

import { durationInWords } from "../content/amounts.js";
import { inSentence } from "./answers.js";

/** The parts of a turn's record that its end shows. */
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
      readonly agentError?: unknown;
    };
  };
}

const STOPPED: Readonly<Record<string, string>> = {
  end_turn: "Done",
  cancelled: "Cancelled",
  refusal: "The agent refused",
  max_tokens: "Stopped: token limit reached",
  max_turn_requests: "Stopped: limit of model requests per turn reached",
};
const ENDED: Readonly<Record<string, string>> = {
  removed: "Removed from the queue",
  joined: "Merged into another turn",
  settled: "Settled: marked as over",
};
const FAILED: Readonly<Record<string, string>> = {
  agent_exited: "The agent's process ended",
  agent_launch_failed: "The agent could not be started",
  daemon_restarted: "The daemon was restarted during this turn",
  node_lost: "The node that ran this turn was lost",
  cancel_escalated: "The agent did not stop and was ended",
  agent_error: "The agent reported an error",
  auth_required: "The agent needs a login",
};
/** Errors whose message repeats the line above. */
const NO_DETAILS = new Set(["daemon_restarted", "node_lost"]);

/** Return the end of a turn in one line. */
export function endOf(turn: EndedTurn, nameOf = (author: string) => author): string {
  const { outcome, cancelledBy } = turn;
  if (outcome?.error) return FAILED[outcome.error.code] ?? "The turn failed";
  const ended = ENDED[outcome?.ending ?? ""];
  if (ended !== undefined) return ended;
  const reason = outcome?.stopReason ?? "";
  const words = STOPPED[reason] ?? `Ended: ${reason || "no reason given"}`;
  return reason === "cancelled" && cancelledBy ? `${words} by ${inSentence(nameOf(cancelledBy))}` : words;
}

/** Return the text of an error: the agent's own if there is one. */
function detailsOf(error: NonNullable<NonNullable<EndedTurn["outcome"]>["error"]>): string {
  const own = (error.agentError as { readonly message?: unknown } | undefined)?.message;
  if (typeof own === "string" && own.trim()) return own;
  return NO_DETAILS.has(error.code) ? "" : error.message;
}

function tokensOf(usage: unknown): string {
  const total = (usage as { readonly totalTokens?: unknown } | undefined)?.totalTokens;
  return typeof total === "number" ? `${total.toLocaleString("en")} tokens` : "";
}

export interface TurnEndProps {
  readonly turn: EndedTurn;
  readonly nameOf: (author: string) => string;
  /** Send the prompt of a failed turn again; undefined if that is not possible. */
  readonly again: (() => void) | undefined;
}

export function TurnEnd({ turn, nameOf, again }: TurnEndProps) {
  const { outcome, startedAt, endedAt } = turn;
  const error = outcome?.error;
  const span = startedAt !== undefined && endedAt !== undefined ? durationInWords(endedAt - startedAt) : "";
  const title = outcome?.receipt && `Receipt ${outcome.receipt.hash}`;
  const facts = [endOf(turn, nameOf), span, tokensOf(outcome?.usage)].filter(Boolean).join(" · ");
  if (!error) {
    return (
      <p class="turn-end small soft" title={title} data-turn={turn.promptId} data-end={outcome?.stopReason}>
        {facts}
      </p>
    );
  }
  const details = detailsOf(error);
  return (
    <div class="turn-end failed small" title={title} data-turn={turn.promptId} data-end={error.code}>
      <strong>{facts}</strong>
      {details ? <p>{details}</p> : null}
      {error.stderrTail ? (
        <details>
          <summary>Last output on stderr</summary>
          <pre class="mono">{error.stderrTail}</pre>
        </details>
      ) : null}
      {again ? (
        <button type="button" class="button small" onClick={again}>
          Send again
        </button>
      ) : null}
    </div>
  );
}
