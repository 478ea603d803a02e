/**
 * The output of a command as lines of text with classes for its colours. A carriage return overwrites its line, as in a
 * terminal; other control sequences are dropped. Colours of larger palettes become the nearest of sixteen, which are
 * readable in both themes.
 */

export interface Span {
  readonly text: string;
  /** Empty for plain text. */
  readonly classes: string;
}

/** Stands for "erase the rest of the line". The output itself never contains this character. */
const ERASE = "\u007f";

/** Other escape sequences: system, devices, character sets, cursor, and a truncated one. */
const OTHERS = new RegExp(
  [
    /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)/,
    /\x1b[PX^_][^\x1b]*(?:\x1b\\|$)/,
    /\x1b[ #%()*+\-./][0-9A-Za-z]/,
    /\x1b\[[0-?]*[ -/]*[@-ln-~]/,
    /\x1b[0-Z\\^-~]/,
    /\x1b(?:\[[0-?]*[ -/]*)?$/,
  ]
    .map((each) => each.source)
    .join("|"),
  "g",
);
const CONTROLS = /[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x80-\x9f]/g;

export function terminalLines(output: string): Span[][] {
  const steered = output
    .replaceAll(ERASE, "")
    .replace(/\x1b\[0?K/g, ERASE)
    .replace(/\x1b\[2K/g, `\r${ERASE}`)
    .replace(OTHERS, "")
    .replace(CONTROLS, "")
    .replace(/\r+\n/g, "\n");
  const lines: Span[][] = [[]];
  const style = new Style();
  // Every other part is an escape sequence with the style of the next part.
  steered.split(/\x1b\[([0-?]*)[ -/]*m/).forEach((part, index) => {
    if (index % 2 === 1) {
      style.take(part);
      return;
    }
    part.split("\n").forEach((text, line) => {
      if (line > 0) lines.push([]);
      if (text !== "") lines.at(-1)!.push({ text, classes: style.classes });
    });
  });
  if (lines.length > 1 && lines.at(-1)!.length === 0) lines.pop();
  return lines.map(overwritten);
}

/** Return the line after all overwriting. */
function overwritten(spans: Span[]): Span[] {
  if (!spans.some(({ text }) => /[\r\b\x7f]/.test(text))) return spans;
  let cells: Span[] = [];
  let at = 0;
  for (const { text, classes } of spans) {
    for (const letter of text) {
      if (letter === "\r") at = 0;
      else if (letter === "\b") at = Math.max(0, at - 1);
      else if (letter === ERASE) cells = cells.slice(0, at);
      else cells[at++] = { text: letter, classes };
    }
  }
  const joined: { text: string; classes: string }[] = [];
  for (const cell of cells) {
    const last = joined.at(-1);
    if (last?.classes === cell.classes) last.text += cell.text;
    else joined.push({ ...cell });
  }
  return joined;
}

/** Return the last lines of an output, and the number of lines before them. */
export function lastLines(output: string, count: number): { readonly text: string; readonly before: number } {
  let start = output.endsWith("\n") ? output.length - 1 : output.length;
  for (let found = 0; found < count && start > 0; found++) start = output.lastIndexOf("\n", start - 1);
  if (start <= 0) return { text: output, before: 0 };
  return { text: output.slice(start + 1), before: lineCount(output.slice(0, start + 1)) };
}

export function lineCount(output: string): number {
  let count = output === "" || output.endsWith("\n") ? 0 : 1;
  for (let at = output.indexOf("\n"); at >= 0; at = output.indexOf("\n", at + 1)) count++;
  return count;
}

/** Return the bytes of a v2 agent's output, which is base64; empty if it is not. */
export function bytesOf(base64: string): Uint8Array {
  try {
    return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

// -- looks ----------------------------------------------------------------------------------------------------

/** Decorations by the code that starts them, each with the code that ends it. */
const DECORATIONS: Readonly<Record<number, readonly [string, number]>> = {
  1: ["bold", 22],
  2: ["dim", 22],
  3: ["italic", 23],
  4: ["underline", 24],
  7: ["reverse", 27],
  8: ["hidden", 28],
  9: ["strikethrough", 29],
};

/** The style after the sequences so far. */
class Style {
  classes = "";
  #foreground = "";
  #background = "";
  #decorations: readonly number[] = [];

  take(sequence: string): void {
    const codes = sequence.split(/[;:]/).map(Number);
    while (codes.length > 0) this.#takeCode(codes.shift() || 0, codes);
    const names = this.#decorations.map((each) => DECORATIONS[each]![0]);
    const on = this.#background && `on-${this.#background}`;
    this.classes = [this.#foreground, on, ...names]
      .filter(Boolean)
      .map((each) => `ansi-${each}`)
      .join(" ");
  }

  #takeCode(code: number, rest: number[]): void {
    if (code === 0) {
      this.#foreground = this.#background = "";
      this.#decorations = [];
    } else if (code in DECORATIONS) {
      this.#decorations = [...this.#decorations.filter((each) => each !== code), code];
    } else if (code >= 22 && code <= 29) {
      this.#decorations = this.#decorations.filter((each) => DECORATIONS[each]![1] !== code);
    } else if (code === 38 || code === 39 || isWithin(code, 30, 90)) {
      this.#foreground = colour(code, rest);
    } else if (code === 48 || code === 49 || isWithin(code, 40, 100)) {
      this.#background = colour(code - 10, rest);
    }
  }
}

/** Return one of the eight colours from `plain`, or their bright ones from `bright`. */
function isWithin(code: number, plain: number, bright: number): boolean {
  return (code >= plain && code < plain + 8) || (code >= bright && code < bright + 8);
}

/** Return the name of a colour by its foreground code; empty for the default. */
function colour(code: number, rest: number[]): string {
  if (code === 39) return "";
  if (code !== 38) return code < 90 ? NAMES[code - 30]! : `bright-${NAMES[code - 90]!}`;
  const kind = rest.shift();
  if (kind === 5) return paletteColour(rest.shift() || 0);
  return kind === 2 ? nearest(rest.shift() || 0, rest.shift() || 0, rest.shift() || 0) : "";
}

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
/** The sixteen colours of most terminals, to find the nearest. */
const SIXTEEN: readonly (readonly [number, number, number])[] = [
  [0, 0, 0],
  [187, 0, 0],
  [0, 187, 0],
  [187, 187, 0],
  [0, 0, 187],
  [187, 0, 187],
  [0, 187, 187],
  [200, 200, 200],
  [100, 100, 100],
  [255, 85, 85],
  [85, 255, 85],
  [255, 255, 85],
  [85, 85, 255],
  [255, 85, 255],
  [85, 255, 255],
  [255, 255, 255],
];

function paletteColour(index: number): string {
  if (index < 16) return (index < 8 ? "" : "bright-") + NAMES[index % 8]!;
  const grey = 8 + (index - 232) * 10;
  if (index >= 232) return nearest(grey, grey, grey);
  const level = (step: number): number => (step === 0 ? 0 : 55 + step * 40);
  const at = index - 16;
  return nearest(level(Math.floor(at / 36)), level(Math.floor(at / 6) % 6), level(at % 6));
}

function nearest(red: number, green: number, blue: number): string {
  let [found, least] = [7, Infinity];
  SIXTEEN.forEach(([r, g, b], index) => {
    const distance = (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
    if (distance < least) [found, least] = [index, distance];
  });
  return paletteColour(found);
}
