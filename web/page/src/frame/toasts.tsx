/** Short messages that disappear: errors of the daemon, and results of actions that are not visible. */

import { signal } from "@preact/signals";
import { TurnwireError } from "@turnwire/client";

import { Icon } from "./icon.js";

interface Toast {
  readonly text: string;
  readonly tone: "info" | "bad";
}

const SHOWN_MS = { info: 4_000, bad: 12_000 };
const MOST = 4;
const toasts = signal<readonly Toast[]>([]);

/** Show a success. */
export function tell(text: string): void {
  show({ text, tone: "info" });
}

/** Show an error, in the daemon's words if there are any. */
export function tellError(error: unknown): void {
  show({ text: wordsOf(error), tone: "bad" });
  if (!(error instanceof TurnwireError)) console.error(error);
}

/** Return the text of an error. */
export function wordsOf(error: unknown): string {
  if (!(error instanceof Error) || !error.message) return "Something went wrong, and no reason was given.";
  return sentence(error.message);
}

/** Messages of the daemon start in lower case, because they may follow a colon. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function show(toast: Toast): void {
  toasts.value = [...toasts.peek().filter((each) => each.text !== toast.text), toast].slice(-MOST);
  setTimeout(() => drop(toast), SHOWN_MS[toast.tone]);
}

function drop(toast: Toast): void {
  toasts.value = toasts.peek().filter((each) => each !== toast);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div class={`toast ${toast.tone}`} key={toast.text}>
          <span>{toast.text}</span>
          <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => drop(toast)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
