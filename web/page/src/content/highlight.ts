/**
 * Syntax highlighting with classes. The highlighter and its languages are loaded when the first code needs them, so
 * nothing waits for them. Large code and code in an unknown language stay plain.
 */

import { computed, type ReadonlySignal, signal } from "@preact/signals";

type Languages = typeof import("./languages.js");

/** Maximum length in characters: more would block the page. */
const LARGEST = 60_000;

const loaded = signal<Languages | undefined>();
let loading: Promise<void> | undefined;

/** Whether code can be highlighted now. A component that reads it is rendered again once it can. */
export const isHighlighting: ReadonlySignal<boolean> = computed(() => loaded.value !== undefined);

function load(): void {
  // Without the highlighter code stays plain, which is no error.
  loading ??= import("./languages.js").then(
    (languages) => void (loaded.value = languages),
    () => undefined,
  );
}

/**
 * Return highlighted HTML of the code, with its text escaped; undefined while the highlighter is loading, and for code
 * that stays plain.
 */
export function highlighted(code: string, language: string): string | undefined {
  if (language === "" || code.length > LARGEST) return undefined;
  if (loaded.value === undefined) {
    load();
    return undefined;
  }
  return loaded.value.highlighted(code, language);
}

/** Return the same, split into lines. */
export function highlightedLines(code: string, language: string): readonly string[] | undefined {
  const html = highlighted(code, language);
  return html === undefined ? undefined : linesOf(html);
}

/** Split highlighted HTML into lines, each with all of its tags closed. */
export function linesOf(html: string): string[] {
  const open: string[] = [];
  return html.split("\n").map((line) => {
    const before = open.join("");
    for (const [tag] of line.matchAll(/<[^>]*>/g)) {
      if (tag.startsWith("</")) open.pop();
      else open.push(tag);
    }
    return before + line + "</span>".repeat(open.length);
  });
}

/** Return candidates for the language of a file, by its name. */
export function languageOfPath(path: string): string {
  const name = path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1).toLowerCase();
  return name.slice(name.lastIndexOf(".") + 1);
}

// -- elements -------------------------------------------------------------------------------------------------

const waiting = new Set<HTMLElement>();
let isScheduled = false;
/** Time budget in milliseconds that does not delay the page noticeably. */
const SLICE = 6;

/** Highlight the text of an element when the browser is idle. */
export function highlightLater(code: HTMLElement): void {
  if (!/\blanguage-/.test(code.className)) return;
  load();
  waiting.add(code);
  void loading?.then(schedule);
}

function schedule(): void {
  if (isScheduled || waiting.size === 0) return;
  isScheduled = true;
  whenIdle(work);
}

/** Run a function when the browser is idle. Return a function that cancels it. */
export function whenIdle(task: () => void): () => void {
  if (!("requestIdleCallback" in window)) {
    const timer = setTimeout(task);
    return () => clearTimeout(timer);
  }
  const handle = requestIdleCallback(task, { timeout: 500 });
  return () => cancelIdleCallback(handle);
}

function work(): void {
  isScheduled = false;
  const end = performance.now() + SLICE;
  for (const code of waiting) {
    waiting.delete(code);
    const language = /\blanguage-(\S+)/.exec(code.className)?.[1] ?? "";
    const html = code.isConnected ? highlighted(code.textContent ?? "", language) : undefined;
    if (html !== undefined) code.innerHTML = html;
    if (performance.now() > end) break;
  }
  schedule();
}
