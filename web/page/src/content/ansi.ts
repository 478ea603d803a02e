/**
 * What a command wrote, as lines of text with classes for its colours. A carriage return writes over its line, as in
 * a terminal; whatever else would steer one is left out. Colours of larger palettes become the nearest of sixteen,
 * which are readable in both themes.
 */

import Anser from "anser";

export interface Span {
  readonly text: string;
  /** Empty for plain text. */
  readonly classes: string;
}

/** Stands for "erase the rest of the line"; the output itself has no such character left. */
const ERASE = "\u007f";

/** Other escape sequences: of the system, of devices, of character sets, of the cursor. */
const OTHERS =
  /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[PX^_][^\x1b]*(?:\x1b\\|$)|\x1b[ #%()*+\-./][0-9A-Za-z]|\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[0-Z\\^-~]|\x1b(?:\[[0-?]*[ -/]*)?$/g;
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
  for (const entry of Anser.ansiToJson(steered, { json: true, use_classes: true, remove_empty: true })) {
    const classes = classesOf(entry);
    entry.content.split("\n").forEach((text, index) => {
      if (index > 0) lines.push([]);
      if (text !== "") lines.at(-1)!.push({ text, classes });
    });
  }
  if (lines.length > 1 && lines.at(-1)!.length === 0) lines.pop();
  return lines.map(overwritten);
}

/** The line as it looks after all that was written over it. */
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

/** The end of an output: the last lines, and how many are before them. */
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

/** Output as an agent of v2 tells it. What is no base64 is no output. */
export function bytesOf(base64: string): Uint8Array {
  try {
    return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

// -- colours --------------------------------------------------------------------------------------------------

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
/** The sixteen as most terminals have them, to find the nearest. */
const SIXTEEN: readonly (readonly [string, number, number, number])[] = [
  ["black", 0, 0, 0],
  ["red", 187, 0, 0],
  ["green", 0, 187, 0],
  ["yellow", 187, 187, 0],
  ["blue", 0, 0, 187],
  ["magenta", 187, 0, 187],
  ["cyan", 0, 187, 187],
  ["white", 200, 200, 200],
  ["bright-black", 100, 100, 100],
  ["bright-red", 255, 85, 85],
  ["bright-green", 85, 255, 85],
  ["bright-yellow", 255, 255, 85],
  ["bright-blue", 85, 85, 255],
  ["bright-magenta", 255, 85, 255],
  ["bright-cyan", 85, 255, 255],
  ["bright-white", 255, 255, 255],
];

function classesOf(entry: Anser.AnserJsonEntry): string {
  const foreground = colour(entry.fg, entry.fg_truecolor);
  const background = colour(entry.bg, entry.bg_truecolor);
  return [
    foreground && `ansi-${foreground}`,
    background && `ansi-on-${background}`,
    ...entry.decorations.map((each) => `ansi-${each}`),
  ]
    .filter(Boolean)
    .join(" ");
}

/** The name of a colour; empty for the one that text has anyway. */
function colour(name: string | null, exact: string | null): string {
  if (!name) return "";
  if (name === "ansi-truecolor") return nearest(...rgb((exact ?? "").split(",").map(Number)));
  const palette = /^ansi-palette-(\d+)$/.exec(name);
  return palette === null ? name.slice("ansi-".length) : paletteColour(Number(palette[1]));
}

function paletteColour(index: number): string {
  if (index < 16) return (index < 8 ? "" : "bright-") + NAMES[index % 8]!;
  if (index >= 232) return nearest(...rgb(Array<number>(3).fill(8 + (index - 232) * 10)));
  const level = (step: number): number => (step === 0 ? 0 : 55 + step * 40);
  const at = index - 16;
  return nearest(level(Math.floor(at / 36)), level(Math.floor(at / 6) % 6), level(at % 6));
}

function rgb(parts: readonly number[]): [number, number, number] {
  return [parts[0] || 0, parts[1] || 0, parts[2] || 0];
}

function nearest(red: number, green: number, blue: number): string {
  let [found, least] = ["white", Infinity];
  for (const [name, r, g, b] of SIXTEEN) {
    const distance = (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
    if (distance < least) [found, least] = [name, distance];
  }
  return found;
}
