/**
 * The shortest way from one list of lines to another, by Myers' greedy search: for each number of edits, how far each
 * diagonal gets. Only runs are remembered of a way, so long texts cost what their differences cost.
 */

/** Lines that both have, or that only one has, at one place. */
export interface Part {
  readonly kind: "same" | "added" | "removed";
  readonly lines: readonly string[];
}

interface Run {
  readonly kind: Part["kind"];
  readonly count: number;
  readonly before: Run | undefined;
}

interface Path {
  /** Lines of the old text that are behind it. */
  readonly at: number;
  readonly last: Run | undefined;
}

/** The parts in order; none if there are more than `most` edits. */
export function difference(old: readonly string[], next: readonly string[], most: number): Part[] | undefined {
  // A diagonal is how many lines more of the new text than of the old one are behind.
  const paths = new Map<number, Path>();
  for (let edits = 0; edits <= Math.min(most, old.length + next.length); edits++) {
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const path = edits === 0 ? { at: 0, last: undefined } : step(paths, diagonal, edits);
      const far = slide(path, diagonal, old, next);
      if (far.at >= old.length && far.at + diagonal >= next.length) return partsOf(far.last, old, next);
      paths.set(diagonal, far);
    }
  }
  return undefined;
}

/** One edit more: from the neighbour that is further. A removal goes first, as people write it. */
function step(paths: ReadonlyMap<number, Path>, diagonal: number, edits: number): Path {
  const [below, above] = [paths.get(diagonal - 1), paths.get(diagonal + 1)];
  const isRemoval = above !== undefined && (diagonal === -edits || below === undefined || above.at + 1 > below.at);
  return isRemoval
    ? { at: above.at + 1, last: longer(above.last, "removed", 1) }
    : { at: below!.at, last: longer(below!.last, "added", 1) };
}

function slide({ at, last }: Path, diagonal: number, old: readonly string[], next: readonly string[]): Path {
  let end = at;
  while (end < old.length && end + diagonal < next.length && old[end] === next[end + diagonal]) end++;
  return end === at ? { at, last } : { at: end, last: longer(last, "same", end - at) };
}

function longer(last: Run | undefined, kind: Run["kind"], count: number): Run {
  return last?.kind === kind ? { kind, count: last.count + count, before: last.before } : { kind, count, before: last };
}

function partsOf(last: Run | undefined, old: readonly string[], next: readonly string[]): Part[] {
  const runs: Run[] = [];
  for (let run = last; run !== undefined; run = run.before) runs.unshift(run);
  let [oldAt, nextAt] = [0, 0];
  return runs.map(({ kind, count }) => {
    const lines = kind === "removed" ? old.slice(oldAt, oldAt + count) : next.slice(nextAt, nextAt + count);
    if (kind !== "added") oldAt += count;
    if (kind !== "removed") nextAt += count;
    return { kind, lines };
  });
}
