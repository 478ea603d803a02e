/**
 * Time and chance, as a port: a test decides both. And how long to wait before the next try: a ceiling that doubles
 * with each failure in a row, spread by chance, so that many clients of one daemon do not come back in step.
 */

export interface Clock {
  /** Milliseconds that only grow. */
  now(): number;
  /** Call `act` once after this many milliseconds; the returned function cancels it. */
  after(ms: number, act: () => void): () => void;
  /** A number from 0 up to 1. */
  chance(): number;
}

/** More than this a timer does not take. */
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

/** The waits of one row of failures. */
export class Backoff {
  #failures = 0;

  constructor(
    public firstMs: number,
    private readonly mostMs: number,
    private readonly clock: Clock,
  ) {}

  /** The wait after one more failure. */
  next(): number {
    const ceiling = Math.min(this.mostMs, this.firstMs * 2 ** Math.min(this.#failures, DOUBLINGS));
    this.#failures++;
    return ceiling * this.clock.chance();
  }

  /** It worked. */
  reset(): void {
    this.#failures = 0;
  }
}
