/** What the timeline is narrowed by: kind, latency, text. The turn is chosen in the list of turns. */

import type { ComponentChildren, Ref } from "preact";

import type { Filter } from "./rows.js";

export interface FiltersProps {
  readonly filter: Filter;
  readonly onChange: (filter: Filter) => void;
  /** How many there are of each kind. */
  readonly kinds: ReadonlyMap<string, number>;
  readonly search: Ref<HTMLInputElement>;
  /** What is left, in words. */
  readonly children: ComponentChildren;
}

export function Filters({ filter, onChange, kinds, search, children }: FiltersProps) {
  return (
    <div class="inspector-filters" role="search" aria-label="Filter the events">
      <input
        ref={search}
        class="field text"
        type="search"
        placeholder="Filter by text  ( / )"
        aria-label="Filter by text"
        value={filter.text}
        onInput={(event) => onChange({ ...filter, text: event.currentTarget.value })}
      />
      <KindFilter filter={filter} onChange={onChange} kinds={kinds} />
      <label class="inspector-latency">
        Gap of at least
        <input
          class="field"
          type="number"
          min="0"
          step="100"
          inputMode="numeric"
          value={filter.gapMs || ""}
          placeholder="0"
          onInput={(event) => onChange({ ...filter, gapMs: Number(event.currentTarget.value) || 0 })}
        />
        ms
      </label>
      {children}
    </div>
  );
}

function KindFilter({ filter, onChange, kinds }: Omit<FiltersProps, "search" | "children">) {
  const chosen = filter.kinds;
  const change = (kind: string, isChosen: boolean) => {
    const next = new Set(chosen);
    if (isChosen) next.add(kind);
    else next.delete(kind);
    onChange({ ...filter, kinds: next });
  };
  // A kind that was chosen stays in the list, so that it can be left out again.
  const names = [...new Set([...kinds.keys(), ...chosen])].sort();
  return (
    <details
      class="inspector-kinds"
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.currentTarget.open = false;
        event.currentTarget.querySelector("summary")?.focus();
        event.stopPropagation();
      }}
      onFocusOut={(event) => {
        const next = event.relatedTarget;
        if (next instanceof Node && !event.currentTarget.contains(next)) event.currentTarget.open = false;
      }}
    >
      <summary class="button">Kinds: {chosen.size === 0 ? "all" : chosen.size === 1 ? [...chosen][0] : chosen.size}</summary>
      <fieldset>
        <legend class="unseen">Kinds of events</legend>
        <button
          type="button"
          class="button plain"
          disabled={chosen.size === 0}
          onClick={() => onChange({ ...filter, kinds: new Set() })}
        >
          All kinds
        </button>
        {names.map((kind) => (
          <label key={kind}>
            <input
              type="checkbox"
              checked={chosen.has(kind)}
              onChange={(event) => change(kind, event.currentTarget.checked)}
            />
            <span class="mono">{kind}</span>
            <span class="soft">{kinds.get(kind) ?? 0}</span>
          </label>
        ))}
      </fieldset>
    </details>
  );
}
