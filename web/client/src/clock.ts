/**
 * Time and randomness as a port, so that tests control both; and the retry back-off: a ceiling that doubles with each
 * consecutive failure, with jitter, so that many clients of one daemon do not return in step.
 */

export interface Clock {
  /** Monotonic time in milliseconds. */
  now(): number;
  /** Call `act` once after this many milliseconds; the returned function cancels it. */
  after(ms: number, act: () => void): () => void;
  /** A number from 0 up to 1. */
  chance(): number;
}

/** The maximum delay of a timer. */
const LONGEST_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => performance.now(),
  after: (ms, act) => {
    const timer = setTimeout(act, Math.min(ms, LONGEST_MS));
    return () => clearTimeout(timer);
  },
  chance: Math.random,
};

const DOUBLINGS = 32;

/** The back-off of consecutive failures. */
export class Backoff {
  #failures = 0;

  constructor(
    public firstMs: number,
    private readonly mostMs: number,
    private readonly clock: Clock,
  ) {}

  /** Return the wait after one more failure. */
  next(): number {
    const ceiling = Math.min(this.mostMs, this.firstMs * 2 ** Math.min(this.#failures, DOUBLINGS));
    this.#failures++;
    return ceiling * this.clock.chance();
  }

  /** Reset after a success. */
  reset(): void {
    this.#failures = 0;
  }
}
