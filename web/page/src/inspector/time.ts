/** Times in words, and the scales of drawings. Independent of events. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Steps between ticks. */
const STEPS = [
  ...[1, 10, 100].flatMap((each) => [each, 2 * each, 5 * each]),
  ...[SECOND, MINUTE, HOUR].flatMap((each) => [1, 2, 5, 10, 15, 30].map((count) => count * each)),
];

export interface Span {
  readonly from: number;
  readonly to: number;
}

/** `840 ms`, `1.24 s`, `2 min 5 s`, `1 h 2 min`, `3 d 4 h`. */
export function durationOf(ms: number): string {
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  // Round first, so that 60 s never appear.
  if (ms < 9_995) return `${(ms / SECOND).toFixed(2)} s`;
  if (ms < 59_950) return `${(ms / SECOND).toFixed(1)} s`;
  const seconds = Math.round(ms / SECOND);
  if (seconds < 3600) return pair(seconds, 60, "min", "s");
  const minutes = Math.round(ms / MINUTE);
  return minutes < 24 * 60 ? pair(minutes, 60, "h", "min") : pair(Math.round(ms / HOUR), 24, "d", "h");
}

function pair(count: number, size: number, large: string, small: string): string {
  const rest = count % size;
  return `${Math.floor(count / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** Return the local time of day, to the millisecond. */
export function clockOf(at: number): string {
  return momentOf(at).slice(11);
}

/** Return day and time, for times on other days. */
export function momentOf(at: number): string {
  const here = at - new Date(at).getTimezoneOffset() * MINUTE;
  return new Date(here).toISOString().slice(0, 23).replace("T", " ");
}

/** Return round ticks on an axis of this length from 0: as many as fit, starting with 0. */
export function ticksOf(lengthMs: number, most: number): number[] {
  const least = lengthMs / Math.max(most, 1);
  const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / DAY) * DAY;
  return Array.from({ length: Math.floor(lengthMs / step) + 1 }, (_, index) => index * step);
}

/** Merge ordered spans that touch. */
export function joined(spans: readonly Span[]): Span[] {
  const found: { from: number; to: number }[] = [];
  for (const { from, to } of [...spans].sort((one, other) => one.from - other.from)) {
    const last = found.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, to);
    else found.push({ from, to });
  }
  return found;
}

/** Return the parts of a span outside the others, which are ordered and do not touch. */
export function without({ from, to }: Span, others: readonly Span[]): Span[] {
  const found: Span[] = [];
  let here = from;
  for (const each of others) {
    if (each.from > here) found.push({ from: here, to: Math.min(each.from, to) });
    here = Math.max(here, each.to);
    if (here >= to) break;
  }
  if (here < to) found.push({ from: here, to });
  return found.filter((each) => each.from < each.to);
}

/** Return the total length of spans; overlapping parts count once. */
export function lengthOf(spans: readonly Span[]): number {
  return joined(spans).reduce((sum, each) => sum + each.to - each.from, 0);
}

/**
 * A time axis from 0 to 1: to scale, except that long idle times between turns are shortened. A session may be used for
 * minutes on each of several days.
 */
export interface Scale extends Span {
  place(at: number): number;
  at(place: number): number;
  /** Positions of the cuts. */
  readonly cuts: readonly number[];
}

/** All cuts together take this share of the rest. */
const CUT_SHARE = 0.25;

/** Return the scale between two times, with the spans in which work was done. */
export function scaleOf(from: number, to: number, busy: readonly Span[]): Scale {
  const whole = { from, to: Math.max(to, from + 1) };
  const inside = joined(busy).filter((each) => each.to > from && each.from < to);
  const idle = inside.length ? without(whole, inside) : [];
  const busyMs = Math.max(whole.to - whole.from - lengthOf(idle), 1);
  const most = (busyMs * CUT_SHARE) / Math.max(idle.length, 1);
  const pieces: { at: number; place: number; ms: number; length: number }[] = [];
  const cuts: number[] = [];
  let place = 0;
  const add = (each: Span, length: number) => {
    pieces.push({ at: each.from, place, ms: each.to - each.from, length });
    place += length;
  };
  let here = whole.from;
  for (const each of idle.filter((one) => one.to - one.from > most)) {
    if (each.from > here) add({ from: here, to: each.from }, each.from - here);
    cuts.push(place + most / 2);
    add(each, most);
    here = each.to;
  }
  if (here < whole.to) add({ from: here, to: whole.to }, whole.to - here);
  const total = place || 1;
  const clamp = (value: number) => Math.min(Math.max(value, 0), 1);
  return {
    ...whole,
    cuts: cuts.map((each) => each / total),
    place(at) {
      const piece = pieces.findLast((each) => each.at <= at) ?? pieces[0]!;
      return clamp((piece.place + Math.min((at - piece.at) / piece.ms, 1) * piece.length) / total);
    },
    at(wanted) {
      const sought = clamp(wanted) * total;
      const piece = pieces.findLast((each) => each.place <= sought) ?? pieces[0]!;
      return piece.at + Math.min((sought - piece.place) / piece.length, 1) * piece.ms;
    },
  };
}
