/** Every event of a session in a virtual list with rows of one height, next to a time scale. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";

import type { EventLog, Shown } from "./event_log.js";
import { type Row, summaryOf, toneOf } from "./rows.js";
import { type Scale, clockOf, durationOf, momentOf, scaleOf } from "./time.js";
import type { Turns } from "./turns.js";

const ROW = 26;
/** Two lines, where there is no room for all columns. */
const TALL_ROW = 48;
const NARROW = 560;
const AROUND = 8;
const STRIP_BINS = 160;

export interface TimelineProps {
  readonly log: EventLog;
  readonly shown: Shown;
  readonly turns: Turns;
  /** Whether the list starts at the newest event, else at the oldest; unknown until the data arrives. */
  readonly isFromEnd: boolean | undefined;
  /** The event whose row is marked. */
  readonly chosen: number | undefined;
  readonly onChoose: (id: number) => void;
  /** Show the chosen event completely. */
  readonly onOpen: () => void;
  /** Events in view that are not loaded. */
  readonly onWant: (from: number, to: number) => void;
  /** The event at this time. */
  readonly onFind: (at: number) => Promise<number>;
}

export function Timeline(props: TimelineProps) {
  const { log, shown, turns, isFromEnd, chosen, onChoose, onOpen, onWant, onFind } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const top = useSignal(0);
  const size = useSignal({ width: 0, height: 0 });
  /** Whether the newest event stays in view. */
  const follows = useRef(true);
  const version = log.changed.value;
  const length = shown.length;
  const rowHeight = size.value.width < NARROW ? TALL_ROW : ROW;
  const inSight = Math.ceil(size.value.height / rowHeight);
  const firstInSight = Math.floor(top.value / rowHeight);
  const from = Math.max(firstInSight - AROUND, 0);
  const to = Math.min(firstInSight + inSight + AROUND, length);
  const longest = Math.max(log.longestMs, 100);

  useEffect(() => {
    const element = scroller.current!;
    const watch = new ResizeObserver(() => {
      size.value = { width: element.clientWidth, height: element.clientHeight };
    });
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  // Rows that change their height, because a pane opens next to them, stay where they are.
  const lastHeight = useRef(rowHeight);
  useLayoutEffect(() => {
    scroller.current!.scrollTop *= rowHeight / lastHeight.current;
    lastHeight.current = rowHeight;
    if (chosen !== undefined && !follows.current) reveal(shown.place(chosen), false);
  }, [rowHeight, size.value.height]);

  useLayoutEffect(() => {
    follows.current = isFromEnd !== false;
    if (!follows.current) scroller.current!.scrollTop = 0;
    // A turn that ends while it is viewed does not scroll the list.
  }, [shown, isFromEnd === undefined]);

  useLayoutEffect(() => {
    const element = scroller.current!;
    if (follows.current) element.scrollTop = element.scrollHeight;
    top.value = element.scrollTop;
  }, [version, shown, length, size.value]);

  useEffect(() => {
    const first = shown.id(from);
    const last = shown.id(to - 1);
    if (first !== undefined && last !== undefined && !log.has(first, last)) onWant(first, last);
  }, [from, to, version, shown]);

  const reveal = (index: number, isCentred: boolean) => {
    const element = scroller.current!;
    const head = headHeight(element);
    const room = element.clientHeight - head;
    const place = index * rowHeight;
    if (isCentred) element.scrollTop = place - room / 2;
    else if (place < element.scrollTop) element.scrollTop = place;
    else if (place + rowHeight > element.scrollTop + room) element.scrollTop = place + rowHeight - room;
  };

  // An event chosen elsewhere, on the strip or in the picture of a turn, is scrolled into view.
  useLayoutEffect(() => {
    if (chosen === undefined) return;
    const index = shown.place(chosen);
    if (index < firstInSight || index >= firstInSight + inSight - 2) {
      follows.current = index >= length - 1;
      reveal(index, true);
    }
  }, [chosen]);

  const move = (index: number) => {
    const id = shown.id(Math.min(Math.max(index, 0), length - 1));
    if (id === undefined) return;
    follows.current = index >= length - 1;
    reveal(shown.place(id), false);
    onChoose(id);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const here = chosen === undefined ? length : shown.place(chosen);
    const moves: Record<string, number> = {
      ArrowUp: here - 1,
      ArrowDown: here + 1,
      PageUp: here - inSight + 2,
      PageDown: here + inSight - 2,
      Home: 0,
      End: length - 1,
    };
    const wanted = moves[event.key];
    if (wanted !== undefined) move(wanted);
    else if (event.key === "Enter" && chosen !== undefined) onOpen();
    else return;
    event.preventDefault();
  };

  const rows = [];
  for (let index = from; index < to; index++) {
    const id = shown.id(index)!;
    const row = log.at(id);
    rows.push(
      <EventRow
        key={id}
        id={id}
        index={index}
        row={row}
        gap={log.gap(id)}
        longest={longest}
        turn={row?.turn === undefined ? undefined : turns.get(row.turn)?.number}
        isChosen={id === chosen}
      />,
    );
  }
  const active = chosen !== undefined && rows.some((each) => each.key === chosen);
  return (
    <div class={`inspector-timeline${rowHeight === TALL_ROW ? " narrow" : ""}`}>
      <div
        class="inspector-rows"
        ref={scroller}
        role="grid"
        aria-label="Events"
        aria-rowcount={length + 1}
        aria-activedescendant={active ? `event-${chosen}` : undefined}
        tabIndex={0}
        onKeyDown={onKeyDown}
        onClick={(event) => {
          const row = (event.target as Element).closest<HTMLElement>("[data-event]");
          if (!row) return;
          onChoose(Number(row.dataset["event"]));
          onOpen();
        }}
        onScroll={(event) => {
          const element = event.currentTarget;
          top.value = element.scrollTop;
          follows.current = element.scrollTop + element.clientHeight >= element.scrollHeight - 2 * rowHeight;
        }}
      >
        <div class="inspector-event titles" role="row" aria-rowindex={1}>
          <span role="columnheader">Id</span>
          <span role="columnheader">Time</span>
          <span role="columnheader" class="gap" title={`Since the event before. A full bar is ${durationOf(longest)}.`}>
            Gap
          </span>
          <span role="columnheader">Kind</span>
          <span role="columnheader">Summary</span>
          <span role="columnheader">Turn</span>
          <span role="columnheader">By</span>
        </div>
        <div class="all" role="rowgroup" style={{ height: `${length * rowHeight}px` }}>
          <div role="presentation" style={{ transform: `translateY(${from * rowHeight}px)` }}>
            {rows}
          </div>
        </div>
      </div>
      <Strip
        log={log}
        shown={shown}
        turns={turns}
        version={version}
        from={log.at(shown.id(firstInSight) ?? 0)?.at}
        to={log.at(shown.id(Math.min(firstInSight + inSight - 1, length - 1)) ?? 0)?.at}
        onFind={async (at) => {
          const index = Math.min(shown.place(await onFind(at)), length - 1);
          follows.current = index >= length - 1;
          reveal(index, true);
          const id = shown.id(index);
          if (id !== undefined) onChoose(id);
        }}
      />
    </div>
  );
}

function headHeight(element: HTMLElement): number {
  return (element.firstElementChild as HTMLElement | null)?.offsetHeight ?? 0;
}

interface EventRowProps {
  readonly id: number;
  readonly index: number;
  readonly row: Row | undefined;
  readonly gap: number | undefined;
  readonly longest: number;
  readonly turn: number | undefined;
  readonly isChosen: boolean;
}

/** Rendered again only if its data changes: there are many visible rows, and events are frequent. */
function EventRow(props: EventRowProps) {
  return useMemo(() => rowElement(props), Object.values(props));
}

function rowElement({ id, index, row, gap, longest, turn, isChosen }: EventRowProps) {
  return (
    <div
      class={`inspector-event${row ? ` tone-${toneOf(row.kind)}` : " absent"}${row?.event.late ? " late" : ""}`}
      id={`event-${id}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isChosen}
      data-event={id}
    >
      <span role="gridcell" class="id">
        {id}
      </span>
      <span role="gridcell" class="time" title={row && momentOf(row.at)}>
        {row ? clockOf(row.at) : "…"}
      </span>
      <span role="gridcell" class="gap">
        {gap === undefined ? "" : gap === 0 ? "0" : `+${durationOf(gap)}`}
        {gap !== undefined && gap > 0 && (
          <i
            class={gap > longest ? "gap-bar beyond" : "gap-bar"}
            style={{ width: `${Math.min((gap / longest) * 100, 100).toFixed(1)}%` }}
          />
        )}
      </span>
      <span role="gridcell" class="kind">
        {row?.kind}
      </span>
      <span role="gridcell" class="summary">
        {row && summaryOf(row.event)}
      </span>
      <span role="gridcell" class="turn">
        {turn === undefined ? "" : `#${turn}`}
      </span>
      <span role="gridcell" class="by">
        {row?.event.author}
      </span>
    </div>
  );
}

// -- time to scale -----------------------------------------------------------------------------------------------

interface StripProps {
  readonly log: EventLog;
  readonly shown: Shown;
  readonly turns: Turns;
  readonly version: number;
  /** The visible range. */
  readonly from: number | undefined;
  readonly to: number | undefined;
  readonly onFind: (at: number) => void;
}

/** The density of events over time. A click scrolls there; keyboard users navigate by rows. */
function Strip({ log, shown, turns, version, from, to, onFind }: StripProps) {
  const place = useRef<HTMLDivElement>(null);
  const { scale, counts } = useMemo(() => densityOf(log, shown, turns), [log, shown, turns, version]);
  if (!scale) return <div class="inspector-strip" />;
  const most = Math.log1p(Math.max(...counts, 1));
  const seen = from !== undefined && to !== undefined ? [scale.place(from), scale.place(to)] : undefined;
  return (
    <div
      class="inspector-strip"
      ref={place}
      aria-hidden="true"
      title="Time to scale. Click to go there."
      onClick={(event) => {
        const box = place.current!.getBoundingClientRect();
        onFind(scale.at((event.clientY - box.top) / box.height));
      }}
    >
      <svg viewBox={`0 0 40 ${STRIP_BINS}`} preserveAspectRatio="none" width="100%" height="100%">
        {[...turns.values()].map((each) => {
          const began = each.queuedAt ?? each.startedAt;
          if (began === undefined || began > scale.to || (each.endedAt ?? scale.to) < scale.from) return null;
          const y = scale.place(began) * STRIP_BINS;
          const height = Math.max(scale.place(each.endedAt ?? scale.to) * STRIP_BINS - y, 0.6);
          return (
            <rect
              key={each.promptId}
              class={each.isError ? "turn-span bad" : "turn-span"}
              x="1"
              width="5"
              y={y}
              height={height}
            />
          );
        })}
        {counts.map((count, bin) =>
          count === 0 ? null : (
            <rect class="density" x="9" width={(Math.log1p(count) / most) * 30} y={bin} height="1" />
          ),
        )}
        {scale.cuts.map((each) => (
          <line class="cut" x1="0" x2="40" y1={each * STRIP_BINS} y2={each * STRIP_BINS} />
        ))}
        {seen && (
          <rect
            class="in-sight"
            x="0"
            width="40"
            y={seen[0]! * STRIP_BINS}
            height={Math.max((seen[1]! - seen[0]!) * STRIP_BINS, 1)}
          />
        )}
      </svg>
    </div>
  );
}

/** Return the scale of the shown events, and the number of events in each part of it. */
function densityOf(log: EventLog, shown: Shown, turns: Turns): { scale?: Scale; counts: number[] } {
  const counts: number[] = [];
  const first = log.at(shown.id(0) ?? 0);
  const last = log.at(shown.id(shown.length - 1) ?? 0);
  if (!first || !last) return { counts };
  const busy = [...turns.values()].flatMap((each) => {
    const from = each.queuedAt ?? each.startedAt;
    return from === undefined ? [] : [{ from, to: each.endedAt ?? last.at }];
  });
  const scale = scaleOf(first.at, last.at, busy);
  let before = shown.countBefore(scale.from);
  for (let bin = 1; bin <= STRIP_BINS; bin++) {
    const upto = shown.countBefore(bin === STRIP_BINS ? Infinity : scale.at(bin / STRIP_BINS));
    counts.push(upto - before);
    before = upto;
  }
  return { scale, counts };
}
