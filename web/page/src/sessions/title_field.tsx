/** The title of a session as a field: Enter saves, Escape cancels. */

import type { SessionEntry } from "@turnwire/client";
import { useLayoutEffect, useRef } from "preact/hooks";

import type { Daemon } from "../state/daemon.js";
import { rename, renaming } from "./actions.js";

export function TitleField({ daemon, entry }: { readonly daemon: Daemon; readonly entry: SessionEntry }) {
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    field.current!.select();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const keep = () => {
    if (renaming.peek()?.sessionId !== entry.sessionId) return;
    const title = field.current!.value;
    if (title.trim() === (entry.title ?? "")) renaming.value = undefined;
    else void rename(daemon, entry.sessionId, title);
  };
  return (
    <input
      ref={field}
      class="field title-field"
      aria-label="Title of the session"
      placeholder="Empty: use the agent's title"
      defaultValue={entry.title ?? ""}
      onKeyDown={(event) => {
        event.stopPropagation();
        if (event.key === "Enter" && !event.isComposing) keep();
        if (event.key === "Escape") renaming.value = undefined;
      }}
      onBlur={keep}
    />
  );
}
