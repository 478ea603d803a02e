/** The page: the login screen until the daemon accepts the caller, then the frame with the part that the URL names. */

import type { ComponentChildren, ComponentType } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { Conversation } from "./conversation/conversation.js";
import { Frame, type Shown } from "./frame/frame.js";
import type { MenuEntry } from "./frame/menu.js";
import { canNotify, isNotified, setNotified, startNotifications } from "./frame/notifications.js";
import { isMac, keysInWords } from "./frame/shortcuts.js";
import { Outside, stage } from "./frame/start.js";
import { tellError } from "./frame/toasts.js";
import { go, route } from "./route.js";
import { InboxPane } from "./sessions/inbox.js";
import { NewSessionForm, mayCreate } from "./sessions/new_session.js";
import { SessionSearch } from "./sessions/search.js";
import type { Daemon } from "./state/daemon.js";
import { openInbox } from "./state/inbox.js";
import { openSessionList } from "./state/session_list.js";

export function App() {
  const at = stage.value;
  return at.at === "in" ? <Inside daemon={at.daemon} /> : <Outside shown={at} />;
}

function Inside({ daemon }: { readonly daemon: Daemon }) {
  const shown = useMemo<Shown>(() => {
    const list = openSessionList(daemon);
    return { daemon, list, inbox: openInbox(daemon, list), search: new SessionSearch(daemon) };
  }, [daemon]);
  useEffect(() => startNotifications(daemon, shown.list), [shown]);
  const { sessionId } = daemon.caller;
  const at = route.value;
  useEffect(() => {
    // A credential for one session shows that session, whatever the URL says.
    if (sessionId !== undefined && !("sessionId" in at && at.sessionId === sessionId)) go({ at: "session", sessionId });
  }, [at, sessionId]);
  return (
    <Frame {...shown} more={entries}>
      <Part shown={shown} />
    </Frame>
  );
}

/** Optional entries of the settings menu. */
function entries(): MenuEntry[] {
  const isOn = isNotified.value;
  const all: MenuEntry[] = [];
  if (canNotify) {
    const words = isOn ? "Turn off notifications" : "Turn on notifications";
    all.push({ words, icon: "bell", run: () => void setNotified(!isOn) });
  }
  return all.length ? [{ heading: "" }, ...all] : [];
}

function Part({ shown }: { readonly shown: Shown }): ComponentChildren {
  const at = route.value;
  const { daemon } = shown;
  switch (at.at) {
    case "home":
      return <Home shown={shown} />;
    case "inbox":
      return <InboxPane daemon={daemon} inbox={shown.inbox} />;
    case "session":
      return <Conversation key={at.sessionId} daemon={daemon} list={shown.list} sessionId={at.sessionId} />;
    case "inspector":
      return (
        <LazyInspector
          key={at.sessionId}
          daemon={daemon}
          sessionId={at.sessionId}
          {...(at.turn === undefined ? {} : { turn: at.turn })}
        />
      );
  }
}

function Home({ shown: { daemon } }: { readonly shown: Shown }) {
  return mayCreate(daemon) ? (
    <div class="home">
      <h1>New session</h1>
      <NewSessionForm daemon={daemon} />
      <p class="soft small">
        <kbd>{keysInWords("mod+k", isMac.value)}</kbd> search and commands · <kbd>?</kbd> shortcuts
      </p>
    </div>
  ) : (
    <div class="empty">
      <p>Choose a session from the list.</p>
    </div>
  );
}

interface InspectorProps {
  readonly daemon: Daemon;
  readonly sessionId: string;
  readonly turn?: string;
}

/** The inspector, whose code is loaded on demand. */
function LazyInspector(props: InspectorProps) {
  const [Inspector, setInspector] = useState<ComponentType<InspectorProps>>();
  useEffect(() => {
    import("./inspector/inspector.js").then((found) => setInspector(() => found.Inspector), tellError);
  }, []);
  return Inspector ? <Inspector {...props} /> : <p class="empty soft">Loading…</p>;
}
