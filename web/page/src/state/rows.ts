/**
 * A conversation as rows in blocks: its items, and after each turn its end. Blocks are bounded and stay in place, so
 * that a chunk changes one row, and an older page changes none.
 */

import { type ReadonlySignal, type Signal, signal } from "@preact/signals";

export type Row<Item> =
  | { readonly kind: "item"; readonly key: string; readonly index: number; readonly item: ReadonlySignal<Item> }
  | { readonly kind: "end"; readonly key: string; readonly promptId: string };

export interface RowBlock<Item> {
  readonly key: number;
  readonly rows: ReadonlySignal<readonly Row<Item>[]>;
}

/** A block that can get more rows: the last one. */
interface OpenBlock<Item> extends RowBlock<Item> {
  readonly rows: Signal<readonly Row<Item>[]>;
}

/** The members of an item that rows need. */
interface Placed {
  readonly promptId?: string;
}

export const BLOCK_ROWS = 24;

export class Rows<Item extends Placed> {
  readonly #blocks = signal<readonly RowBlock<Item>[]>([]);
  readonly blocks: ReadonlySignal<readonly RowBlock<Item>[]> = this.#blocks;
  readonly #items = new Map<number, Signal<Item>>();
  /** Turns with at least one item. */
  readonly #said = new Set<string>();
  /** Turns whose end has a row. */
  readonly #ended = new Set<string>();
  #last: OpenBlock<Item> | undefined;
  #key = 0;

  /** Start again with the first page, or one that is read again. `hasEnded`: whether the end of a turn is known. */
  begin(first: number, items: readonly Item[], hasEnded: (promptId: string) => boolean): void {
    this.#items.clear();
    this.#said.clear();
    this.#ended.clear();
    this.#last = undefined;
    const made = this.#made(this.#rowsOf(first, items, hasEnded));
    this.#last = made.at(-1);
    this.#blocks.value = made;
  }

  /** Add an older page, which ends where the rows begin. */
  prepend(first: number, items: readonly Item[], hasEnded: (promptId: string) => boolean): void {
    this.#blocks.value = [...this.#made(this.#rowsOf(first, items, hasEnded)), ...this.#blocks.value];
  }

  /** Add or update an item. */
  set(index: number, item: Item): void {
    const known = this.#items.get(index);
    if (known) known.value = item;
    else this.#append(this.#itemRow(index, item));
  }

  /** Add the end of a turn after its last item. A prompt that was removed from the queue has no items. */
  end(promptId: string): void {
    if (this.#ended.has(promptId) || !this.#said.has(promptId)) return;
    this.#ended.add(promptId);
    this.#append({ kind: "end", key: `end ${promptId}`, promptId });
  }

  #append(row: Row<Item>): void {
    const last = this.#last;
    if (last && last.rows.peek().length < BLOCK_ROWS) {
      last.rows.value = [...last.rows.peek(), row];
      return;
    }
    const block: OpenBlock<Item> = { key: this.#key++, rows: signal<readonly Row<Item>[]>([row]) };
    this.#last = block;
    this.#blocks.value = [...this.#blocks.value, block];
  }

  #itemRow(index: number, item: Item): Row<Item> {
    const own = signal(item);
    this.#items.set(index, own);
    if (item.promptId !== undefined) this.#said.add(item.promptId);
    return { kind: "item", key: `item ${index}`, index, item: own };
  }

  #rowsOf(first: number, items: readonly Item[], hasEnded: (promptId: string) => boolean): Row<Item>[] {
    /** The place of the last item of each turn. A turn that continues in a newer page has its end there. */
    const lastOf = new Map<string, number>();
    items.forEach((each, at) => {
      if (each.promptId !== undefined) lastOf.set(each.promptId, at);
    });
    const rows: Row<Item>[] = [];
    items.forEach((each, at) => {
      rows.push(this.#itemRow(first + at, each));
      const { promptId } = each;
      if (promptId === undefined || lastOf.get(promptId) !== at) return;
      if (this.#ended.has(promptId) || !hasEnded(promptId)) return;
      this.#ended.add(promptId);
      rows.push({ kind: "end", key: `end ${promptId}`, promptId });
    });
    return rows;
  }

  #made(rows: readonly Row<Item>[]): OpenBlock<Item>[] {
    const blocks: OpenBlock<Item>[] = [];
    for (let at = 0; at < rows.length; at += BLOCK_ROWS) {
      blocks.push({ key: this.#key++, rows: signal(rows.slice(at, at + BLOCK_ROWS)) });
    }
    return blocks;
  }
}
