/** The inspector of a session: every event, each turn to scale, the explanation of its state, and downloads. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { onShortcut } from "../frame/shortcuts.js";
import type { Daemon } from "../state/daemon.js";
import { EventPane } from "./event_pane.js";
import { type EventLog, LogFold, Shown } from "./event_log.js";
import { ExplanationPanel } from "./explanation_panel.js";
import { ExportMenu } from "./export_menu.js";
import { Filters } from "./filters.js";
import { Inspection } from "./inspection.js";
import { LanesPicture } from "./lanes_picture.js";
import { LanesFold } from "./lanes.js";
import { EVERYTHING, type Filter, showsAll } from "./rows.js";
import { Timeline } from "./timeline.js";
import { TurnHeading, TurnList } from "./turn_list.js";

/** The visible part, where there is no room for all of them. */
type Part = "events" | "turns" | "explanation";

export interface InspectorProps {
  readonly daemon: Daemon;
  readonly sessionId: string;
  /** The chosen turn. */
  readonly turn?: string;
}

export function Inspector({ daemon, sessionId, turn }: InspectorProps) {
  const inspection = useMemo(() => new Inspection(daemon, sessionId), [daemon, sessionId]);
  const { log } = inspection;
  const part = useSignal<Part>("events");
  const narrowed = useSignal<Filter>(EVERYTHING);
  const chosen = useSignal<number | undefined>(undefined);
  const isOpen = useSignal(false);
  const root = useRef<HTMLDivElement>(null);
  const search = useRef<HTMLInputElement>(null);
  const turns = inspection.turns.value;
  const now = useNow([...turns.values()].some((each) => each.endedAt === undefined));

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

  const focusRows = () => root.current?.querySelector<HTMLElement>("[role=grid]")?.focus();
  useKeys({
    onSearch: () => {
      part.value = "events";
      // The field may have just become visible.
      requestAnimationFrame(() => search.current?.focus());
    },
    onEscape: () => {
      if (isOpen.value) isOpen.value = false;
      else if (document.activeElement === search.current) narrowed.value = { ...narrowed.value, text: "" };
      else return;
      focusRows();
    },
  });

  const filter = useMemo(() => ({ ...narrowed.value, turn }), [narrowed.value, turn]);
  const shown = useMemo(() => new Shown(log, filter), [log, filter]);
  void log.changed.value;
  shown.refresh();
  const entry = turn === undefined ? undefined : turns.get(turn);
  const laneFold = useMemo(
    () => new LogFold(log, () => new LanesFold(turn ?? ""), (fold, row) => fold.take(row)),
    [log, turn],
  );
  const lanes = turn === undefined ? undefined : laneFold.now.lanes(entry?.endedAt ?? now);
  const open = (id: number) => {
    chosen.value = id;
    isOpen.value = true;
    part.value = "events";
  };
  const row = chosen.value === undefined ? undefined : log.at(chosen.value);
  const isPaneOpen = isOpen.value && row !== undefined && part.value === "events";

  return (
    <div class="inspector-frame">
      <div class={isPaneOpen ? "inspector with-pane" : "inspector"} data-part={part.value} ref={root}>
        <header class="inspector-bar">
          <h2 class="unseen">Inspector</h2>
          <div class="inspector-parts" role="group" aria-label="What is shown">
            <PartButton part={part} of="events" words="Events" />
            <PartButton part={part} of="turns" words="Turns" />
            {inspection.mayExplain && <PartButton part={part} of="explanation" words="Explain" />}
          </div>
          <ExportMenu sessionId={sessionId} readTranscript={() => inspection.transcript()} />
        </header>
        {inspection.failure.value !== undefined && (
          <p class="inspector-failure" role="alert">
            Not all of it came: {inspection.failure.value}{" "}
            <button type="button" class="button" onClick={() => void inspection.begin()}>
              Try again
            </button>
          </p>
        )}
        <TurnList sessionId={sessionId} turns={turns} chosen={turn} now={now} />
        {turn !== undefined && (
          <section class="inspector-picture" aria-label="Turn">
            {entry && <TurnHeading entry={entry} />}
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
        <section class="inspector-events" aria-label="Timeline">
          <Filters
            filter={filter}
            kinds={log.kinds}
            search={search}
            onChange={({ turn: _, ...rest }) => (narrowed.value = rest)}
          >
            <Count inspection={inspection} shown={shown} />
          </Filters>
          <Timeline
            log={log}
            shown={shown}
            turns={turns}
            isFromEnd={inspection.isBegun.value ? entry?.endedAt === undefined : undefined}
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
              focusRows();
            }}
          />
        )}
      </div>
    </div>
  );
}

/** The number of events, and of those that the filter has not examined. */
function Count({ inspection, shown }: { inspection: Inspection; shown: Shown }) {
  const isLoading = useSignal(false);
  const { log, isBegun } = inspection;
  void log.changed.value;
  const all = log.last - log.first + 1;
  // All events of a chosen turn are loaded.
  const missing = shown.filter.turn === undefined ? all - log.count : 0;
  const isWhole = showsAll(shown.filter);
  const load = () => {
    isLoading.value = !isLoading.value;
    if (!isLoading.value) return;
    void inspection.attempt(() => inspection.loadAll(() => isLoading.value)).then(() => (isLoading.value = false));
  };
  return (
    <p class="inspector-count small soft" role={isWhole ? undefined : "status"}>
      {!isBegun.value ? "Loading …" : isWhole ? `${all} events` : wordsOf(shown, log, missing)}
      {!isWhole && missing > 0 && (
        <button type="button" class="button" onClick={load}>
          {isLoading.value ? `Stop, ${missing} left` : `Load the other ${missing}`}
        </button>
      )}
    </p>
  );
}

function wordsOf(shown: Shown, log: EventLog, missing: number): string {
  if (shown.filter.turn !== undefined) return `${shown.length} events`;
  return `${shown.length} of ${log.count}${missing > 0 ? " loaded" : ""} events`;
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

/** The current time, for the lengths of running work. For display only. It stops while nothing runs. */
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

/** Keys of the inspector: the search key focuses its filter. */
function useKeys({ onSearch, onEscape }: { onSearch: () => void; onEscape: () => void }): void {
  const latest = useRef({ onSearch, onEscape });
  latest.current = { onSearch, onEscape };
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !event.defaultPrevented) latest.current.onEscape();
    };
    const stop = onShortcut("search", () => latest.current.onSearch());
    document.addEventListener("keydown", hear);
    return () => {
      stop();
      document.removeEventListener("keydown", hear);
    };
  }, []);
}
