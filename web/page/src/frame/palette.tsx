/** The palette: a fuzzy search of session titles and available commands. */

import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useId, useMemo, useRef } from "preact/hooks";

import { type Command, commands } from "./commands.js";
import { Dialog, closeDialog, openDialog } from "./dialog.js";
import { fuzzyMatch } from "./fuzzy.js";
import { isMac, keysInWords } from "./shortcuts.js";

const MOST = 50;
/** Sessions that the palette lists before anything is typed. */
const NEWEST = 5;

/** `more`: one command for each session. */
export function openPalette(more: ReadonlySignal<readonly Command[]>): void {
  openDialog(() => (
    <Dialog title="Search and commands" kind="palette" isBare>
      <Palette more={more} />
    </Dialog>
  ));
}

function Palette({ more }: { readonly more: ReadonlySignal<readonly Command[]> }) {
  const query = useSignal("");
  const at = useSignal(0);
  const id = useId();
  const box = useRef<HTMLUListElement>(null);
  const offered = commands.value;
  const sessions = more.value;
  const found = useMemo(() => {
    const isOpen = query.value.trim() === "";
    return matching(query.value, [...(isOpen ? sessions.slice(0, NEWEST) : sessions), ...offered]);
  }, [query.value, offered, sessions]);
  const chosen = Math.min(at.value, found.length - 1);

  const move = (to: number) => {
    at.value = (to + found.length) % Math.max(1, found.length);
    requestAnimationFrame(() => box.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }));
  };
  const run = (command: Command | undefined) => {
    if (!command) return;
    closeDialog();
    // Run after the dialog is closed and the focus is restored.
    queueMicrotask(() => command.run());
  };
  const press = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown") move(chosen + 1);
    else if (event.key === "ArrowUp") move(chosen - 1);
    else if (event.key === "Enter") run(found[chosen]?.command);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <input
        class="palette-field"
        data-first
        type="text"
        role="combobox"
        aria-label="Search sessions and commands"
        aria-expanded={found.length > 0}
        aria-controls={id}
        aria-autocomplete="list"
        aria-activedescendant={found.length ? `${id}-${chosen}` : undefined}
        placeholder="Search sessions and commands"
        autocomplete="off"
        spellcheck={false}
        value={query}
        onInput={(event) => {
          query.value = event.currentTarget.value;
          at.value = 0;
        }}
        onKeyDown={press}
      />
      <ul class="palette-list" role="listbox" id={id} aria-label="Results" ref={box} hidden={!found.length}>
        {found.map(({ command, places }, index) => (
          <li
            key={index}
            id={`${id}-${index}`}
            role="option"
            aria-selected={index === chosen}
            class="palette-item"
            onPointerMove={() => {
              if (at.peek() !== index) at.value = index;
            }}
            onClick={() => run(command)}
          >
            <span class="palette-words">
              <Letters text={command.words} places={places} />
            </span>
            {command.keys && <kbd>{keysInWords(command.keys, isMac.value)}</kbd>}
            <span class="palette-group soft small">{command.group}</span>
          </li>
        ))}
      </ul>
      {!found.length && <p class="palette-none soft">No matches.</p>}
    </>
  );
}

interface FoundCommand {
  readonly command: Command;
  readonly places: readonly number[];
}

function matching(query: string, all: readonly Command[]): FoundCommand[] {
  if (!query.trim()) return all.slice(0, MOST).map((command) => ({ command, places: [] }));
  const found: (FoundCommand & { score: number })[] = [];
  for (const command of all) {
    const match = fuzzyMatch(query, command.words);
    if (match) found.push({ command, ...match });
  }
  return found.sort((a, b) => b.score - a.score).slice(0, MOST);
}

function Letters({ text, places }: { readonly text: string; readonly places: readonly number[] }) {
  if (!places.length) return <>{text}</>;
  const marked = new Set(places);
  return <>{Array.from(text, (letter, index) => (marked.has(index) ? <b key={index}>{letter}</b> : letter))}</>;
}
