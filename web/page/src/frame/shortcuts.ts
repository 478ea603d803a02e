/**
 * Keyboard shortcuts: one table, for the handlers and for the list in the help. Single-key shortcuts are ignored in
 * fields and dialogs, and can be turned off.
 */

import { type ReadonlySignal, signal } from "@preact/signals";

import { kept } from "./kept.js";

export type Action =
  | "palette"
  | "shortcuts"
  | "new_session"
  | "search"
  | "next_session"
  | "previous_session"
  | "inbox"
  | "home"
  | "sidebar"
  | "inspector"
  | "rename"
  | "compose"
  | "theme";

export interface Shortcut {
  /** In the notation of `keysOf`; `mod` is Ctrl, or Cmd on a Mac. */
  readonly keys: string;
  readonly words: string;
  readonly action: Action;
}

export const SHORTCUTS: readonly Shortcut[] = [
  { keys: "mod+k", words: "Search and commands", action: "palette" },
  { keys: "n", words: "New session", action: "new_session" },
  { keys: "/", words: "Search sessions", action: "search" },
  { keys: "j", words: "Next session", action: "next_session" },
  { keys: "k", words: "Previous session", action: "previous_session" },
  { keys: "i", words: "Inbox", action: "inbox" },
  { keys: "h", words: "Home", action: "home" },
  { keys: "c", words: "Write a prompt", action: "compose" },
  { keys: "e", words: "Toggle inspector", action: "inspector" },
  { keys: "r", words: "Rename the session", action: "rename" },
  { keys: "[", words: "Show or hide the sidebar", action: "sidebar" },
  { keys: "t", words: "Next theme", action: "theme" },
  { keys: "?", words: "Keyboard shortcuts", action: "shortcuts" },
];

/** The parts of a key event that matter here. */
export interface Pressed {
  readonly key: string;
  readonly ctrlKey: boolean;
  readonly metaKey: boolean;
  readonly altKey: boolean;
  readonly isComposing?: boolean;
}

/** The place of a key event. */
export type Place = "page" | "field" | "dialog";

/** Return the keys of an event in the notation of the table. */
export function keysOf(pressed: Pressed): string {
  const key = pressed.key.length === 1 ? pressed.key.toLowerCase() : pressed.key;
  return `${pressed.ctrlKey || pressed.metaKey ? "mod+" : ""}${pressed.altKey ? "alt+" : ""}${key}`;
}

/** Return the shortcut of an event, if there is one at that place. */
export function shortcutOf(pressed: Pressed, place: Place, withSingleKeys: boolean): Shortcut | undefined {
  if (pressed.isComposing) return undefined;
  const keys = keysOf(pressed);
  const found = SHORTCUTS.find((each) => each.keys === keys);
  if (found && !keys.startsWith("mod+") && (place !== "page" || !withSingleKeys)) return undefined;
  return found;
}

/** Return keys for display: "Ctrl K", or "⌘ K". */
export function keysInWords(keys: string, isMac: boolean): string {
  return keys
    .split("+")
    .map((each) => (each === "mod" ? (isMac ? "⌘" : "Ctrl") : each.length === 1 ? each.toUpperCase() : each))
    .join(" ");
}

// -- handlers ------------------------------------------------------------------------------------------------

const handlers = signal<ReadonlyMap<Action, readonly (() => void)[]>>(new Map());
/** Whether single-key shortcuts are on; stored in this browser. */
export const singleKeys = kept<"on" | "off">("single-keys", ["on", "off"]);

/** Run `run` for an action; the newest handler wins. Return a function that removes the handler. */
export function onShortcut(action: Action, run: () => void): () => void {
  const all = handlers.peek();
  handlers.value = new Map(all).set(action, [...(all.get(action) ?? []), run]);
  return () => {
    const remaining = handlers.peek().get(action)?.filter((each) => each !== run) ?? [];
    handlers.value = new Map(handlers.peek()).set(action, remaining);
  };
}

/** Return the shortcuts that have a handler now. */
export function working(): readonly Shortcut[] {
  return SHORTCUTS.filter((each) => handlers.value.get(each.action)?.length);
}

export const isMac: ReadonlySignal<boolean> = signal(
  typeof navigator !== "undefined" && /mac|iphone|ipad/i.test(navigator.platform),
);

/** Start handling key events. */
export function startShortcuts(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return;
    const found = shortcutOf(event, placeOf(event.target), singleKeys.value === "on");
    const run = found && handlers.peek().get(found.action)?.at(-1);
    if (!run) return;
    event.preventDefault();
    run();
  });
}

function placeOf(target: EventTarget | null): Place {
  // An element of a closed dialog keeps the focus until the page is rendered again.
  if (!(target instanceof HTMLElement) || target.closest("dialog:not([open])")) return "page";
  if (target.isContentEditable || target.matches("input, textarea, select, [role=textbox]")) return "field";
  return target.closest("dialog, [role=menu]") ? "dialog" : "page";
}
