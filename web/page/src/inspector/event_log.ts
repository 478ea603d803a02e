/**
 * The log of one session as far as it is here. Events are numbered without gaps, so what is not loaded has its place
 * all the same: it is read when it is looked at, a thousand at a time.
 */

import { signal } from "@preact/signals";
import type { AnyEvent, LogPart } from "@turnwire/client";

import { type Filter, type Row, isShown, rowOf, showsAll } from "./rows.js";

export const PAGE = 1000;

export type ReadLog = (after: number, limit: number) => Promise<LogPart>;

interface Page {
  /** By the place in the page; what is not there yet is undefined. */
  readonly rows: (Row | undefined)[];
  count: number;
}

export class EventLog {
  /** Counts every change of what is here. */
  readonly changed = signal(0);
  /** Counts those that are not at the end alone. */
  inserts = 0;
  /** The oldest that is kept, and the newest that there is. */
  first = 1;
  last = 0;
  /** How many are here. */
  count = 0;
  /** How many there are of each kind, of those that are here. */
  readonly kinds = new Map<string, number>();
  /** The longest time between two events of one turn, of those that are here. */
  longestMs = 0;
  readonly #read: ReadLog;
  readonly #pages = new Map<number, Page>();
  readonly #loading = new Map<number, Promise<void>>();
  #epoch: string | undefined;

  constructor(read: ReadLog) {
    this.#read = read;
  }

  /** Learn where the log begins and ends, and load its newest part. */
  async begin(): Promise<void> {
    this.#take(await this.#read(0, 1));
    await this.load(this.last - PAGE / 2, this.last);
  }

  /** News. What was heard before `begin` has answered counts too. */
  hear(events: readonly AnyEvent[]): void {
    const before = this.count;
    for (const each of events) this.#put(each);
    if (this.count !== before) this.changed.value += 1;
  }

  at(id: number): Row | undefined {
    return this.#pages.get(pageOf(id))?.rows[(id - 1) % PAGE];
  }

  /** How long after the event before it came, if both are here. */
  gap(id: number): number | undefined {
    const row = this.at(id);
    const before = this.at(id - 1);
    return row && before ? row.at - before.at : undefined;
  }

  /** All of these are here. */
  has(from: number, to: number): boolean {
    for (let page = pageOf(Math.max(from, this.first)); page <= pageOf(Math.min(to, this.last)); page++) {
      if (!this.#isWhole(page)) return false;
    }
    return true;
  }

  /** Have these here. Throws what the daemon refused. */
  async load(from: number, to: number): Promise<void> {
    const least = pageOf(Math.max(from, this.first));
    // The newest first: that is where a reader begins.
    for (let page = pageOf(Math.min(to, this.last)); page >= least; page--) await this.#loadPage(page);
  }

  /** The first event at this time or later; the newest if there is none. Loads what it has to look at. */
  async find(at: number): Promise<number> {
    let low = this.first;
    let high = this.last;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (!this.at(middle)) await this.#loadPage(pageOf(middle));
      const row = this.at(middle);
      if (row && row.at >= at) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** Those that are here, in order. */
  *rows(): Iterable<Row> {
    for (const page of [...this.#pages.keys()].sort((one, other) => one - other)) {
      for (const row of this.#pages.get(page)!.rows) if (row) yield row;
    }
  }

  /** How many of those that are here came before. */
  countBefore(at: number): number {
    let count = 0;
    for (const { rows, count: all } of this.#pages.values()) {
      // Most pages are wholly before or behind it.
      if (rows.at(-1)!.at < at) count += all;
      else if (!rows[0] || rows[0].at < at) {
        const here = rows.length === all ? rows : rows.filter((each) => each !== undefined);
        count += firstFrom(here.length, (index) => here[index]!.at >= at);
      }
    }
    return count;
  }

  async #loadPage(page: number): Promise<void> {
    if (this.#isWhole(page)) return;
    const running = this.#loading.get(page) ?? this.#readPage(page).finally(() => this.#loading.delete(page));
    this.#loading.set(page, running);
    await running;
  }

  async #readPage(page: number): Promise<void> {
    const end = (page + 1) * PAGE;
    // A page of large events comes in several parts.
    for (let after = page * PAGE; after < Math.min(end, this.last); ) {
      const part = await this.#read(after, end - after);
      this.#take(part);
      if (part.nextAfter <= after) return;
      after = part.nextAfter;
    }
  }

  #take(part: LogPart): void {
    const known = () => [this.#epoch, this.first, this.last, this.count].join();
    const before = known();
    if (this.#epoch !== undefined && this.#epoch !== part.eventEpoch) this.#forget();
    this.#epoch = part.eventEpoch;
    for (const each of part.events) {
      if (each.type === "state_resync_required") this.first = Number(each.data["earliestAvailableId"] ?? 1);
      else this.#put(each);
    }
    this.last = Math.max(this.last, part.lastEventId);
    // Whoever looks again because something changed must not look for ever at what is not to be had.
    if (before === known()) return;
    this.inserts += 1;
    this.changed.value += 1;
  }

  #put(event: AnyEvent): void {
    const row = rowOf(event);
    if (!row || row.id < this.first) return;
    let page = this.#pages.get(pageOf(row.id));
    if (!page) this.#pages.set(pageOf(row.id), (page = { rows: [], count: 0 }));
    const place = (row.id - 1) % PAGE;
    if (page.rows[place]) return;
    while (page.rows.length < place) page.rows.push(undefined);
    page.rows[place] = row;
    page.count += 1;
    this.count += 1;
    this.kinds.set(row.kind, (this.kinds.get(row.kind) ?? 0) + 1);
    if (row.id !== this.last + 1) this.inserts += 1;
    this.last = Math.max(this.last, row.id);
    this.#measure(this.at(row.id - 1), row);
    this.#measure(row, this.at(row.id + 1));
  }

  #measure(before: Row | undefined, row: Row | undefined): void {
    if (!before || !row || row.turn === undefined || before.turn !== row.turn) return;
    this.longestMs = Math.max(this.longestMs, row.at - before.at);
  }

  #isWhole(page: number): boolean {
    const from = Math.max(page * PAGE + 1, this.first);
    const to = Math.min((page + 1) * PAGE, this.last);
    return from > to || this.#pages.get(page)?.count === to - from + 1;
  }

  /** The log was deleted and made again: nothing of what is here is in it. */
  #forget(): void {
    this.#pages.clear();
    this.kinds.clear();
    this.first = 1;
    this.last = this.count = this.longestMs = 0;
  }
}

function pageOf(id: number): number {
  return Math.floor((id - 1) / PAGE);
}

/** The first of so many for which it holds; it holds for all behind it. */
export function firstFrom(length: number, holds: (index: number) => boolean): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** A fold over what is here of a log: what came at its end costs no second look at the rest. */
export class LogFold<Fold> {
  readonly #log: EventLog;
  readonly #begin: () => Fold;
  readonly #take: (fold: Fold, row: Row) => void;
  #fold: Fold;
  #seen = 0;
  #inserts = -1;

  constructor(log: EventLog, begin: () => Fold, take: (fold: Fold, row: Row) => void) {
    this.#log = log;
    this.#begin = begin;
    this.#take = take;
    this.#fold = begin();
  }

  /** The fold of all that is here now. */
  get now(): Fold {
    const log = this.#log;
    if (this.#inserts !== log.inserts) {
      this.#inserts = log.inserts;
      this.#fold = this.#begin();
      for (const row of log.rows()) this.#take(this.#fold, row);
    } else {
      for (let id = this.#seen + 1; id <= log.last; id++) this.#take(this.#fold, log.at(id)!);
    }
    this.#seen = log.last;
    return this.#fold;
  }
}

/** The events that a filter leaves, by their place in the list. Without a filter these are all, also those not here. */
export class Shown {
  readonly filter: Filter;
  readonly #log: EventLog;
  readonly #isAll: boolean;
  readonly #left: LogFold<number[]>;
  #ids: readonly number[] = [];

  constructor(log: EventLog, filter: Filter) {
    this.#log = log;
    this.filter = filter;
    this.#isAll = showsAll(filter);
    this.#left = new LogFold<number[]>(log, () => [], (ids, row) => {
      if (isShown(row, log.gap(row.id), filter)) ids.push(row.id);
    });
  }

  /** Look at what has come since. */
  refresh(): this {
    if (!this.#isAll) this.#ids = this.#left.now;
    return this;
  }

  get length(): number {
    return this.#isAll ? Math.max(this.#log.last - this.#log.first + 1, 0) : this.#ids.length;
  }

  id(index: number): number | undefined {
    if (index < 0 || index >= this.length) return undefined;
    return this.#isAll ? this.#log.first + index : this.#ids[index];
  }

  /** The place of an event, or of the next that is shown. */
  place(id: number): number {
    if (this.#isAll) return id - this.#log.first;
    return firstFrom(this.#ids.length, (index) => this.#ids[index]! >= id);
  }

  countBefore(at: number): number {
    if (this.#isAll) return this.#log.countBefore(at);
    return firstFrom(this.#ids.length, (index) => this.#log.at(this.#ids[index]!)!.at >= at);
  }
}
