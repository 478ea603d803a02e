/**
 * A tab's end of the one stream of events. Whoever listens here gets events from a known moment on, and is told when
 * some were missed. It never reconnects by itself: that is the reader's; it only says when the tab is looked at again.
 */

import { type ReadonlySignal, effect, signal } from "@preact/signals";
import type { AnyEvent } from "@turnwire/client";

import { pageKey } from "../frame/page_key.js";
import type { Feed, Hearing, Link } from "./daemon.js";
import { type ToReader, type ToTab, sessionOf } from "./feed_words.js";

/** How often a tab that is looked at sees whether a daemon that was lost is back. */
const LOOK_MS = 2_000;

type Hear = (events: readonly AnyEvent[]) => void;

/** The feed of this tab. `base` is where the daemon is. */
export function openFeed(base: string): Feed {
  const port = readerPort(base);
  const say = (words: ToReader) => port.postMessage(words);
  const tab = new TabFeed(say);
  port.onmessage = ({ data }: MessageEvent<ToTab>) => tab.take(data);
  const name = `turnwire-tab-${Math.random().toString(36).slice(2)}`;
  const hello = () => say({ say: "hello", base, tab: name, pageKey: pageKey() });
  const isHeld = (): Promise<never> => {
    hello();
    return new Promise(() => {});
  };
  // Only then is the reader told the lock's name: one that nobody holds yet looks like that of a tab that is gone.
  if ("locks" in navigator) void navigator.locks.request(name, isHeld);
  else hello();
  addEventListener("pagehide", () => say({ say: "bye" }));
  addEventListener("pageshow", ({ persisted }) => {
    // Frozen and brought back as it was: what happened meanwhile was told to nobody here.
    if (!persisted) return;
    tab.lose();
    hello();
  });
  const wake = () => {
    if (document.visibilityState === "visible") say({ say: "wake" });
  };
  document.addEventListener("visibilitychange", wake);
  addEventListener("online", wake);
  effect(() => {
    if (tab.link.value !== "lost") return undefined;
    // Somebody may wait for it: a daemon that answers again is found soon, however long the reader's own pause is.
    const look = () => {
      if (document.visibilityState === "visible") fetch(new URL("health", base)).then(wake, () => {});
    };
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  });
  return tab;
}

/** The way to the reader: all tabs have the same one. A browser without workers to share gives each tab its own. */
function readerPort(base: string): MessagePort | Worker {
  if (typeof SharedWorker === "function") {
    return new SharedWorker(new URL("./feed_worker.ts", import.meta.url), { type: "module", name: base }).port;
  }
  return new Worker(new URL("./feed_worker.ts", import.meta.url), { type: "module" });
}

class TabFeed implements Feed {
  readonly #link = signal<Link>("connecting");
  readonly link: ReadonlySignal<Link> = this.#link;
  readonly #ofAll = new Set<Hear>();
  readonly #ofSession = new Map<string, Set<Hear>>();
  readonly #ofMissed = new Set<(sessionId: string | undefined) => void>();
  #begun = new Gate();
  /** What was wanted with each number that the reader has not heard yet. */
  readonly #wanted = new Map<number, () => void>();
  #count = 0;

  constructor(private readonly say: (words: ToReader) => void) {}

  session(sessionId: string, hear: Hear): Hearing {
    const heard = this.#ofSession.get(sessionId) ?? new Set();
    this.#ofSession.set(sessionId, heard.add(hear));
    const wanted = this.#want();
    return {
      begun: Promise.all([this.#begun.opened, wanted]).then(() => {}),
      stop: () => {
        if (!heard.delete(hear) || heard.size) return;
        this.#ofSession.delete(sessionId);
        void this.#want();
      },
    };
  }

  all(hear: Hear): Hearing {
    this.#ofAll.add(hear);
    return { begun: this.#begun.opened, stop: () => void this.#ofAll.delete(hear) };
  }

  missed(hear: (sessionId: string | undefined) => void): () => void {
    this.#ofMissed.add(hear);
    return () => void this.#ofMissed.delete(hear);
  }

  /** Nothing is known of what happened until the next `begun`. */
  lose(): void {
    this.#begun = new Gate();
    void this.#begun.opened.then(() => this.#tellMissed(undefined));
  }

  take(words: ToTab): void {
    switch (words.say) {
      case "begun":
        this.#begun.open();
        break;
      case "wanted":
        this.#wanted.get(words.number)?.();
        this.#wanted.delete(words.number);
        break;
      case "link":
        this.#link.value = words.link;
        break;
      case "events":
        this.#pass(words.events);
        break;
    }
  }

  #want(): Promise<void> {
    const number = ++this.#count;
    return new Promise((resolve) => {
      this.#wanted.set(number, resolve);
      this.say({ say: "want", sessions: [...this.#ofSession.keys()], number });
    });
  }

  #pass(events: readonly AnyEvent[]): void {
    const bySession = new Map<string, AnyEvent[]>();
    for (const each of events) {
      if (each.type === "state_resync_required") this.#tellMissed(each.data.sessionId);
      const sessionId = sessionOf(each);
      if (!this.#ofSession.has(sessionId)) continue;
      const own = bySession.get(sessionId);
      if (own) own.push(each);
      else bySession.set(sessionId, [each]);
    }
    for (const hear of [...this.#ofAll]) hear(events);
    for (const [sessionId, own] of bySession) {
      for (const hear of [...(this.#ofSession.get(sessionId) ?? [])]) hear(own);
    }
  }

  #tellMissed(sessionId: string | undefined): void {
    for (const hear of [...this.#ofMissed]) hear(sessionId);
  }
}

/** A promise that is kept from outside. */
class Gate {
  open!: () => void;
  readonly opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}
