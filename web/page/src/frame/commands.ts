/** What can be done now, as the palette lists it. Each part of the page offers its own while it is shown. */

import { type ReadonlySignal, computed, signal } from "@preact/signals";

export interface Command {
  /** What it does: "Rename session". */
  readonly words: string;
  /** What it is of: "Session", "Theme". */
  readonly group: string;
  /** Its keys as `shortcuts.ts` writes them. */
  readonly keys?: string;
  run(): void;
}

const offered = signal<readonly (readonly Command[])[]>([]);

/** All that is offered, newest offers first: they are of what was opened last. */
export const commands: ReadonlySignal<readonly Command[]> = computed(() => [...offered.value].reverse().flat());

/** Offer commands. Gives how to withdraw them. */
export function offer(some: readonly Command[]): () => void {
  offered.value = [...offered.peek(), some];
  return () => {
    offered.value = offered.peek().filter((each) => each !== some);
  };
}
