/**
 * A tab's end of the shared event stream. Subscribers get events from a known moment on, and are notified when some
 * were missed. Reconnecting is the reader's task; the tab only reports when it becomes visible again.
 */

import { type ReadonlySignal, effect, signal } from "@preact/signals";
import type { AnyEvent } from "@turnwire/client";

import { pageKey } from "../frame/page_key.js";
import type { Feed, Hearing, Link } from "./daemon.js";
import { type ToReader, type ToTab, sessionOf } from "./feed_words.js";

/** Interval at which a visible tab checks whether a lost daemon is back. */
const LOOK_MS = 2_000;

type Hear = (events: readonly AnyEvent[]) => void;

/** Return the feed of this tab. `base`: URL of the daemon. */
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
  // Send the lock's name only once the lock is held: an unheld one looks like that of a closed tab.
  if ("locks" in navigator) void navigator.locks.request(name, isHeld);
  else hello();
  addEventListener("pagehide", () => say({ say: "bye" }));
  addEventListener("pageshow", ({ persisted }) => {
    // The page was frozen and restored, so it missed events.
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
    // The user may be waiting, so find a daemon that is back sooner than the reader's own retry.
    const look = () => {
      if (document.visibilityState === "visible") fetch(new URL("health", base)).then(wake, () => {});
    };
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  });
  return tab;
}

/** Return the port of the reader, which all tabs share. Without shared workers each tab has its own. */
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
  /** Subscriptions that the reader has not confirmed, by number. */
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

  /** Nothing is known about events until the next `begun`. */
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

/** A promise that is resolved from outside. */
class Gate {
  open!: () => void;
  readonly opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}
