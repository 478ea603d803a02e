/** Raw input or output of a tool: text, or formatted JSON. */

import { useState } from "preact/hooks";

import { Folded } from "./fold.js";
import { visible } from "./visible.js";

export interface JsonViewProps {
  readonly label: string;
  readonly value: unknown;
  readonly open?: boolean;
}

/** Characters that are shown at first. */
const SHOWN = 20_000;

export function JsonView({ label, value, open = false }: JsonViewProps) {
  return (
    <Folded summary={label} initial={open}>
      {() => <Plain text={jsonText(value)} label={label} />}
    </Folded>
  );
}

/** Preformatted text; a long one is cut until the reader asks for all of it. */
export function Plain({ text, label }: { readonly text: string; readonly label: string }) {
  const [isWhole, showWhole] = useState(false);
  const isCut = !isWhole && text.length > SHOWN;
  return (
    <>
      <pre class="raw-text" role="group" tabIndex={0} aria-label={label}>
        {visible(isCut ? text.slice(0, SHOWN) : text)}
      </pre>
      {isCut && (
        <button type="button" class="more" onClick={() => showWhole(true)}>
          Show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </>
  );
}

export function jsonText(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
