/** The output of a command: its last lines, and all of them on demand. */

import { useMemo, useState } from "preact/hooks";

import { lastLines, type Span, terminalLines } from "./ansi.js";

export interface TerminalOutputProps {
  /** The output as text or as bytes. */
  readonly output: string | Uint8Array;
  readonly label?: string;
}

/** Lines that are shown at first. */
const SHOWN = 20;
/** Earlier lines that are parsed because their colours may continue. */
const LOOKED_BACK = 200;
/** Maximum number of lines: more would block the page. */
const MOST = 5000;
const MOST_CHARACTERS = 1_000_000;

export function TerminalOutput({ output, label = "Output" }: TerminalOutputProps) {
  const [isWhole, showWhole] = useState(false);
  const { lines, before } = useMemo(() => shownLines(output, isWhole), [output, isWhole]);
  if (lines.length === 0) return null;
  const shown = isWhole ? lines : lines.slice(-SHOWN);
  const hidden = before + lines.length - shown.length;
  return (
    <div class="terminal">
      {hidden > 0 && !isWhole && (
        <button type="button" class="more" onClick={() => showWhole(true)}>
          Show {hidden.toLocaleString("en")} earlier {hidden === 1 ? "line" : "lines"}
        </button>
      )}
      {hidden > 0 && isWhole && <p class="more">{hidden.toLocaleString("en")} earlier lines are not shown</p>}
      {isWhole && lines.length > SHOWN && (
        <button type="button" class="more" onClick={() => showWhole(false)}>
          Show the last {SHOWN} lines
        </button>
      )}
      <pre role="group" tabIndex={0} aria-label={label}>
        {shown.map((line, index) => (
          <TerminalLine key={index} spans={line} />
        ))}
      </pre>
    </div>
  );
}

function shownLines(
  output: string | Uint8Array,
  isWhole: boolean,
): { readonly lines: Span[][]; readonly before: number } {
  const text = (typeof output === "string" ? output : new TextDecoder().decode(output)).slice(-MOST_CHARACTERS);
  if (text === "") return { lines: [], before: 0 };
  const { text: end, before } = lastLines(text, isWhole ? MOST : SHOWN + LOOKED_BACK);
  return { lines: terminalLines(end), before };
}

function TerminalLine({ spans }: { readonly spans: readonly Span[] }) {
  return (
    <>
      {spans.map(({ text, classes }, index) =>
        classes === "" ? (
          text
        ) : (
          <span key={index} class={classes}>
            {text}
          </span>
        ),
      )}
      {"\n"}
    </>
  );
}
