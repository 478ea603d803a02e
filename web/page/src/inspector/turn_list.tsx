/** The turns of a session, newest first, each with its duration to scale. */

import { useMemo } from "preact/hooks";

import { hrefOf } from "../route.js";
import { durationOf, momentOf } from "./time.js";
import type { TurnEntry, Turns } from "./turns.js";

export interface TurnListProps {
  readonly sessionId: string;
  readonly turns: Turns;
  readonly chosen: string | undefined;
  /** The current end of running turns. */
  readonly now: number;
}

export function TurnList({ sessionId, turns, chosen, now }: TurnListProps) {
  const entries = [...turns.values()].reverse();
  const longest = Math.max(1, ...entries.map((each) => lengthOf(each, now)));
  return (
    <nav class="inspector-turns" aria-label="Turns">
      <a
        class="inspector-turn all"
        href={hrefOf({ at: "inspector", sessionId })}
        aria-current={chosen === undefined ? "true" : undefined}
      >
        All turns <span class="soft">{entries.length}</span>
      </a>
      <ol>
        {entries.map((each) => (
          <TurnItem
            key={each.promptId}
            sessionId={sessionId}
            entry={each}
            longest={longest}
            now={each.endedAt === undefined ? now : each.endedAt}
            isChosen={chosen === each.promptId}
          />
        ))}
      </ol>
    </nav>
  );
}

interface TurnItemProps {
  readonly sessionId: string;
  readonly entry: TurnEntry;
  readonly longest: number;
  readonly now: number;
  readonly isChosen: boolean;
}

/** Rendered again only if its data changes: a session may have thousands of turns. */
function TurnItem(props: TurnItemProps) {
  return useMemo(() => itemElement(props), Object.values(props));
}

function itemElement({ sessionId, entry, longest, now, isChosen }: TurnItemProps) {
  return (
    <li>
      <a
        class="inspector-turn"
        href={hrefOf({ at: "inspector", sessionId, turn: entry.promptId })}
        aria-current={isChosen ? "true" : undefined}
        title={momentOf(entry.queuedAt ?? entry.startedAt ?? 0)}
      >
        <span class="number">#{entry.number}</span>
        <span class="text">{textOf(entry)}</span>
        <span class={`end ${toneOf(entry)}`}>{endOf(entry)}</span>
        <span class="length">{durationOf(lengthOf(entry, now))}</span>
        <TurnBar entry={entry} longest={longest} now={now} />
      </a>
    </li>
  );
}

/** The turn in one line, above its picture. */
export function TurnHeading({ entry }: { readonly entry: TurnEntry }) {
  return (
    <h3 class="inspector-heading">
      <span class="soft">#{entry.number}</span>
      <span class="text">{textOf(entry)}</span>
      <span class={`end ${toneOf(entry)}`}>{endOf(entry)}</span>
    </h3>
  );
}

function textOf(entry: TurnEntry): string {
  return entry.byAgent ? "begun by the agent" : entry.text || "…";
}

function endOf(entry: TurnEntry): string {
  return entry.end.replaceAll("_", " ");
}

function TurnBar({ entry, longest, now }: { entry: TurnEntry; longest: number; now: number }) {
  const total = lengthOf(entry, now);
  const waited = Math.min(lengthOf({ ...entry, endedAt: entry.startedAt ?? entry.endedAt }, now), total);
  // Very short times stay visible.
  const share = (ms: number) => `${ms && Math.max((ms / longest) * 100, 0.6)}%`;
  return (
    <svg class="inspector-spark" width="100%" height="4" aria-hidden="true">
      <rect class="waited" width={share(waited)} height="4" />
      <rect class={`worked ${toneOf(entry)}`} x={share(waited)} width={share(total - waited)} height="4" />
    </svg>
  );
}

function lengthOf(entry: TurnEntry, now: number): number {
  const from = entry.queuedAt ?? entry.startedAt ?? now;
  return Math.max((entry.endedAt ?? now) - from, 0);
}

function toneOf(entry: TurnEntry): "bad" | "warn" | "good" | "info" {
  if (entry.isError) return "bad";
  if (entry.endedAt === undefined) return entry.end === "requires_action" ? "warn" : "info";
  return entry.end === "end_turn" ? "good" : "warn";
}
