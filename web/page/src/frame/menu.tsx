/** A menu below a button, with arrow keys, Enter and Escape. One at a time. */

import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

import { Icon, type IconName } from "./icon.js";

export interface MenuItem {
  readonly words: string;
  readonly icon?: IconName;
  /** Present on entries of which exactly one is chosen. */
  readonly isChosen?: boolean;
  readonly isDanger?: boolean;
  run(): void;
}
/** A separator, with an optional heading. */
export type MenuEntry = MenuItem | { readonly heading: string };

const shown = signal<{ readonly anchor: HTMLElement; readonly entries: readonly MenuEntry[] } | undefined>(undefined);

/** Show a menu at a button; if it is shown there already, hide it. */
export function toggleMenu(anchor: HTMLElement, entries: readonly MenuEntry[]): void {
  shown.value = shown.peek()?.anchor === anchor ? undefined : { anchor, entries };
}

/** The place of the menu. */
export function MenuPlace() {
  const menu = shown.value;
  return menu ? <Menu key={menu.entries} {...menu} /> : null;
}

function Menu({ anchor, entries }: { readonly anchor: HTMLElement; readonly entries: readonly MenuEntry[] }) {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const menu = element.current!;
    anchor.setAttribute("aria-expanded", "true");
    place(menu, anchor);
    items(menu)[0]?.focus();
    const leave = (event: Event) => {
      if (event.target instanceof Node && (menu.contains(event.target) || anchor.contains(event.target))) return;
      shown.value = undefined;
    };
    const hide = () => {
      shown.value = undefined;
    };
    document.addEventListener("pointerdown", leave, true);
    addEventListener("resize", hide);
    addEventListener("hashchange", hide);
    return () => {
      anchor.setAttribute("aria-expanded", "false");
      document.removeEventListener("pointerdown", leave, true);
      removeEventListener("resize", hide);
      removeEventListener("hashchange", hide);
    };
  }, []);
  const close = () => {
    shown.value = undefined;
    if (anchor.isConnected) anchor.focus();
  };
  const press = (event: KeyboardEvent) => {
    const all = items(element.current!);
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to: Readonly<Record<string, number>> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
    const next = to[event.key];
    if (next !== undefined) all.at(next % all.length)?.focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div ref={element} class="menu" role="menu" onKeyDown={press}>
      {entries.map((entry) =>
        "heading" in entry ? (
          <div class="menu-heading" role="presentation" key={entry.heading}>
            {entry.heading}
          </div>
        ) : (
          <button
            type="button"
            key={entry.words}
            class={entry.isDanger ? "menu-item danger" : "menu-item"}
            role={entry.isChosen === undefined ? "menuitem" : "menuitemradio"}
            aria-checked={entry.isChosen}
            tabIndex={-1}
            onClick={() => {
              close();
              entry.run();
            }}
          >
            {entry.isChosen ? <Icon name="check" /> : entry.icon ? <Icon name={entry.icon} /> : <span class="icon" />}
            {entry.words}
          </button>
        ),
      )}
    </div>
  );
}

function items(menu: HTMLElement): HTMLElement[] {
  return [...menu.querySelectorAll<HTMLElement>(".menu-item")];
}

/** Place the menu below the button, or above it if there is no room; never outside the window. */
function place(menu: HTMLElement, anchor: HTMLElement): void {
  const at = anchor.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = at.bottom + 4;
  const top = below + height > innerHeight - 8 ? Math.max(8, at.top - height - 4) : below;
  menu.style.top = `${top}px`;
  menu.style.left = `${Math.max(8, Math.min(at.right - width, innerWidth - width - 8))}px`;
}
