/** The filters of the timeline: kind, latency, text. The turn is chosen in the list of turns. */

import type { ComponentChildren, Ref } from "preact";
import { useEffect, useRef } from "preact/hooks";

import type { Filter } from "./rows.js";

export interface FiltersProps {
  readonly filter: Filter;
  readonly onChange: (filter: Filter) => void;
  /** Number of events by kind. */
  readonly kinds: ReadonlyMap<string, number>;
  readonly search: Ref<HTMLInputElement>;
  /** The number of remaining events, in words. */
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
  // A chosen kind stays in the list, so that it can be deselected.
  const names = [...new Set([...kinds.keys(), ...chosen])].sort();
  return (
    <Disclosure kind="inspector-kinds" words={`Kinds: ${chosen.size === 0 ? "all" : chosen.size}`}>
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
    </Disclosure>
  );
}

export interface DisclosureProps {
  /** CSS class. */
  readonly kind: string;
  readonly words: string;
  readonly children: ComponentChildren;
}

/** A button that shows a panel below it until Escape is pressed or the focus leaves. */
export function Disclosure({ kind, words, children }: DisclosureProps) {
  const element = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const leave = (event: Event) => {
      if (event.target instanceof Node && !element.current!.contains(event.target)) element.current!.open = false;
    };
    document.addEventListener("pointerdown", leave);
    document.addEventListener("focusin", leave);
    return () => {
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("focusin", leave);
    };
  }, []);
  return (
    <details
      ref={element}
      class={kind}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !event.currentTarget.open) return;
        event.currentTarget.open = false;
        event.currentTarget.querySelector("summary")?.focus();
        event.preventDefault();
      }}
    >
      <summary class="button">{words}</summary>
      {children}
    </details>
  );
}
