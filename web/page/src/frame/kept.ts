/** Choices that this browser keeps: a theme, what was chosen last. Never anything that the daemon knows. */

import { type Signal, signal } from "@preact/signals";

const PREFIX = "turnwire.";

/** One of some words, kept; the first of them until another is chosen. Other tabs follow. */
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

/** A text that was kept. A browser may forbid to keep anything; then nothing is. */
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
    // It holds as long as the page is open.
  }
}
