/**
 * The live list of sessions, in groups, with keyboard navigation. Only visible rows are in the document, so that
 * thousands cost as much as twenty. Heights depend on the kind of row only, so nothing is measured.
 */

import { type ReadonlySignal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";

import { Icon } from "../frame/icon.js";
import { toggleMenu } from "../frame/menu.js";
import { onShortcut } from "../frame/shortcuts.js";
import { ago, moment, now } from "../frame/time.js";
import { go, hrefOf, route } from "../route.js";
import { type Daemon, mayControl } from "../state/daemon.js";
import { type ListedSession, type SessionList, badgeOf } from "../state/session_list.js";
import { renaming, sessionActions } from "./actions.js";
import { BadgeShape, badgeWords, folderOf, lookOf, titleOf } from "./badge.js";
import { type FoundWords, type MarkedPart, type Row, foundParts, markedParts, rowsOf } from "./groups.js";
import type { SessionSearch } from "./search.js";
import { TitleField } from "./title_field.js";

// Heights in rem, as in sessions.css.
const HEADING = 2;
const SESSION = 3.25;
const FOUND = 1.25;
const MOST_FOUND = 2;
/** Margin around the visible rows, in pixels, so that scrolling shows no holes. */
const BEYOND = 300;

/** Display names of the authors of matches. */
const WHO: Readonly<Record<string, string>> = { user: "You", agent: "Agent", tool: "Tool" };

/** Display names of agents; empty if there is only one, which need not be named. */
export type AgentLabels = ReadonlyMap<string, string>;

interface ListProps {
  readonly daemon: Daemon;
  readonly list: SessionList;
  readonly search: SessionSearch;
}

/** Return the rows: the matches of the search, or all sessions in their groups. */
export function useRows({ daemon, list, search }: ListProps): ReadonlySignal<readonly Row[]> {
  return useComputed(() => {
    const found = search.found.value;
    if (!found) return rowsOf(list.sessions.value, now.value, mayControl(daemon.caller));
    // The list is live, but the result of a search is not.
    const live = new Map(list.sessions.value.map((each) => [each.entry.sessionId, each]));
    return found.map((entry) => ({
      row: "session" as const,
      listed: live.get(entry.sessionId) ?? { entry, badge: badgeOf(entry) },
      found: distinct(entry.matches ?? []).slice(0, MOST_FOUND),
    }));
  });
}

/** Return the matches without repeated snippets. */
function distinct(matches: readonly FoundWords[]): FoundWords[] {
  return [...new Map(matches.map((each) => [each.snippet, each])).values()];
}

interface RowsProps {
  readonly daemon: Daemon;
  readonly rows: ReadonlySignal<readonly Row[]>;
  /** The search. */
  readonly words: string;
  readonly labels: AgentLabels;
}

export function SessionRows({ daemon, rows, words, labels }: RowsProps) {
  const box = useRef<HTMLDivElement>(null);
  const seen = useSignal({ top: 0, height: 800 });
  const focused = useSignal<string | undefined>(undefined);
  const rem = useMemo(() => Number.parseFloat(getComputedStyle(document.documentElement).fontSize) || 16, []);
  const all = rows.value;
  const tops = useMemo(() => topsOf(all, rem), [all, rem]);
  const { places, placeOf } = useMemo(() => sessionPlaces(all), [all]);
  const shown = route.value;
  const shownId = "sessionId" in shown ? shown.sessionId : undefined;

  useLayoutEffect(() => {
    const element = box.current!;
    const look = () => {
      seen.value = { top: element.scrollTop, height: element.clientHeight };
    };
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);

  const idAt = (place: number) => {
    const row = all[places[place] ?? -1];
    return row?.row === "session" ? row.listed.entry.sessionId : undefined;
  };
  /** The row that the Tab key reaches. */
  const reachable = placeOf(focused.value) >= 0 ? focused.value : placeOf(shownId) >= 0 ? shownId : idAt(0);

  const bring = (place: number) => {
    const index = places[place];
    if (index === undefined) return;
    const element = box.current!;
    // With its heading, if it is the first in its group.
    const from = index > 0 && all[index - 1]!.row === "heading" ? tops[index - 1]! : tops[index]!;
    const to = tops[index + 1]!;
    if (from < element.scrollTop) element.scrollTop = from;
    else if (to > element.scrollTop + element.clientHeight) element.scrollTop = to - element.clientHeight;
    seen.value = { top: element.scrollTop, height: element.clientHeight };
  };
  const focus = (place: number) => {
    const to = Math.max(0, Math.min(place, places.length - 1));
    focused.value = idAt(to);
    bring(to);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>(`[data-place="${to}"]`)?.focus());
  };
  const press = (event: KeyboardEvent) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = placeOf(reachable);
    const to: Readonly<Record<string, number>> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: places.length - 1,
      PageDown: at + 10,
      PageUp: at - 10,
    };
    const next = to[event.key];
    if (next === undefined) return;
    event.preventDefault();
    if (next < 0 && event.key === "ArrowUp") document.querySelector<HTMLElement>("[data-search]")?.focus();
    else focus(next);
  };

  // Keys that work everywhere: they open the next session and leave the focus where it is.
  const step = useRef((_by: number) => {});
  step.current = (by) => {
    const at = placeOf(shownId);
    const to = at < 0 ? 0 : Math.max(0, Math.min(at + by, places.length - 1));
    const sessionId = idAt(to);
    if (sessionId === undefined) return;
    bring(to);
    go({ at: "session", sessionId });
  };
  useEffect(() => {
    const stops = [
      onShortcut("next_session", () => step.current(1)),
      onShortcut("previous_session", () => step.current(-1)),
    ];
    return () => stops.forEach((stop) => stop());
  }, []);

  const { top, height } = seen.value;
  const drawn: number[] = [];
  for (let index = firstAt(tops, top - BEYOND); index < all.length && tops[index]! < top + height + BEYOND; index++) {
    drawn.push(index);
  }
  // The focused row stays in the document even if it is out of view: otherwise the focus would be lost.
  const held = places[placeOf(focused.value)];
  if (held !== undefined && !drawn.includes(held)) drawn.push(held);

  return (
    <div class="rows" ref={box} onKeyDown={press} data-rows>
      <ul class="rows-all" style={{ height: `${tops[all.length]}px` }} aria-label="Sessions">
        {drawn.map((index) => {
          const row = all[index]!;
          const at = { transform: `translateY(${tops[index]}px)` };
          if (row.row === "heading") {
            return (
              <li class="rows-heading" style={at} key={row.words}>
                <h2>{row.words}</h2>
                <span>{row.count}</span>
              </li>
            );
          }
          const { sessionId } = row.listed.entry;
          const place = placeOf(sessionId);
          return (
            <li class="session-row" style={at} key={sessionId} aria-setsize={places.length} aria-posinset={place + 1}>
              <SessionRow
                daemon={daemon}
                listed={row.listed}
                found={row.found}
                words={words}
                label={labels.get(row.listed.entry.agent)}
                isShown={sessionId === shownId}
                isReachable={sessionId === reachable}
                place={place}
                onFocus={() => (focused.value = sessionId)}
                onBlur={() => (focused.value = undefined)}
              />
            </li>
          );
        })}
      </ul>
    </div>
  );
}

interface RowProps {
  readonly daemon: Daemon;
  readonly listed: ListedSession;
  readonly found: readonly FoundWords[];
  readonly words: string;
  readonly label: string | undefined;
  readonly isShown: boolean;
  readonly isReachable: boolean;
  readonly place: number;
  readonly onFocus: () => void;
  readonly onBlur: () => void;
}

function SessionRow({ daemon, listed, found, words, label, isShown, isReachable, place, onFocus, onBlur }: RowProps) {
  const { entry, badge } = listed;
  const isRenamed = renaming.value?.sessionId === entry.sessionId && renaming.value.where === "list";
  const updated = Date.parse(entry.updatedAt);
  const title = titleOf(entry);
  const canAnswer = mayControl(daemon.caller);
  const look = lookOf(badge, canAnswer);
  return (
    <>
      {isRenamed && <TitleField daemon={daemon} entry={entry} />}
      <a
        class={isShown ? "row-link shown" : "row-link"}
        href={hrefOf({ at: "session", sessionId: entry.sessionId })}
        aria-current={isShown ? "page" : undefined}
        tabIndex={isReachable ? 0 : -1}
        data-place={place}
        onFocus={onFocus}
        onBlur={onBlur}
      >
        <BadgeShape badge={badge} />
        <span class={entry.title || entry.firstPrompt ? "row-title" : "row-title unnamed"} title={title}>
          {words ? <Marked parts={markedParts(title, words)} /> : title}
          <span class="unseen">, </span>
        </span>
        <time class="row-time" dateTime={entry.updatedAt} title={moment(updated)}>
          {ago(updated, now.value)}
          <span class="unseen">, </span>
        </time>
        <span class="row-about">
          {badge === "idle" ? (
            <span class="unseen">{badgeWords(listed, canAnswer)}, </span>
          ) : (
            <span class={`row-badge ${look.tone}`} title={look.why}>
              {badgeWords(listed, canAnswer)}
            </span>
          )}
          <span title={entry.cwd}>
            {badge !== "idle" && <Dot />}
            {entry.archived && (
              <>
                Archived
                <Dot />
              </>
            )}
            {label !== undefined && (
              <>
                {label}
                <Dot />
              </>
            )}
            {folderOf(entry.cwd)}
          </span>
        </span>
        {found.map((each, index) => (
          <span class="row-found" key={index}>
            {WHO[each.role] ?? each.role}: <Marked parts={foundParts(each)} />
          </span>
        ))}
      </a>
      <button
        type="button"
        class="icon-button row-menu"
        aria-label={`Menu of ${title}`}
        aria-haspopup="menu"
        aria-expanded="false"
        tabIndex={isReachable ? 0 : -1}
        onClick={(event) => toggleMenu(event.currentTarget, sessionActions(daemon, listed, "list"))}
      >
        <Icon name="dots" />
      </button>
    </>
  );
}

/** A separator. */
function Dot() {
  return <span class="dot"> · </span>;
}

function Marked({ parts }: { readonly parts: readonly MarkedPart[] }) {
  return (
    <>
      {parts.map((part, index) =>
        part.isMarked ? <mark key={index}>{part.text}</mark> : <span key={index}>{part.text}</span>,
      )}
    </>
  );
}

/** Return the top of each row, and at the end the bottom of the last one. */
function topsOf(rows: readonly Row[], rem: number): Float64Array {
  const tops = new Float64Array(rows.length + 1);
  for (const [index, row] of rows.entries()) {
    const height = row.row === "heading" ? HEADING : SESSION + FOUND * row.found.length;
    tops[index + 1] = tops[index]! + Math.round(height * rem);
  }
  return tops;
}

/** Return the indexes of session rows, and a lookup of a session's place among them; -1 if it is absent. */
function sessionPlaces(rows: readonly Row[]) {
  const places: number[] = [];
  const byId = new Map<string | undefined, number>();
  for (const [index, row] of rows.entries()) {
    if (row.row !== "session") continue;
    byId.set(row.listed.entry.sessionId, places.length);
    places.push(index);
  }
  return { places, placeOf: (sessionId: string | undefined) => byId.get(sessionId) ?? -1 };
}

/** Return the first row that reaches below `top`. */
function firstAt(tops: Float64Array, top: number): number {
  let low = 0;
  let high = tops.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tops[middle + 1]! <= top) low = middle + 1;
    else high = middle;
  }
  return low;
}
