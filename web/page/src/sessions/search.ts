/** Searching sessions by title, folder and what was said in them, at the daemon. */

import { type ReadonlySignal, type Signal, effect, signal } from "@preact/signals";
import type { SessionEntry, SessionPage } from "@turnwire/client";

import { tellError } from "../frame/toasts.js";
import type { Daemon } from "../state/daemon.js";
import type { FoundWords } from "./groups.js";

/** A session that was found, with the words that were. */
export type FoundSession = SessionEntry & { readonly matches?: readonly FoundWords[] };

/** Typing is over when no key has come for so long. */
const TYPING_MS = 200;
const PAGE = 50;

export class SessionSearch {
  /** What is looked for; empty if nothing is. */
  readonly words: Signal<string> = signal("");
  readonly #found = signal<readonly FoundSession[] | undefined>(undefined);
  /** What was found; none as long as nothing was looked for. */
  readonly found: ReadonlySignal<readonly FoundSession[] | undefined> = this.#found;
  readonly #isBusy = signal(false);
  readonly isBusy: ReadonlySignal<boolean> = this.#isBusy;
  readonly #next = signal<string | undefined>(undefined);
  /** There is more than was shown. */
  readonly next: ReadonlySignal<string | undefined> = this.#next;
  /** Counts searches: the answer to an older one is not shown. */
  #count = 0;

  constructor(private readonly daemon: Daemon) {
    effect(() => {
      const words = this.words.value.trim();
      const count = ++this.#count;
      if (!words) {
        this.#found.value = undefined;
        this.#isBusy.value = false;
        return undefined;
      }
      this.#isBusy.value = true;
      const timer = setTimeout(() => void this.#look(words, count, undefined), TYPING_MS);
      return () => clearTimeout(timer);
    });
  }

  more(): void {
    const cursor = this.#next.peek();
    if (cursor !== undefined) void this.#look(this.words.peek().trim(), this.#count, cursor);
  }

  async #look(search: string, count: number, cursor: string | undefined): Promise<void> {
    this.#isBusy.value = true;
    try {
      const query = new URLSearchParams({ search, archived: "all", size: String(PAGE), ...(cursor ? { cursor } : {}) });
      const page = await this.daemon.client.request<SessionPage>("GET", `/session?${query}`);
      if (count !== this.#count) return;
      this.#found.value = cursor ? [...(this.#found.peek() ?? []), ...page.sessions] : page.sessions;
      this.#next.value = page.nextCursor;
    } catch (error) {
      if (count === this.#count) tellError(error);
    } finally {
      if (count === this.#count) this.#isBusy.value = false;
    }
  }
}
