/** Fuzzy matching: "nse" matches "New session". Pure. */

export interface Match {
  /** Higher is better. */
  readonly score: number;
  /** Indexes of the matched characters, in order. */
  readonly places: readonly number[];
}

const START = 8;
const NEXT = 5;
const HERE = 1;

/**
 * Match the letters of each word of `query` in order. Starts of words and consecutive letters score higher. Undefined
 * if a letter is missing.
 */
export function fuzzyMatch(query: string, text: string): Match | undefined {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const lower = text.toLowerCase();
  const places = new Set<number>();
  let score = 0;
  for (const word of words) {
    const found = wordMatch(word, text, lower);
    if (!found) return undefined;
    score += found.score;
    for (const place of found.places) places.add(place);
  }
  // Of two equal matches, the shorter text wins.
  return { score: score - text.length / 100, places: [...places].sort((a, b) => a - b) };
}


function wordMatch(word: string, text: string, lower: string): Match | undefined {
  const whole = wholeMatch(word, text, lower);
  if (whole) return whole;
  let best: Match | undefined;
  // Try every start: the first match is not always the best.
  for (let from = lower.indexOf(word[0]!); from >= 0; from = lower.indexOf(word[0]!, from + 1)) {
    const found = matchFrom(word, text, lower, from);
    if (!found) break;
    if (!best || found.score > best.score) best = found;
  }
  return best;
}

/** Find the whole word, preferably at the start of a word. */
function wholeMatch(word: string, text: string, lower: string): Match | undefined {
  let at = lower.indexOf(word);
  for (let next = at; next >= 0; next = lower.indexOf(word, next + 1)) {
    if (isStart(text, next)) {
      at = next;
      break;
    }
  }
  if (at < 0) return undefined;
  const places = Array.from(word, (_, index) => at + index).filter((place) => place < text.length);
  return { score: (isStart(text, at) ? START : HERE) + NEXT * word.length, places };
}

function matchFrom(word: string, text: string, lower: string, from: number): Match | undefined {
  const places: number[] = [];
  let score = 0;
  let at = from - 1;
  for (const letter of word) {
    const next = lower.indexOf(letter, at + 1);
    if (next < 0) return undefined;
    score += isStart(text, next) ? START : next === at + 1 ? NEXT : HERE;
    places.push(next);
    at = next;
  }
  return { score: score - (at - from) / 10, places };
}

function isStart(text: string, at: number): boolean {
  if (at === 0) return true;
  const before = text[at - 1]!;
  return /[^\p{L}\p{N}]/u.test(before) || (/\p{Ll}/u.test(before) && /\p{Lu}/u.test(text[at]!));
}
