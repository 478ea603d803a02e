/**
 * A conversation as rows in blocks: its items, and behind each turn how it ended. Blocks are of bounded size and never
 * change their places, so that a word that is added changes one row, and an older page changes none.
 */

import { type ReadonlySignal, type Signal, signal } from "@preact/signals";

export type Row<Item> =
  | { readonly kind: "item"; readonly key: string; readonly index: number; readonly item: ReadonlySignal<Item> }
  | { readonly kind: "end"; readonly key: string; readonly promptId: string };

export interface RowBlock<Item> {
  readonly key: number;
  readonly rows: ReadonlySignal<readonly Row<Item>[]>;
}

/** A block that can get more rows: the last one does. */
interface OpenBlock<Item> extends RowBlock<Item> {
  readonly rows: Signal<readonly Row<Item>[]>;
}

/** What rows need to know of an item. */
interface Placed {
  readonly promptId?: string;
}

export const BLOCK_ROWS = 24;

export class Rows<Item extends Placed> {
  readonly #blocks = signal<readonly RowBlock<Item>[]>([]);
  readonly blocks: ReadonlySignal<readonly RowBlock<Item>[]> = this.#blocks;
  readonly #items = new Map<number, Signal<Item>>();
  /** Turns of which something is shown. */
  readonly #said = new Set<string>();
  /** Turns whose end has a row. */
  readonly #ended = new Set<string>();
  #last: OpenBlock<Item> | undefined;
  #key = 0;

  /** The first page, or one that is read anew: all rows begin again. `hasEnded` tells of which turns the end is known. */
  begin(first: number, items: readonly Item[], hasEnded: (promptId: string) => boolean): void {
    this.#items.clear();
    this.#said.clear();
    this.#ended.clear();
    this.#last = undefined;
    const made = this.#made(this.#rowsOf(first, items, hasEnded));
    this.#last = made.at(-1);
    this.#blocks.value = made;
  }

  /** An older page, which ends where the rows begin. */
  prepend(first: number, items: readonly Item[], hasEnded: (promptId: string) => boolean): void {
    this.#blocks.value = [...this.#made(this.#rowsOf(first, items, hasEnded)), ...this.#blocks.value];
  }

  /** An item is new, or another than it was. */
  set(index: number, item: Item): void {
    const known = this.#items.get(index);
    if (known) known.value = item;
    else this.#append(this.#itemRow(index, item));
  }

  /** A turn has ended: behind all that was said in it. A prompt that left the queue was never said. */
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
    /** By turn, the place of its last item. A turn that goes on in a newer page has its end there. */
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
