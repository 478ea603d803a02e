/** The sidebar: the list of sessions, its search, the archive, and the button for a new session. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { Icon } from "../frame/icon.js";
import { onShortcut } from "../frame/shortcuts.js";
import { go } from "../route.js";
import type { Daemon } from "../state/daemon.js";
import type { SessionList } from "../state/session_list.js";
import { type AgentLabels, SessionRows, useRows } from "./list.js";
import { mayCreate, openNewSession } from "./new_session.js";
import type { SessionSearch } from "./search.js";

interface SidebarProps {
  readonly place: RefObject<HTMLElement | null>;
  readonly daemon: Daemon;
  readonly list: SessionList;
  readonly search: SessionSearch;
  /** The content of the first line. */
  readonly children: ComponentChildren;
  /** Make the sidebar visible. */
  readonly onWanted: () => void;
}

export function Sidebar({ place, daemon, list, search, children, onWanted }: SidebarProps) {
  const rows = useRows({ daemon, list, search });
  const field = useRef<HTMLInputElement>(null);
  const words = search.words.value.trim();
  const labels = useSignal<AgentLabels>(new Map());
  useEffect(() => {
    // The labels are optional, so an error is ignored.
    void daemon.client.agents().then(
      (agents) => {
        if (agents.length > 1) labels.value = new Map(agents.map((each) => [each.name, each.label]));
      },
      () => {},
    );
  }, []);
  const isArchive = list.archived.value;
  useEffect(
    () =>
      onShortcut("search", () => {
        onWanted();
        requestAnimationFrame(() => field.current?.select());
      }),
    [],
  );
  const press = (event: KeyboardEvent) => {
    if (event.key === "Escape" && search.words.value) search.words.value = "";
    else if (event.key === "ArrowDown") document.querySelector<HTMLElement>("[data-rows] a[tabindex='0']")?.focus();
    else if (event.key === "Enter" && words && search.found.value?.[0]) {
      go({ at: "session", sessionId: search.found.value[0].sessionId });
    } else return;
    event.preventDefault();
  };
  return (
    <aside class="side" aria-label="Sessions" tabIndex={-1} ref={place}>
      <header class="side-head">{children}</header>
      <div class="side-find">
        <div class="find" role="search">
          <Icon name="find" />
          <input
            ref={field}
            data-search
            class="field"
            type="search"
            aria-label="Search sessions"
            placeholder="Search"
            value={search.words}
            onInput={(event) => (search.words.value = event.currentTarget.value)}
            onKeyDown={press}
          />
        </div>
        {mayCreate(daemon) && (
          <button type="button" class="button primary" title="New session (N)" onClick={() => openNewSession(daemon)}>
            <Icon name="plus" />
            New
          </button>
        )}
      </div>
      {isArchive && !words && <p class="side-note">Archived sessions</p>}
      {rows.value.length > 0 ? (
        <SessionRows daemon={daemon} rows={rows} words={words} labels={labels.value} />
      ) : (
        <p class="side-empty soft">{emptyWords(list, search)}</p>
      )}
      <div class="unseen" role="status">
        {search.found.value && !search.isBusy.value ? `${rows.value.length} found` : ""}
      </div>
      <footer class="side-foot">
        {search.next.value !== undefined && search.found.value ? (
          <button type="button" class="button plain" onClick={() => search.more()}>
            Show more
          </button>
        ) : (
          <button type="button" class="button plain" onClick={() => (list.archived.value = !isArchive)}>
            <Icon name={isArchive ? "back" : "archive"} />
            {isArchive ? "Back to the list" : "Archived"}
          </button>
        )}
        {daemon.caller.role === "observer" && (
          <span class="badge" title="You can read everything here, but change nothing.">
            Read only
          </span>
        )}
      </footer>
    </aside>
  );
}

function emptyWords(list: SessionList, search: SessionSearch): string {
  if (search.words.value.trim()) return search.found.value ? "No matches." : "Searching…";
  if (!list.isLoaded.value) return "Loading…";
  return list.archived.value ? "No archived sessions." : "No sessions yet.";
}
