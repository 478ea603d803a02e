/** The commands of the palette. Each part of the page offers its own while it is shown. */

import { type ReadonlySignal, computed, signal } from "@preact/signals";

export interface Command {
  /** For example "Rename session". */
  readonly words: string;
  /** For example "Session" or "Theme". */
  readonly group: string;
  /** Its keys in the notation of `shortcuts.ts`. */
  readonly keys?: string;
  run(): void;
}

const offered = signal<readonly (readonly Command[])[]>([]);

/** All commands. The newest offers come first: they belong to the part that was opened last. */
export const commands: ReadonlySignal<readonly Command[]> = computed(() => [...offered.value].reverse().flat());

/** Offer commands. Return a function that withdraws them. */
export function offer(some: readonly Command[]): () => void {
  offered.value = [...offered.peek(), some];
  return () => {
    offered.value = offered.peek().filter((each) => each !== some);
  };
}
