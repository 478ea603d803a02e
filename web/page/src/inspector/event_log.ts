/**
 * The loaded part of a session's log. Events are numbered without gaps, so an event that is not loaded has its place:
 * it is read when it comes into view, a thousand at a time.
 */

import { signal } from "@preact/signals";
import type { AnyEvent, LogPart } from "@turnwire/client";

import { type Filter, type Row, isShown, rowOf, showsAll } from "./rows.js";

export const PAGE = 1000;

export type ReadLog = (after: number, limit: number) => Promise<LogPart>;

interface Page {
  /** Indexed by position in the page; undefined if not loaded. */
  readonly rows: (Row | undefined)[];
  count: number;
}

export class EventLog {
  /** Counts all changes. */
  readonly changed = signal(0);
  /** Counts the changes other than appended events. */
  inserts = 0;
  /** The oldest event in the log, and the newest. */
  first = 1;
  last = 0;
  /** Number of loaded events. */
  count = 0;
  /** Number of loaded events by kind. */
  readonly kinds = new Map<string, number>();
  /** The longest time between two loaded events of one turn. */
  longestMs = 0;
  readonly #read: ReadLog;
  readonly #pages = new Map<number, Page>();
  readonly #loading = new Map<number, Promise<void>>();
  #epoch: string | undefined;

  constructor(read: ReadLog) {
    this.#read = read;
  }

  /** Find the first and last event of the log, and load its newest part. */
  async begin(): Promise<void> {
    this.#take(await this.#read(0, 1));
    await this.load(this.last - PAGE / 2, this.last);
  }

  /** Add new events, including those that arrived before `begin` was answered. */
  hear(events: readonly AnyEvent[]): void {
    const before = this.count;
    for (const each of events) this.#put(each);
    if (this.count !== before) this.changed.value += 1;
  }

  at(id: number): Row | undefined {
    return this.#pages.get(pageOf(id))?.rows[(id - 1) % PAGE];
  }

  /** Return the time since the previous event, if both are loaded. */
  gap(id: number): number | undefined {
    const row = this.at(id);
    const before = this.at(id - 1);
    return row && before ? row.at - before.at : undefined;
  }

  /** Whether all of these events are loaded. */
  has(from: number, to: number): boolean {
    for (let page = pageOf(Math.max(from, this.first)); page <= pageOf(Math.min(to, this.last)); page++) {
      if (!this.#isWhole(page)) return false;
    }
    return true;
  }

  /** Load these events. Throws the daemon's error. */
  async load(from: number, to: number): Promise<void> {
    const least = pageOf(Math.max(from, this.first));
    // The newest first: that is where a reader starts.
    for (let page = pageOf(Math.min(to, this.last)); page >= least; page--) await this.#loadPage(page);
  }

  /** Return the first event at this time or later; the newest if there is none. Loads the events that it compares. */
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

  /** Return the loaded events, in order. */
  *rows(): Iterable<Row> {
    for (const page of [...this.#pages.keys()].sort((one, other) => one - other)) {
      for (const row of this.#pages.get(page)!.rows) if (row) yield row;
    }
  }

  /** Return how many loaded events come before this one. */
  countBefore(at: number): number {
    let count = 0;
    for (const { rows, count: all } of this.#pages.values()) {
      // Most pages are completely before or after it.
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
    // A page of large events arrives in several parts.
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
    // A reader that retries after each change must not retry forever for events that cannot be loaded.
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

  /** The log was deleted and created again, so none of the loaded events is in it. */
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

/** Binary search: return the first index for which the condition holds; it holds for all later ones. */
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

/** A fold over the loaded events: events appended at the end are folded incrementally. */
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

  /** Return the fold of all loaded events. */
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

/**
 * The events that pass a filter, by position in the list. Without a filter these are all, including those that are not
 * loaded.
 */
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

  /** Process the events since the last call. */
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

  /** Return the position of an event, or of the next one that is shown. */
  place(id: number): number {
    if (this.#isAll) return id - this.#log.first;
    return firstFrom(this.#ids.length, (index) => this.#ids[index]! >= id);
  }

  countBefore(at: number): number {
    if (this.#isAll) return this.#log.countBefore(at);
    return firstFrom(this.#ids.length, (index) => this.#log.at(this.#ids[index]!)!.at >= at);
  }
}
