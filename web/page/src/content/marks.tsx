/** Small marks: a late update, the use of the context. */

import { costInWords, tokensInWords } from "./amounts.js";

/** Marks an update that arrived after the end of its turn. */
export function LateMark() {
  return (
    <span class="badge warn late" title="Arrived after the end of its turn">
      late
    </span>
  );
}

export interface UsageMeterProps {
  /** Tokens in the agent's context, and its size. */
  readonly used: number;
  readonly size: number;
  readonly cost?: { readonly amount: number; readonly currency: string } | null | undefined;
}

export function UsageMeter({ used, size, cost }: UsageMeterProps) {
  const share = size > 0 ? Math.min(1, Math.max(0, used / size)) : 0;
  const words = `${tokensInWords(used)} of ${tokensInWords(size)} tokens`;
  const tone = share >= 0.9 ? "bad" : share >= 0.75 ? "warn" : "";
  return (
    <span class="usage">
      <span
        class={`usage-bar ${tone}`}
        role="meter"
        aria-label="Context used"
        aria-valuemin={0}
        aria-valuemax={size}
        aria-valuenow={used}
        aria-valuetext={words}
        title={`${words} of context used`}
      >
        <span style={{ width: `${share * 100}%` }} />
      </span>
      <span class="usage-words" aria-hidden="true">
        Context {Math.floor(share * 100)}%
      </span>
      {cost && <span class="usage-words">{costInWords(cost.amount, cost.currency)}</span>}
    </span>
  );
}
