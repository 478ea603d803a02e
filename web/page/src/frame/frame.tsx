/** The frame of the page: the sidebar and the open part; on a phone one of the two. */

import { type ReadonlySignal, useComputed, useSignal, useSignalEffect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { modelOf } from "../conversation/model.js";
import { type Route, go, hrefOf, route } from "../route.js";
import { sessionActions, renaming } from "../sessions/actions.js";
import { BadgePill, folderOf, titleOf } from "../sessions/badge.js";
import { mayCreate, openNewSession } from "../sessions/new_session.js";
import type { SessionSearch } from "../sessions/search.js";
import { Sidebar } from "../sessions/sidebar.js";
import { TitleField } from "../sessions/title_field.js";
import { type Daemon, mayControl, mayOwn, whoIs } from "../state/daemon.js";
import type { Inbox } from "../state/inbox.js";
import { type ListedSession, type SessionList, badgeOf } from "../state/session_list.js";
import { type Command, offer } from "./commands.js";
import { OverPage } from "./dialog.js";
import { Icon, type IconName } from "./icon.js";
import { kept } from "./kept.js";
import { LinkMark } from "./link_mark.js";
import { logOut } from "./login.js";
import { type MenuEntry, MenuPlace, toggleMenu } from "./menu.js";
import { pageKey } from "./page_key.js";
import { openPalette } from "./palette.js";
import { openShortcutList } from "./shortcut_list.js";
import { isMac, keysInWords, onShortcut } from "./shortcuts.js";
import { tellError } from "./toasts.js";
import { THEMES, THEME_WORDS, nextTheme, theme } from "./theme.js";

const sidebar = kept<"open" | "closed">("sidebar", ["open", "closed"]);

/** The data behind the frame, created once per login. */
export interface Shown {
  readonly daemon: Daemon;
  readonly list: SessionList;
  readonly inbox: Inbox;
  readonly search: SessionSearch;
}

interface FrameProps extends Shown {
  /** Further entries of the menu. */
  readonly more: () => readonly MenuEntry[];
  readonly children: ComponentChildren;
}

export function Frame(props: FrameProps) {
  const { daemon, list, inbox, search, more, children } = props;
  const at = route.value.at;
  const main = useRef<HTMLElement>(null);
  const side = useRef<HTMLElement>(null);
  const isAlone = daemon.caller.sessionId !== undefined;
  const entry = useComputed(() => {
    const shown = route.value;
    return "sessionId" in shown ? list.byId.value.get(shown.sessionId) : undefined;
  });
  // Depends on the entry only: the list changes with every session.
  const open = useComputed(() => entry.value && { entry: entry.value, badge: badgeOf(entry.value) });
  const toggleSide = () => {
    sidebar.value = sidebar.value === "open" ? "closed" : "open";
  };
  const showSide = () => {
    sidebar.value = "open";
    if (isNarrow()) go({ at: "home" });
  };

  const sessions = useComputed<readonly Command[]>(() => sessionCommands(list));
  useCommands({ ...props, open, sessions, toggleSide });
  const hasMoved = useRef(false);
  useEffect(() => {
    // On a phone one pane replaces the other, so move the focus.
    if (hasMoved.current && isNarrow()) (at === "home" ? side : main).current?.focus();
    hasMoved.current = true;
  }, [at]);
  useSignalEffect(() => {
    const count = inbox.asked.value.length;
    const name = open.value ? titleOf(open.value.entry) : route.value.at === "inbox" ? "Inbox" : "";
    document.title = `${count ? `(${count}) ` : ""}${name ? `${name} · ` : ""}turnwire`;
    void navigator.setAppBadge?.(count).catch(() => {});
  });

  return (
    <div class="frame" data-at={at} data-side={isAlone ? "none" : sidebar.value}>
      <button type="button" class="skip button" onClick={() => main.current?.focus()}>
        Skip to the session
      </button>
      {!isAlone && (
        <Sidebar place={side} daemon={daemon} list={list} search={search} onWanted={showSide}>
          <a class="brand" href={hrefOf({ at: "home" })}>
            <Mark />
            turnwire
          </a>
          <IconButton icon="find" words={`Search and commands (${keysInWords("mod+k", isMac.value)})`} onClick={() => openPalette(sessions)} />
          <InboxLink inbox={inbox} isShown={at === "inbox"} />
          <SettingsButton daemon={daemon} more={more} />
          <IconButton icon="side" words="Hide the sidebar ([)" kind="only-wide" onClick={toggleSide} />
        </Sidebar>
      )}
      <div class="pane">
        <header class="head">
          {!isAlone && (
            <>
              <a class="icon-button only-narrow" href={hrefOf({ at: "home" })} aria-label="Back to the list">
                <Icon name="back" />
              </a>
              {sidebar.value === "closed" && (
                <IconButton icon="side" words="Show the sidebar ([)" kind="only-wide" onClick={toggleSide} />
              )}
            </>
          )}
          <Head daemon={daemon} at={route.value} listed={open} />
          {!isAlone && at !== "inbox" && inbox.asked.value.length > 0 && (
            <span class={sidebar.value === "closed" ? "" : "only-narrow"}>
              <InboxLink inbox={inbox} isShown={false} />
            </span>
          )}
          {isAlone && <SettingsButton daemon={daemon} more={more} />}
        </header>
        <main class="main" id="main" tabIndex={-1} ref={main}>
          {children}
        </main>
      </div>
      <LinkMark feed={daemon.feed} />
      <MenuPlace />
      <OverPage />
    </div>
  );
}

/** Whether only one pane is shown at a time; as in frame.css. */
function isNarrow(): boolean {
  return matchMedia("(max-width: 719px)").matches;
}

interface HeadProps {
  readonly daemon: Daemon;
  readonly at: Route;
  readonly listed: ReadonlySignal<ListedSession | undefined>;
}

/** The header of the open part. */
function Head({ daemon, at, listed }: HeadProps) {
  const open = listed.value;
  if (at.at === "home") return null;
  if (at.at === "inbox") return <h1 class="head-title">Inbox</h1>;
  const { sessionId } = at;
  const isRenamed = renaming.value?.where === "head" && renaming.value.sessionId === sessionId;
  const isInspector = at.at === "inspector";
  return (
    <>
      {open && isRenamed ? (
        <TitleField daemon={daemon} entry={open.entry} />
      ) : (
        <h1 class="head-title">{titleOf(open?.entry ?? { sessionId })}</h1>
      )}
      {open && <BadgePill listed={open} canAnswer={mayControl(daemon.caller)} />}
      {open && (
        <span class="head-folder only-wide soft small" title={open.entry.cwd}>
          <AgentName daemon={daemon} name={open.entry.agent} /> · {folderOf(open.entry.cwd)}
        </span>
      )}
      <span class="head-space" />
      {daemon.caller.sessionId !== undefined && daemon.caller.role === "observer" && <span class="badge">Read only</span>}
      <a
        class={isInspector ? "icon-button pressed" : "icon-button only-wide"}
        href={hrefOf({ at: isInspector ? "session" : "inspector", sessionId })}
        aria-label={isInspector ? "Back to the conversation" : "Inspector"}
        title={isInspector ? "Back to the conversation (E)" : "Inspector (E)"}
      >
        <Icon name="inspector" />
      </a>
      {open && (
        <button
          type="button"
          class="icon-button"
          aria-label="Session menu"
          aria-haspopup="menu"
          aria-expanded="false"
          onClick={(event) => toggleMenu(event.currentTarget, sessionActions(daemon, open, "head"))}
        >
          <Icon name="dots" />
        </button>
      )}
    </>
  );
}

/** The agent's label, and its model if it offers a choice of models. */
function AgentName({ daemon, name }: { readonly daemon: Daemon; readonly name: string }) {
  const label = useSignal(name);
  useEffect(() => {
    // The label is optional, so an error is ignored.
    void daemon.client.agents().then(
      (agents) => (label.value = agents.find((each) => each.name === name)?.label ?? name),
      () => {},
    );
  }, [name]);
  return <>{[label.value, modelOf.value].filter(Boolean).join(" · ")}</>;
}

interface IconButtonProps {
  readonly icon: IconName;
  readonly words: string;
  readonly kind?: string;
  readonly onClick: () => void;
}

function IconButton({ icon, words, kind = "", onClick }: IconButtonProps) {
  return (
    <button type="button" class={`icon-button ${kind}`} aria-label={words} title={words} onClick={onClick}>
      <Icon name={icon} />
    </button>
  );
}

function InboxLink({ inbox, isShown }: { readonly inbox: Inbox; readonly isShown: boolean }) {
  const count = inbox.asked.value.length;
  const words = `Inbox: ${count || "no"} open ${count === 1 ? "request" : "requests"}`;
  return (
    <a
      class={isShown ? "icon-button pressed" : "icon-button"}
      href={hrefOf({ at: "inbox" })}
      aria-label={words}
      title={`${words} (I)`}
      aria-current={isShown ? "page" : undefined}
    >
      <Icon name="inbox" />
      {count > 0 && <span class="count">{count > 99 ? "99+" : count}</span>}
    </a>
  );
}

interface SettingsProps {
  readonly daemon: Daemon;
  readonly more: () => readonly MenuEntry[];
}

function SettingsButton({ daemon, more }: SettingsProps) {
  const { caller } = daemon;
  const { capabilities } = daemon.client;
  const entries = (): MenuEntry[] => [
    { heading: `Signed in as ${whoIs(caller)} · turnwire ${capabilities.version}` },
    ...(mayOwn(caller) ? [{ words: "Open on your phone", icon: "share" as const, run: () => showPhoneDialog(daemon) }] : []),
    ...(pageKey() === undefined ? [] : [{ words: "Log out", icon: "back" as const, run: () => void logOut(daemon) }]),
    { heading: "Theme" },
    ...THEMES.map((each) => ({
      words: THEME_WORDS[each],
      isChosen: theme.value === each,
      run: () => {
        theme.value = each;
      },
    })),
    ...more(),
    { heading: "" },
    { words: "Keyboard shortcuts", icon: "keys", run: openShortcutList },
  ];
  return (
    <button
      type="button"
      class="icon-button"
      aria-label="Settings"
      title="Settings"
      aria-haspopup="menu"
      aria-expanded="false"
      onClick={(event) => toggleMenu(event.currentTarget, entries())}
    >
      <Icon name="settings" />
    </button>
  );
}

function showPhoneDialog(daemon: Daemon): void {
  void import("./phone.js").then(({ openPhoneDialog }) => openPhoneDialog(daemon), tellError);
}

/** The logo. */
function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <path d="M7 9h13a4 4 0 0 1 0 8h-8a3 3 0 0 0 0 6h13" />
    </svg>
  );
}

// -- commands ------------------------------------------------------------------------------------------------

function sessionCommands(list: SessionList): Command[] {
  return list.sessions.value.map(({ entry }) => ({
    words: titleOf(entry),
    group: "Session",
    run: () => go({ at: "session", sessionId: entry.sessionId }),
  }));
}

interface CommandParts extends Pick<FrameProps, "daemon"> {
  readonly open: ReadonlySignal<ListedSession | undefined>;
  readonly sessions: ReadonlySignal<readonly Command[]>;
  readonly toggleSide: () => void;
}

/** The frame's commands for the palette and the keyboard. */
function useCommands({ daemon, open, sessions, toggleSide }: CommandParts): void {
  useEffect(() => {
    const isAlone = daemon.caller.sessionId !== undefined;
    const flip = () => {
      const at = route.peek();
      if ("sessionId" in at) go({ at: at.at === "inspector" ? "session" : "inspector", sessionId: at.sessionId });
    };
    const rename = () => {
      const sessionId = open.peek()?.entry.sessionId;
      if (sessionId !== undefined) renaming.value = { sessionId, where: "head" };
    };
    const stops = [
      onShortcut("palette", () => openPalette(sessions)),
      onShortcut("shortcuts", openShortcutList),
      onShortcut("theme", nextTheme),
      onShortcut("inspector", flip),
      offer([
        ...THEMES.map((each) => ({
          words: `Theme: ${THEME_WORDS[each].toLowerCase()}`,
          group: "Theme",
          run: () => {
            theme.value = each;
          },
        })),
        { words: "Keyboard shortcuts", group: "Help", keys: "?", run: openShortcutList },
      ]),
    ];
    if (mayControl(daemon.caller)) stops.push(onShortcut("rename", rename));
    if (!isAlone) {
      const inbox = () => go({ at: "inbox" });
      const home = () => go({ at: "home" });
      stops.push(
        onShortcut("inbox", inbox),
        onShortcut("home", home),
        onShortcut("sidebar", toggleSide),
        offer([
          { words: "Go to inbox", group: "Page", keys: "i", run: inbox },
          { words: "Go home", group: "Page", keys: "h", run: home },
          { words: "Show or hide the sidebar", group: "Page", keys: "[", run: toggleSide },
        ]),
      );
    }
    if (mayCreate(daemon)) {
      const create = () => openNewSession(daemon);
      stops.push(onShortcut("new_session", create));
      stops.push(offer([{ words: "New session", group: "Page", keys: "n", run: create }]));
    }
    return () => stops.forEach((stop) => stop());
  }, []);
  // The commands of the open session come first.
  useSignalEffect(() => {
    const listed = open.value;
    if (!listed) return undefined;
    return offer(
      sessionActions(daemon, listed, "head").map(({ words, run }) => ({
        words: `This session: ${words.toLowerCase()}`,
        group: "Session",
        run,
      })),
    );
  });
}
