/** The panel with the daemon's explanation of the session's state. */

import { type Explanation, evidenceOf, findingsOf } from "./explanation.js";
import { durationOf } from "./time.js";

export interface ExplanationPanelProps {
  readonly known: Explanation | undefined;
  readonly isAsking: boolean;
  readonly onRefresh: () => void;
}

export function ExplanationPanel({ known, isAsking, onRefresh }: ExplanationPanelProps) {
  return (
    <section class="inspector-explanation" aria-label="What it waits for">
      <header>
        <h2>What it waits for</h2>
        {known && (
          <span class="soft">
            {known.state.replaceAll("_", " ")}
            {known.quietS === undefined ? "" : `, quiet for ${durationOf(known.quietS * 1000)}`}
          </span>
        )}
        <button type="button" class="button" onClick={onRefresh}>
          Refresh
        </button>
      </header>
      {known ? (
        <>
          <ul class="inspector-findings" aria-live="polite">
            {findingsOf(known).map((each) => (
              <li key={each.words} class={each.tone}>
                {each.words}
              </li>
            ))}
          </ul>
          <dl class="inspector-evidence">
            {evidenceOf(known).map(({ name, value }) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{typeof value === "string" ? value : <pre tabIndex={0}>{value.join("\n")}</pre>}</dd>
              </div>
            ))}
          </dl>
        </>
      ) : (
        isAsking && <p class="soft">Asking the daemon …</p>
      )}
    </section>
  );
}
