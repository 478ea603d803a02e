/** The search of sessions by title, folder and messages, done by the daemon. */

import { type ReadonlySignal, type Signal, effect, signal } from "@preact/signals";
import type { SessionEntry, SessionPage } from "@turnwire/client";

import { tellError } from "../frame/toasts.js";
import type { Daemon } from "../state/daemon.js";
import type { FoundWords } from "./groups.js";

/** A found session with its matches. */
export type FoundSession = SessionEntry & { readonly matches?: readonly FoundWords[] };

/** Pause after the last key before the search starts. */
const TYPING_MS = 200;
const PAGE = 50;

export class SessionSearch {
  /** The search text; empty if there is no search. */
  readonly words: Signal<string> = signal("");
  readonly #found = signal<readonly FoundSession[] | undefined>(undefined);
  /** The result; undefined while there is no search. */
  readonly found: ReadonlySignal<readonly FoundSession[] | undefined> = this.#found;
  readonly #isBusy = signal(false);
  readonly isBusy: ReadonlySignal<boolean> = this.#isBusy;
  readonly #next = signal<string | undefined>(undefined);
  /** Set if there are more results. */
  readonly next: ReadonlySignal<string | undefined> = this.#next;
  /** Counts searches, so that a late result of an older one is dropped. */
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
