/** Choices stored in this browser: the theme, the last agent. Never data of the daemon. */

import { type Signal, signal } from "@preact/signals";

const PREFIX = "turnwire.";

/** A stored choice among words; the first one by default. Other tabs follow a change. */
export function kept<Word extends string>(name: string, words: readonly [Word, ...Word[]]): Signal<Word> {
  const read = () => words.find((each) => each === keptText(name)) ?? words[0];
  const choice = signal<Word>(read());
  if (typeof addEventListener === "function" && typeof localStorage !== "undefined") {
    choice.subscribe((word) => {
      if (word !== read()) keepText(name, word);
    });
    addEventListener("storage", ({ key }) => {
      if (key === PREFIX + name) choice.value = read();
    });
  }
  return choice;
}

/** Return a stored text. A browser may forbid storage; then there is none. */
export function keptText(name: string): string | undefined {
  try {
    return localStorage.getItem(PREFIX + name) ?? undefined;
  } catch {
    return undefined;
  }
}

export function keepText(name: string, text: string): void {
  try {
    localStorage.setItem(PREFIX + name, text);
  } catch {
    // Without storage the choice lasts as long as the page is open.
  }
}
