/** One event: its JSON as the daemon sent it, and its times. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

import { copied } from "../content/clipboard.js";
import { tellError } from "../frame/toasts.js";
import { hrefOf } from "../route.js";
import type { Row } from "./rows.js";
import { durationOf, momentOf } from "./time.js";

/** Longer JSON is not highlighted, because each token costs a node. */
const MOST_COLOURED = 40_000;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\b(?:true|false|null)\b/g;

export interface EventPaneProps {
  readonly sessionId: string;
  readonly row: Row;
  readonly gap: number | undefined;
  readonly turn: number | undefined;
  readonly onClose: () => void;
}

export function EventPane({ sessionId, row, gap, turn, onClose }: EventPaneProps) {
  const json = JSON.stringify(row.event, null, 2);
  const { author, late } = row.event;
  const facts: [string, ComponentChildren][] = [
    ["Time", <span class="mono">{momentOf(row.at)}</span>],
    ["Since the one before", gap === undefined ? undefined : durationOf(gap)],
    [
      late ? "After turn" : "Turn",
      row.turn && (
        <a href={hrefOf({ at: "inspector", sessionId, turn: row.turn })}>{turn === undefined ? row.turn : `#${turn}`}</a>
      ),
    ],
    ["By", author],
  ];
  return (
    <aside class="inspector-pane" aria-label={`Event ${row.id}`}>
      <header>
        <h2>
          <span class="soft">{row.id}</span> {row.kind}
        </h2>
        <CopyButton text={() => json} />
        <button type="button" class="button plain" aria-label="Close" onClick={onClose}>
          ✕
        </button>
      </header>
      <dl class="inspector-facts small">
        {facts.map(
          ([name, value]) =>
            value !== undefined && (
              <>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </>
            ),
        )}
      </dl>
      <pre class="inspector-json" tabIndex={0} aria-label="The event as JSON">
        {json.length > MOST_COLOURED ? json : coloured(json)}
      </pre>
    </aside>
  );
}

function coloured(json: string) {
  const parts = [];
  let here = 0;
  for (const found of json.matchAll(TOKEN)) {
    const [whole, text, colon] = found;
    if (found.index > here) parts.push(json.slice(here, found.index));
    if (text === undefined) parts.push(<span class="literal">{whole}</span>);
    else parts.push(<span class={colon === undefined ? "text" : "name"}>{text}</span>, colon);
    here = found.index + whole.length;
  }
  return [...parts, json.slice(here)];
}

/** A button that copies a text and reports it in place. */
export function CopyButton({ text, label = "Copy" }: { text: () => string | Promise<string>; label?: string }) {
  const state = useSignal<"" | "Copied" | "Not copied">("");
  const act = async () => {
    state.value = (await copied(await text())) ? "Copied" : "Not copied";
  };
  return (
    <button type="button" class="button" onClick={() => void act().catch(tellError)} onBlur={() => (state.value = "")}>
      <span aria-live="polite">{state.value || label}</span>
    </button>
  );
}
