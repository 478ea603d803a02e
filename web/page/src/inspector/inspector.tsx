/** The inspector of a session: every event, each turn to scale, what it waits for, and all of it to take along. */

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { hrefOf } from "../route.js";
import type { Daemon } from "../state/daemon.js";
import { EventPane } from "./event-pane.js";
import { Shown } from "./event-log.js";
import { ExplanationPanel } from "./explanation-panel.js";
import { ExportMenu } from "./export-menu.js";
import { Filters } from "./filters.js";
import { Inspection } from "./inspection.js";
import { LanesPicture } from "./lanes-picture.js";
import { lanesOf } from "./lanes.js";
import { EVERYTHING, type Filter, showsAll } from "./rows.js";
import { Timeline } from "./timeline.js";
import { TurnList } from "./turn-list.js";

/** What is shown where there is no room for all of it beside each other. */
type Part = "events" | "turns" | "explanation";

export interface InspectorProps {
  readonly daemon: Daemon;
  readonly sessionId: string;
  /** The turn that is shown alone. */
  readonly turn?: string;
}

export function Inspector({ daemon, sessionId, turn }: InspectorProps) {
  const inspection = useMemo(() => new Inspection(daemon, sessionId), [daemon, sessionId]);
  const { log } = inspection;
  const part = useSignal<Part>("events");
  const narrowed = useSignal<Filter>(EVERYTHING);
  const chosen = useSignal<number | undefined>(undefined);
  const isOpen = useSignal(false);
  const isSearching = useSignal(false);
  const root = useRef<HTMLDivElement>(null);
  const search = useRef<HTMLInputElement>(null);
  const turns = inspection.turns.value;
  const isRunning = useComputed(() => [...inspection.turns.value.values()].some((each) => each.endedAt === undefined));
  const now = useNow(isRunning.value);

  useEffect(() => {
    void inspection.begin();
    return () => inspection.end();
  }, [inspection]);
  useEffect(() => {
    inspection.watchExplanation(part.value === "explanation");
  }, [inspection, part.value]);
  const isKnown = turn !== undefined && inspection.isBegun.value && turns.has(turn);
  useEffect(() => {
    if (isKnown) void inspection.attempt(() => inspection.loadTurn(turn));
  }, [inspection, turn, isKnown]);

  useKeys({
    onSlash: () => {
      part.value = "events";
      // The field may only be shown now.
      requestAnimationFrame(() => search.current?.focus());
    },
    onEscape: () => {
      if (isOpen.value) {
        isOpen.value = false;
        root.current?.querySelector<HTMLElement>("[role=grid]")?.focus();
      } else if (document.activeElement === search.current) {
        narrowed.value = { ...narrowed.value, text: "" };
        root.current?.querySelector<HTMLElement>("[role=grid]")?.focus();
      }
    },
  });

  const filter = useMemo(() => ({ ...narrowed.value, turn }), [narrowed.value, turn]);
  const shown = useMemo(() => new Shown(log, filter), [log, filter]);
  const version = log.changed.value;
  shown.refresh();
  const entry = turn === undefined ? undefined : turns.get(turn);
  const lanes = useMemo(() => {
    if (turn === undefined) return undefined;
    const events = [...log.rows()].filter((each) => each.turn === turn).map((each) => each.event);
    return lanesOf(events, turn, entry?.endedAt === undefined ? now : 0);
  }, [log, turn, version, entry?.endedAt, now]);
  const open = (id: number) => {
    chosen.value = id;
    isOpen.value = true;
    part.value = "events";
  };
  const row = chosen.value === undefined ? undefined : log.at(chosen.value);
  const isPaneOpen = isOpen.value && row !== undefined && part.value === "events";
  const missing = log.last - log.first + 1 - log.count;

  return (
    <div class="inspector-frame">
      <div class={isPaneOpen ? "inspector with-pane" : "inspector"} data-part={part.value} ref={root}>
        <header class="bar">
          <h1>Inspector</h1>
          <a class="back" href={hrefOf({ at: "session", sessionId })}>
            Conversation
          </a>
          <div class="parts" role="group" aria-label="What is shown">
            <PartButton part={part} of="events" words="Events" />
            <PartButton part={part} of="turns" words="Turns" />
            {inspection.mayExplain && <PartButton part={part} of="explanation" words="Explain" />}
          </div>
          <ExportMenu
            sessionId={sessionId}
            readTranscript={() => inspection.transcript()}
            onFailure={(error) => void inspection.attempt(() => Promise.reject(error as Error))}
          />
        </header>
        {inspection.failure.value !== undefined && (
          <p class="failure" role="alert">
            The daemon did not give all of it: {inspection.failure.value}{" "}
            <button type="button" class="button" onClick={() => void inspection.begin()}>
              Try again
            </button>
          </p>
        )}
        <TurnList sessionId={sessionId} turns={turns} chosen={turn} now={now} />
        {turn !== undefined && (
          <section class="turn-picture" aria-label="Turn">
            {lanes ? (
              <LanesPicture lanes={lanes} onChoose={open} />
            ) : (
              <p class="soft">{inspection.isBegun.value && !entry ? "There is no such turn." : "Loading the turn …"}</p>
            )}
          </section>
        )}
        {part.value === "explanation" && (
          <ExplanationPanel
            known={inspection.explanation.value}
            isAsking={inspection.isExplaining.value}
            onRefresh={() => void inspection.explain()}
          />
        )}
        <section class="events" aria-label="Timeline">
          <Filters
            filter={filter}
            kinds={log.kinds}
            search={search}
            onChange={({ turn: _, ...rest }) => (narrowed.value = rest)}
          />
          <p class="count small soft" role="status">
            {showsAll(filter)
              ? `${log.last - log.first + 1} events`
              : `${shown.length} shown of ${log.count} loaded events`}
            {!showsAll(filter) && missing > 0 && (
              <button
                type="button"
                class="button"
                onClick={() => {
                  isSearching.value = !isSearching.value;
                  if (!isSearching.value) return;
                  void inspection
                    .attempt(() => inspection.loadAll(() => isSearching.value))
                    .then(() => (isSearching.value = false));
                }}
              >
                {isSearching.value ? `Stop, ${missing} left` : `Load the other ${missing}`}
              </button>
            )}
          </p>
          <Timeline
            log={log}
            shown={shown}
            turns={turns}
            chosen={chosen.value}
            onChoose={(id) => (chosen.value = id)}
            onOpen={() => (isOpen.value = true)}
            onWant={(from, to) => void inspection.attempt(() => log.load(from, to))}
            onFind={(at) => log.find(at)}
          />
        </section>
        {isPaneOpen && (
          <EventPane
            sessionId={sessionId}
            row={row}
            gap={log.gap(row.id)}
            turn={row.turn === undefined ? undefined : turns.get(row.turn)?.number}
            onClose={() => {
              isOpen.value = false;
              root.current?.querySelector<HTMLElement>("[role=grid]")?.focus();
            }}
          />
        )}
      </div>
    </div>
  );
}

function PartButton({ part, of, words }: { part: { value: Part }; of: Part; words: string }) {
  return (
    <button
      type="button"
      class={`button plain part-${of}`}
      aria-pressed={part.value === of}
      onClick={() => (part.value = of)}
    >
      {words}
    </button>
  );
}

/** The time, for lengths of what goes on: it ends nothing. It stands still while nothing runs. */
function useNow(isRunning: boolean): number {
  const now = useSignal(Date.now());
  useEffect(() => {
    if (!isRunning) return;
    now.value = Date.now();
    const ticking = setInterval(() => (now.value = Date.now()), 1000);
    return () => clearInterval(ticking);
  }, [isRunning]);
  return now.value;
}

function useKeys({ onSlash, onEscape }: { onSlash: () => void; onEscape: () => void }): void {
  const latest = useRef({ onSlash, onEscape });
  latest.current = { onSlash, onEscape };
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target;
      const isTyping = target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
      if (event.key === "Escape") latest.current.onEscape();
      else if (event.key === "/" && !isTyping) {
        event.preventDefault();
        latest.current.onSlash();
      }
    };
    document.addEventListener("keydown", hear);
    return () => document.removeEventListener("keydown", hear);
  }, []);
}
