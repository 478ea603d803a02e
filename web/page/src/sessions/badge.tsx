/** The badge of a session's state: a word, a colour and a shape with the same meaning. */

import type { SessionEntry } from "@turnwire/client";

import type { Badge, ListedSession } from "../state/session_list.js";
import { visible } from "../content/visible.js";
import { isAway } from "../frame/link_mark.js";

export interface BadgeLook {
  readonly word: string;
  readonly tone: "warn" | "info" | "good" | "bad" | "soft";
  /** Tooltip. */
  readonly why: string;
  /** SVG path in a 12 by 12 box. */
  readonly shape: string;
  readonly isFilled?: boolean;
}

export const BADGES: Readonly<Record<Badge, BadgeLook>> = {
  needs_you: {
    word: "Needs you",
    tone: "warn",
    why: "The agent needs an answer from you.",
    shape: "M6 .8 11.2 6 6 11.2.8 6z",
    isFilled: true,
  },
  working: {
    word: "Working",
    tone: "info",
    why: "A turn is running.",
    shape: "M6 1.5A4.5 4.5 0 1 1 1.5 6",
  },
  cancelling: {
    word: "Stopping",
    tone: "soft",
    why: "The turn is being cancelled.",
    shape: "M2.5 2.5h7v7h-7z",
    isFilled: true,
  },
  stalled: {
    word: "Stalled",
    tone: "warn",
    why: "The turn seems to be over, but the agent has not reported its end.",
    shape: "M6 1.5 11 10.5H1z",
  },
  queued: {
    word: "Queued",
    tone: "info",
    why: "A prompt is queued.",
    shape: "M1.5 3h9M1.5 6h9M1.5 9h9",
  },
  held: {
    word: "Queue held",
    tone: "warn",
    why: "No queued prompt starts until the queue is released.",
    shape: "M4 2v8M8 2v8",
  },
  background: {
    word: "In background",
    tone: "good",
    why: "No turn is running, but the agent continues background work.",
    shape: "M6 1.5a4.5 4.5 0 0 1 0 9zM6 1.5a4.5 4.5 0 0 0 0 9",
  },
  agent_gone: {
    word: "Agent gone",
    tone: "bad",
    why: "The agent exited or could not be started. The next prompt starts it again.",
    shape: "m2.5 2.5 7 7M9.5 2.5l-7 7",
  },
  idle: {
    word: "Idle",
    tone: "soft",
    why: "No turn is running and no prompt is queued.",
    shape: "M6 3a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  },
  closed: {
    word: "Closed",
    tone: "soft",
    why: "It can be read, but not prompted.",
    shape: "M2 6h8",
  },
};

/** Return the look of a badge. Observers are not asked to answer. */
export function lookOf(badge: Badge, canAnswer: boolean): BadgeLook {
  if (badge !== "needs_you" || canAnswer) return BADGES[badge];
  return { ...BADGES.needs_you, word: "Waiting", why: "The agent waits for an answer." };
}

/** Return the text of a badge, with a count if there are several. */
export function badgeWords({ entry, badge }: ListedSession, canAnswer: boolean): string {
  const counts: Partial<Record<Badge, number>> = {
    needs_you: entry.permissionCount,
    queued: entry.queuedCount,
    held: entry.queuedCount,
    background: entry.backgroundCount + entry.runningChildCount,
  };
  const count = counts[badge] ?? 0;
  const { word } = lookOf(badge, canAnswer);
  return count > 1 ? `${word} (${count})` : word;
}

/** The coloured shape of a badge, to be shown next to its text. */
export function BadgeShape({ badge }: { readonly badge: Badge }) {
  const { shape, tone, isFilled } = BADGES[badge];
  return (
    <svg class={`shape ${tone} is-${badge}${isFilled ? " filled" : ""}`} viewBox="0 0 12 12" aria-hidden="true">
      <path d={shape} />
    </svg>
  );
}

/** Shape and text in a pill. */
export function BadgePill({ listed, canAnswer }: { readonly listed: ListedSession; readonly canAnswer: boolean }) {
  if (isAway.value) return <span class="badge">Unknown</span>;
  const { tone, why } = lookOf(listed.badge, canAnswer);
  return (
    <span class={`badge ${tone}`} title={why}>
      <BadgeShape badge={listed.badge} />
      <span class="badge-words">{badgeWords(listed, canAnswer)}</span>
    </span>
  );
}

// -- names ---------------------------------------------------------------------------------------------------

/** Return the name of a session: its title, else its first prompt, else the beginning of its id. */
export function titleOf(entry: Pick<SessionEntry, "sessionId" | "title" | "firstPrompt">): string {
  return visible(entry.title?.trim() || entry.firstPrompt || "") || `Untitled ${entry.sessionId.replace(/^s_/, "").slice(0, 6)}`;
}

/** Return the last part of a folder's path. */
export function folderOf(cwd: string): string {
  return cwd.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) || cwd;
}
