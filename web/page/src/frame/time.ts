/** Relative times in few characters, updated by one timer for all of them. */

import { type ReadonlySignal, signal } from "@preact/signals";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

const current = signal(Date.now());
/** The current time, to the minute. For display only. */
export const now: ReadonlySignal<number> = current;

/** Start updating `now`. A page that was asleep is updated when it becomes visible. */
export function startClock(): void {
  const tell = () => {
    if (document.visibilityState === "visible") current.value = Date.now();
  };
  setInterval(tell, MINUTE_MS);
  document.addEventListener("visibilitychange", tell);
}

/** Return how long ago something was: "now", "5 min", "3 h", "2 d", "12 Oct", "12 Oct 2025". */
export function ago(thenMs: number, nowMs: number): string {
  const passed = nowMs - thenMs;
  if (passed < MINUTE_MS) return "now";
  if (passed < HOUR_MS) return `${Math.floor(passed / MINUTE_MS)} min`;
  if (passed < DAY_MS) return `${Math.floor(passed / HOUR_MS)} h`;
  if (passed < 7 * DAY_MS) return `${Math.floor(passed / DAY_MS)} d`;
  return dayOf(thenMs, nowMs);
}

/** Return "12 Oct", with the year if it is not the current one. */
export function dayOf(thenMs: number, nowMs: number): string {
  const then = new Date(thenMs);
  const isThisYear = then.getFullYear() === new Date(nowMs).getFullYear();
  return then.toLocaleDateString("en-GB", {
    day: "numeric",
    month: "short",
    ...(isThisYear ? {} : { year: "numeric" }),
  });
}

/** Return the full date and time. */
export function moment(thenMs: number): string {
  return new Date(thenMs).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
