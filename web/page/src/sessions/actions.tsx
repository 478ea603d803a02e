/** What can be done with a session, wherever that is offered: in its menu, in the palette, by keys. */

import { signal } from "@preact/signals";

import { copy } from "../frame/copy.js";
import { confirmFirst, openDialog } from "../frame/dialog.js";
import type { MenuItem } from "../frame/menu.js";
import { tell, tellError } from "../frame/toasts.js";
import { go } from "../route.js";
import { type Daemon, mayControl, mayOwn } from "../state/daemon.js";
import type { ListedSession } from "../state/session_list.js";
import { titleOf } from "./badge.js";
import { ShareDialog } from "./share.js";

/** Whose title is being changed, and where it is shown as a field. */
export const renaming = signal<{ readonly sessionId: string; readonly where: "list" | "head" } | undefined>(undefined);

/** All that the caller may do with a session. */
export function sessionActions(daemon: Daemon, listed: ListedSession, where: "list" | "head"): MenuItem[] {
  const { entry } = listed;
  const { sessionId } = entry;
  const items: MenuItem[] = [];
  if (mayControl(daemon.caller)) {
    const rename = () => {
      renaming.value = { sessionId, where };
    };
    items.push({ words: "Rename", icon: "pencil", run: rename });
  }
  if (mayOwn(daemon.caller)) {
    const share = () => openDialog(() => <ShareDialog daemon={daemon} entry={entry} />);
    items.push({ words: "Share", icon: "share", run: share });
  }
  items.push({ words: "Inspector", icon: "inspector", run: () => go({ at: "inspector", sessionId }) });
  items.push({ words: "Copy id", icon: "copy", run: () => void copy(sessionId, "The session's id is copied.") });
  if (mayControl(daemon.caller)) {
    items.push(
      entry.archived
        ? { words: "Unarchive", icon: "archive", run: () => void archive(daemon, listed, false) }
        : { words: "Archive", icon: "archive", run: () => void archive(daemon, listed, true) },
    );
    if (!entry.closed) items.push({ words: "Close", icon: "stop", isDanger: true, run: () => close(daemon, listed) });
  }
  return items;
}

export async function rename(daemon: Daemon, sessionId: string, title: string): Promise<void> {
  renaming.value = undefined;
  await done(daemon.client.session(sessionId).rename(title.trim() || null));
}

async function archive(daemon: Daemon, { entry }: ListedSession, away: boolean): Promise<void> {
  const { client } = daemon;
  const isDone = await done(away ? client.archive(entry.sessionId) : client.unarchive(entry.sessionId));
  if (isDone) tell(away ? `“${titleOf(entry)}” is archived.` : `“${titleOf(entry)}” is back in the list.`);
}

function close(daemon: Daemon, { entry }: ListedSession): void {
  const waiting = entry.queuedCount ? ` and ${entry.queuedCount} in its queue` : "";
  const running = entry.hasActivePrompt ? `Its running turn${waiting} will be cancelled. ` : "";
  confirmFirst({
    title: `Close “${titleOf(entry)}”`,
    text: `${running}It takes no prompts any more, and this cannot be undone. What was said stays readable.`,
    act: "Close session",
    run: () => void done(daemon.client.session(entry.sessionId).close()),
  });
}

/** Whether it went well; else the reason is shown. */
export async function done(asked: Promise<unknown>): Promise<boolean> {
  try {
    await asked;
    return true;
  } catch (error) {
    tellError(error);
    return false;
  }
}
