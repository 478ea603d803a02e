/** Where a session stands, as it is shown everywhere: a word, a colour and a shape that say the same. */

import type { SessionEntry } from "@turnwire/client";

import type { Badge, ListedSession } from "../state/session_list.js";
import { visible } from "../content/visible.js";

export interface BadgeLook {
  readonly word: string;
  readonly tone: "warn" | "info" | "good" | "bad" | "soft";
  /** What it means, for whoever points at it. */
  readonly why: string;
  /** An outline on a field of 12 by 12. */
  readonly shape: string;
  readonly isFilled?: boolean;
}

export const BADGES: Readonly<Record<Badge, BadgeLook>> = {
  needs_you: {
    word: "Needs you",
    tone: "warn",
    why: "The agent asks, and waits for an answer.",
    shape: "M6 .8 11.2 6 6 11.2.8 6z",
    isFilled: true,
  },
  working: {
    word: "Working",
    tone: "info",
    why: "A turn runs.",
    shape: "M6 1.5A4.5 4.5 0 1 1 1.5 6",
  },
  cancelling: {
    word: "Stopping",
    tone: "soft",
    why: "The turn was asked to stop and has not ended yet.",
    shape: "M2.5 2.5h7v7h-7z",
    isFilled: true,
  },
  stalled: {
    word: "Stalled",
    tone: "warn",
    why: "The turn seems to be over, and the agent has not said so.",
    shape: "M6 1.5 11 10.5H1z",
  },
  queued: {
    word: "Queued",
    tone: "info",
    why: "A prompt waits for its turn.",
    shape: "M1.5 3h9M1.5 6h9M1.5 9h9",
  },
  held: {
    word: "Queue held",
    tone: "warn",
    why: "Prompts wait, and none starts until the queue is released.",
    shape: "M4 2v8M8 2v8",
  },
  background: {
    word: "In background",
    tone: "good",
    why: "No turn runs; the agent goes on with something.",
    shape: "M6 1.5a4.5 4.5 0 0 1 0 9zM6 1.5a4.5 4.5 0 0 0 0 9",
  },
  agent_gone: {
    word: "Agent gone",
    tone: "bad",
    why: "The agent ended or could not be started; the next prompt tries again.",
    shape: "m2.5 2.5 7 7M9.5 2.5l-7 7",
  },
  idle: {
    word: "Idle",
    tone: "soft",
    why: "Nothing runs or waits.",
    shape: "M6 3a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  },
  closed: {
    word: "Closed",
    tone: "soft",
    why: "It can be read, and takes no prompts.",
    shape: "M2 6h8",
  },
};

/** The words of a badge, with how many where there are several. */
export function badgeWords({ entry, badge }: ListedSession): string {
  const counts: Partial<Record<Badge, number>> = {
    needs_you: entry.permissionCount,
    queued: entry.queuedCount,
    held: entry.queuedCount,
    background: entry.backgroundCount + entry.runningChildCount,
  };
  const count = counts[badge] ?? 0;
  return count > 1 ? `${BADGES[badge].word} (${count})` : BADGES[badge].word;
}

/** The shape alone, in its colour. Words belong beside it. */
export function BadgeShape({ badge }: { readonly badge: Badge }) {
  const { shape, tone, isFilled } = BADGES[badge];
  return (
    <svg class={`shape ${tone} is-${badge}${isFilled ? " filled" : ""}`} viewBox="0 0 12 12" aria-hidden="true">
      <path d={shape} />
    </svg>
  );
}

/** Shape and words in a pill. */
export function BadgePill({ listed }: { readonly listed: ListedSession }) {
  const { tone, why } = BADGES[listed.badge];
  return (
    <span class={`badge ${tone}`} title={why}>
      <BadgeShape badge={listed.badge} />
      <span class="badge-words">{badgeWords(listed)}</span>
    </span>
  );
}

// -- names ---------------------------------------------------------------------------------------------------

/** What a session is called: its title, or that it has none and the beginning of its id. */
export function titleOf(entry: Pick<SessionEntry, "sessionId" | "title">): string {
  return visible(entry.title?.trim() ?? "") || `Untitled ${entry.sessionId.replace(/^s_/, "").slice(0, 6)}`;
}

/** The last name of a folder, which mostly tells it from the others. */
export function folderOf(cwd: string): string {
  return cwd.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) || cwd;
}
