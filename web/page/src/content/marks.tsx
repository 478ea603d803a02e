/** Small marks: that something came late, how much of the context is used. */

import { costInWords, tokensInWords } from "./amounts.js";

/** It came after the end of its turn. */
export function LateMark() {
  return (
    <span class="badge warn late" title="It came after the end of its turn">
      late
    </span>
  );
}

export interface UsageMeterProps {
  /** Tokens in the agent's context, and how many fit. */
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
        title={`${words} of the context are used`}
      >
        <span style={{ width: `${share * 100}%` }} />
      </span>
      <span class="usage-words" aria-hidden="true">
        {Math.floor(share * 100)}%
      </span>
      {cost && <span class="usage-words">{costInWords(cost.amount, cost.currency)}</span>}
    </span>
  );
}
