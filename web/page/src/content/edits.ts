/** The fewest edits that turn one list of lines into another (Myers' greedy algorithm). */

export type Edit = "same" | "removed" | "added";

/** Maximum number of edits, since the cost grows with the square. Beyond it one list replaces the other. */
const MOST = 1500;

/** Return an edit for each line of both lists, in order; at each change the removed lines come first. */
export function edits(old: readonly string[], next: readonly string[]): Edit[] {
  const shared = Math.min(old.length, next.length);
  let start = 0;
  while (start < shared && old[start] === next[start]) start++;
  let end = 0;
  while (end < shared - start && old[old.length - 1 - end] === next[next.length - 1 - end]) end++;
  const before = old.slice(start, old.length - end);
  const after = next.slice(start, next.length - end);
  const inner = fewest(before, after) ?? [
    ...repeated("removed", before.length),
    ...repeated("added", after.length),
  ];
  return [...repeated("same", start), ...ordered(inner), ...repeated("same", end)];
}

function repeated(edit: Edit, count: number): Edit[] {
  return Array<Edit>(count).fill(edit);
}

function ordered(all: readonly Edit[]): Edit[] {
  const result: Edit[] = [];
  let added = 0;
  for (const each of all) {
    if (each === "same") for (; added > 0; added--) result.push("added");
    if (each === "added") added++;
    else result.push(each);
  }
  return [...result, ...repeated("added", added)];
}

/**
 * A path through the grid of both lists moves right for a removed line, down for an added one, and diagonally for an
 * equal one. For each number of edits, store the furthest point on each diagonal, to walk back from the end.
 */
function fewest(old: readonly string[], next: readonly string[]): Edit[] | undefined {
  const most = Math.min(old.length + next.length, MOST);
  const middle = most + 1;
  const reach = new Int32Array(2 * middle + 1);
  const kept: Int32Array[] = [];
  for (let count = 0; count <= most; count++) {
    kept.push(reach.slice(middle - count - 1, middle + count + 2));
    for (let diagonal = -count; diagonal <= count; diagonal += 2) {
      const at = middle + diagonal;
      const isDown = goesDown(diagonal, count, reach[at - 1]!, reach[at + 1]!);
      let x = isDown ? reach[at + 1]! : reach[at - 1]! + 1;
      while (x < old.length && x - diagonal < next.length && old[x] === next[x - diagonal]) x++;
      reach[at] = x;
      if (x >= old.length && x - diagonal >= next.length) return walkedBack(kept, old.length, next.length);
    }
  }
  return undefined;
}

function goesDown(diagonal: number, count: number, left: number, right: number): boolean {
  return diagonal === -count || (diagonal !== count && left < right);
}

function walkedBack(kept: readonly Int32Array[], oldLength: number, newLength: number): Edit[] {
  const reversed: Edit[] = [];
  let [x, y] = [oldLength, newLength];
  for (let count = kept.length - 1; count > 0; count--) {
    const reach = kept[count]!;
    const diagonal = x - y;
    const at = diagonal + count + 1;
    const isDown = goesDown(diagonal, count, reach[at - 1]!, reach[at + 1]!);
    const fromX = isDown ? reach[at + 1]! : reach[at - 1]!;
    for (const edited = isDown ? fromX : fromX + 1; x > edited; x--) reversed.push("same");
    reversed.push(isDown ? "added" : "removed");
    [x, y] = [fromX, fromX - (isDown ? diagonal + 1 : diagonal - 1)];
  }
  for (; x > 0; x--) reversed.push("same");
  return reversed.reverse();
}
