/** The actions on a session, for its menu, the palette and the keyboard. */

import { signal } from "@preact/signals";

import { copy } from "../frame/copy.js";
import { confirmFirst, openDialog } from "../frame/dialog.js";
import type { MenuItem } from "../frame/menu.js";
import { tell, tellError } from "../frame/toasts.js";
import { go } from "../route.js";
import { type Daemon, mayControl, mayOwn } from "../state/daemon.js";
import type { ListedSession } from "../state/session_list.js";
import { titleOf } from "./badge.js";

/** The session that is being renamed, and where its field is shown. */
export const renaming = signal<{ readonly sessionId: string; readonly where: "list" | "head" } | undefined>(undefined);

/** Return the actions that the caller may take. */
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
    const share = () =>
      void import("./share.js").then(
        ({ ShareDialog }) => openDialog(() => <ShareDialog daemon={daemon} entry={entry} />),
        tellError,
      );
    items.push({ words: "Share", icon: "share", run: share });
  }
  items.push({ words: "Inspector", icon: "inspector", run: () => go({ at: "inspector", sessionId }) });
  items.push({ words: "Copy ID", icon: "copy", run: () => void copy(sessionId, "Session ID copied.") });
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

async function archive(daemon: Daemon, { entry }: ListedSession, isArchived: boolean): Promise<void> {
  const { client } = daemon;
  const isDone = await done(isArchived ? client.archive(entry.sessionId) : client.unarchive(entry.sessionId));
  if (isDone) tell(`“${titleOf(entry)}” ${isArchived ? "archived" : "restored"}.`);
}

function close(daemon: Daemon, { entry }: ListedSession): void {
  const waiting = entry.queuedCount ? ` and ${entry.queuedCount} in its queue` : "";
  const running = entry.hasActivePrompt ? `Its running turn${waiting} will be cancelled. ` : "";
  confirmFirst({
    title: `Close “${titleOf(entry)}”`,
    text: `${running}It won't accept prompts any more. This can't be undone. The conversation stays readable.`,
    act: "Close session",
    run: () => void done(daemon.client.session(entry.sessionId).close()),
  });
}

/** Return whether the request succeeded; an error is shown. */
export async function done(asked: Promise<unknown>): Promise<boolean> {
  try {
    await asked;
    return true;
  } catch (error) {
    tellError(error);
    return false;
  }
}
