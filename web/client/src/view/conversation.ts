/**
 * The conversation of a session or child session: its items, terminals, latest values and background work. The caller
 * passes new updates only.
 */

import { type Earlier, type Item, Items, type Speaker, type Told } from "./items.js";
import { LATEST_FOLDS, type Latest } from "./latest.js";
import { appendChunk, appendSummary, updateCompaction, updateWhole } from "./messages.js";
import { STATES } from "./children.js";
import { entriesOf } from "./patch.js";
import {
  type StoredTerminal,
  type Terminal,
  announceToolCall,
  appendContent,
  appendOutput,
  terminalOf,
  updateTerminal,
  updateToolCall,
} from "./tools.js";

/** The members of a transcript page that a conversation needs. */
export interface ConversationPage {
  readonly lastEventId: number;
  readonly first: number;
  readonly items: readonly Item[];
  readonly latest?: Latest;
  readonly terminals?: Readonly<Record<string, StoredTerminal>>;
  readonly background?: unknown;
  readonly earlier?: Earlier;
}

const SPOKEN: ReadonlyMap<string, (items: Items, told: Told) => boolean> = new Map([
  ["user_message_chunk", appendChunk],
  ["agent_message_chunk", appendChunk],
  ["agent_thought_chunk", appendChunk],
  ["user_message", updateWhole],
  ["agent_message", updateWhole],
  ["agent_thought", updateWhole],
  ["tool_call", announceToolCall],
  ["tool_call_update", updateToolCall],
  ["tool_call_content_chunk", appendContent],
  ["compaction_update", updateCompaction],
  ["compaction_summary_chunk", appendSummary],
]);
const TERMINALS: ReadonlyMap<string, typeof updateTerminal> = new Map([
  ["terminal_update", updateTerminal],
  ["terminal_output_chunk", appendOutput],
]);
/** Updates that mark the end of a turn, which the turn's own events report, and updates for one-time display. */
const NOT_SHOWN: ReadonlySet<string> = new Set(["turn_complete", "_turn_complete", "notice"]);

export class Conversation {
  /** @internal */
  readonly transcript: Items;
  /** By id. The map is changed in place; a changed terminal is a new object. */
  readonly terminals: ReadonlyMap<string, Terminal>;
  readonly #terminals: Map<string, Terminal>;
  #latest: Latest;
  #background: unknown;

  /** @internal `isOlder`: an older page, to which nothing is added. */
  constructor(page: ConversationPage, speaker: Speaker, given: { readonly isOlder?: boolean } = {}) {
    this.transcript = new Items(page, speaker, given);
    const terminals = Object.values(page.terminals ?? {}).map((each) => [each.terminalId, terminalOf(each)] as const);
    this.terminals = this.#terminals = new Map(terminals);
    this.#latest = page.latest ?? {};
    this.#background = page.background;
  }

  /** In order of appearance. The list is changed in place; a changed item is a new object. */
  get items(): readonly Item[] {
    return this.transcript.list;
  }

  /** The place of the first item in the whole transcript: an item's index is its place minus this. */
  get first(): number {
    return this.transcript.first;
  }

  /** Whether there are items before these. */
  get hasOlder(): boolean {
    return this.transcript.first > 0;
  }

  /** The newest value of each kind; a new object if one of them changes. */
  get latest(): Latest {
    return this.#latest;
  }

  /** @internal */
  set latest(latest: Latest) {
    this.#latest = latest;
  }

  /** The agent's last list of background work; undefined if it reports none. */
  get background(): unknown {
    return this.#background;
  }

  /** @internal */
  set background(background: unknown) {
    this.#background = background;
  }

  /**
   * Return the places of items that were added or replaced since the last call. Prepending a page does not change
   * places.
   */
  drain(): readonly number[] {
    const places = [...this.transcript.changed];
    this.transcript.changed.clear();
    return places;
  }

  /** @internal Apply an update of the agent, with our ids of sessions. */
  hear(told: Told): void {
    const spoken = SPOKEN.get(told.kind);
    const isApplied = spoken ? spoken(this.transcript, told) : this.#hearState(told);
    if (!isApplied) this.transcript.keepUnknown(told);
  }

  /** @internal Prepend the page before: it is current up to its event, which may be newer than the events here. */
  prepend(older: Conversation, asOf: number): void {
    this.transcript.prepend({ items: older.items, first: older.first }, asOf);
    for (const [name, terminal] of older.terminals) if (!this.#terminals.has(name)) this.#terminals.set(name, terminal);
  }

  #hearState(told: Told): boolean {
    const { kind, update } = told;
    if (NOT_SHOWN.has(kind)) return true;
    const terminal = TERMINALS.get(kind);
    if (terminal) return terminal(this.#terminals, told, this.transcript.speaker.life ?? 0);
    if (STATES.has(kind)) {
      // A missing, null or malformed list contains no information about background work.
      const background = entriesOf(update["background"]);
      if (background !== undefined) this.#background = background;
      return true;
    }
    const latest = LATEST_FOLDS.get(kind)?.(this.#latest, update, this.transcript.nullClears);
    if (latest !== undefined) this.#latest = latest;
    return latest !== undefined;
  }
}
