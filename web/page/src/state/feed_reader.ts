/**
 * The single reader of the daemon's event stream for all tabs. A tab gets each event once and in order. Chunks of
 * sessions that it does not show are left out, because they are most of the bytes and do not change the list.
 *
 *   T1  After `begun`, a tab gets every event of every session, except those chunks.
 *   T2  After `wanted`, it also gets the chunks of the sessions that it named.
 *   T3  A tab that sends `hello` again after it was frozen gets `begun` again and has missed the events in between.
 *   T4  A closed tab is forgotten, even if it could not send `bye`.
 */

import type { AnyEvent } from "@turnwire/client";
import { EventReader, type ReaderOptions, Unauthenticated } from "@turnwire/client/reader";

import type { Link } from "./daemon.js";
import { type ToReader, type ToTab, sessionOf } from "./feed_words.js";

const CHUNKS = new Set([
  "agent_message_chunk",
  "agent_thought_chunk",
  "user_message_chunk",
  "tool_call_content_chunk",
  "terminal_output_chunk",
]);
const AGAIN_MS = 2_000;

export type Stream = Pick<EventReader, "events" | "reconnect" | "close">;

interface Tab {
  readonly tell: (words: ToTab) => void;
  wanted: ReadonlySet<string>;
  name: string;
}

export class FeedReader {
  readonly #tabs = new Set<Tab>();
  #link: Link = "connecting";
  #stream: Stream | undefined;
  #isReading = false;
  /** Workers have no `localStorage`, so the newest tab passes its page key. */
  #pageKey: string | undefined;
  /** The stream was opened once; from then on its cursor closes every gap. */
  #hasBegun = false;

  constructor(
    private readonly reach: (base: string, options: ReaderOptions) => Stream = (base, options) =>
      new EventReader(base, options),
  ) {}

  /** Add a tab. Return the handler of its messages. */
  join(tell: (words: ToTab) => void): (words: ToReader) => void {
    const tab: Tab = { tell, wanted: new Set(), name: "" };
    return (words) => this.#hear(tab, words);
  }

  #hear(tab: Tab, words: ToReader): void {
    switch (words.say) {
      case "hello":
        this.#tabs.add(tab);
        this.#forgetWithLock(tab, words.tab);
        tab.tell({ say: "link", link: this.#link });
        if (this.#hasBegun) tab.tell({ say: "begun" });
        this.#pageKey = words.pageKey;
        void this.#read(words.base);
        break;
      case "want":
        tab.wanted = new Set(words.sessions);
        tab.tell({ say: "wanted", number: words.number });
        break;
      case "wake":
        this.#stream?.reconnect();
        break;
      case "bye":
        this.#tabs.delete(tab);
        break;
    }
  }

  /** A tab holds a lock for its lifetime: nothing else tells that a tab was killed. */
  #forgetWithLock(tab: Tab, name: string): void {
    const locks = globalThis.navigator?.locks;
    if (tab.name === name || !locks) return;
    tab.name = name;
    void locks.request(name, () => this.#tabs.delete(tab));
  }

  async #read(base: string): Promise<void> {
    if (this.#isReading) return;
    this.#isReading = true;
    let place: string | undefined;
    try {
      while (this.#tabs.size) {
        try {
          const onConnection = ({ state }: { readonly state: "open" | "lost" }) => this.#say(state);
          this.#stream = this.reach(base, { acp: "agent", pageKey: this.#pageKey, onConnection });
          const after: { readonly after?: string } = place === undefined ? {} : { after: place };
          for await (const batch of this.#stream.events(after)) {
            place = batch.place;
            this.#begin();
            if (batch.events.length) this.#pass(batch.events);
          }
        } catch (error) {
          if (error instanceof Unauthenticated) {
            // Another login may see other sessions, so the next tab starts from scratch.
            this.#say("refused");
            this.#hasBegun = false;
            return;
          }
          this.#say("lost");
          await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
        } finally {
          this.#stream?.close();
        }
      }
    } finally {
      this.#isReading = false;
    }
  }

  #begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    for (const each of this.#tabs) each.tell({ say: "begun" });
  }

  #say(link: Link): void {
    if (link === this.#link) return;
    this.#link = link;
    for (const each of this.#tabs) each.tell({ say: "link", link });
  }

  #pass(events: readonly AnyEvent[]): void {
    for (const tab of this.#tabs) {
      const wanted = events.filter((each) => !isChunkOf(each) || tab.wanted.has(sessionOf(each)));
      if (wanted.length) tab.tell({ say: "events", events: wanted });
    }
  }
}

function isChunkOf(event: AnyEvent): boolean {
  return event.type === "session_update" && CHUNKS.has(String(event.data.update.sessionUpdate));
}
