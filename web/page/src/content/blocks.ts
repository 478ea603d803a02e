/**
 * Markdown that grows, cut into its top-level blocks. A block that later text cannot change is settled: it is parsed
 * once, however long the message becomes. Whatever the pieces it came in, the blocks of a whole text are the same.
 */

import { Lexer, Parser, type Token, Tokenizer, type Tokens } from "marked";

import { closed } from "./closing.js";
import { TAGS } from "./tags.js";

export interface Block {
  /** The code of a block that is nothing but a fence, so that it can be shown without parsing HTML. */
  readonly code?: { readonly text: string; readonly language: string };
  /** Not yet made safe. */
  readonly html: string;
  /** It was made of markdown without a tag. */
  readonly isPlain: boolean;
}

export interface Change {
  /** So many blocks at the start are the very ones of the last update. */
  readonly kept: number;
  readonly blocks: readonly Block[];
  /** So many at the start are settled. */
  readonly settled: number;
}

type Links = Lexer["tokens"]["links"];

export class Blocks {
  #source = "";
  #settled: Block[] = [];
  /** Where in the source the settled blocks end. */
  #end = 0;
  /** Whether a settled block may name a link that is only defined later. */
  #namesLinks = false;
  #links: Links = {};
  /** How many blocks were given out as settled, and are still the same. */
  #given = 0;
  readonly #tags: ReadonlySet<string>;

  constructor(tags: readonly string[] = TAGS) {
    this.#tags = new Set(tags);
  }

  /** All of the text so far; `isWhole` if no more will come. */
  update(text: string, isWhole: boolean): Change {
    const source = text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
    if (!source.startsWith(this.#source)) this.#begin({});
    this.#source = source;
    const open = this.#settle(isWhole);
    const kept = this.#given;
    this.#given = this.#settled.length;
    return { kept, blocks: [...this.#settled, ...open], settled: this.#settled.length };
  }

  #begin(links: Links): void {
    this.#source = "";
    this.#settled = [];
    this.#end = this.#given = 0;
    this.#namesLinks = false;
    this.#links = links;
  }

  /** Settle what can be, and give the open blocks behind it. */
  #settle(isWhole: boolean): Block[] {
    const tail = this.#source.slice(this.#end);
    const read = this.#lexed(tail, this.#links);
    let groups = grouped(read.tokens);
    const count = isWhole ? groups.length : settledCount(groups);
    const end = groups.slice(0, count).reduce((sum, each) => sum + each.raw.length, 0);
    const found = definitions(groups.slice(0, count));
    const isNew = Object.keys(found).some((tag) => !(tag in this.#links));
    if (isNew && (this.#namesLinks || this.#settled.length > 0)) {
      // A definition reaches back to all that was said before it.
      const source = this.#source;
      this.#begin({ ...found, ...this.#links });
      this.#source = source;
      return this.#settle(isWhole);
    }
    // A definition that is not whole yet must not shape what is settled.
    if (Object.keys(read.links).some((tag) => !(tag in this.#links) && !(tag in found))) {
      const settled = grouped(this.#lexed(tail.slice(0, end), this.#links).tokens);
      groups = [...settled, ...groups.slice(count)];
    }
    this.#links = { ...found, ...this.#links };
    for (const each of groups.slice(0, count)) {
      this.#settled.push(blockOf(each.tokens));
      this.#namesLinks ||= each.raw.includes("[");
    }
    this.#end += end;
    return groups
      .slice(count)
      .map((each, index, all) =>
        index < all.length - 1 ? blockOf(each.tokens) : this.#openBlock(each, read.links),
      );
  }

  #lexed(source: string, links: Links): { readonly tokens: Token[]; readonly links: Links } {
    const lexer = new Lexer({ gfm: true, tokenizer: new Reader(this.#tags) });
    lexer.tokens.links = { ...links };
    const tokens = lexer.lex(source);
    return { tokens, links: tokens.links };
  }

  /** The last block of a text that goes on: with its half-written markup closed. */
  #openBlock(group: Group, links: Links): Block {
    const type = group.tokens[0]?.type;
    if (type === "code" || type === "html") return blockOf(group.tokens);
    const shown = closed(group.raw);
    return blockOf(shown === group.raw ? group.tokens : this.#lexed(shown, links).tokens);
  }
}

/** All of a text at once, as HTML that is not yet made safe. */
export function htmlOf(text: string): string {
  return new Blocks()
    .update(text, true)
    .blocks.map((each) => each.html)
    .join("");
}

// -- tokens ---------------------------------------------------------------------------------------------------

class Reader extends Tokenizer {
  constructor(readonly tags: ReadonlySet<string>) {
    super();
  }

  override html(source: string): Tokens.HTML | undefined {
    return this.#isWords(source) ? undefined : super.html(source);
  }

  override tag(source: string): Tokens.Tag | undefined {
    return this.#isWords(source) ? undefined : super.tag(source);
  }

  /** Whether it begins with a tag that is not read as one. A comment is one only for who writes HTML. */
  #isWords(source: string): boolean {
    const name = /^ {0,3}<[/?!]?([a-z][\w-]*)?/i.exec(source);
    return name !== null && (name[1] === undefined ? this.tags.size === 0 : !this.tags.has(name[1].toLowerCase()));
  }

  /** A title ends where its paragraph does; marked would look for its quote through all that follows. */
  override def(source: string): Tokens.Def | undefined {
    const blank = /\n[ \t]*\n/.exec(source);
    return super.def(blank === null ? source : source.slice(0, blank.index + 1));
  }
}

/** Tokens that are shown as one block. */
interface Group {
  raw: string;
  readonly tokens: Token[];
  /** Tags of HTML that are open at its end. */
  depth: number;
}

/** Elements that people put markdown into; what is between their tags stays together. */
const CONTAINERS = /<(\/?)(?:details|div|table|center|blockquote|section|ul|ol|dl|sub|sup|p)\b[^>]*?(\/?)>/gi;
/** Characters behind a block that are looked at to tell whether it is settled. */
const LOOKED_AT = 2000;
/** A tag that nobody closes does not make all that follows one block. */
const MOST_TOKENS = 60;

function grouped(tokens: readonly Token[]): Group[] {
  const groups: Group[] = [];
  for (const token of tokens) {
    const last = groups.at(-1);
    const isInside = last !== undefined && last.depth > 0 && last.tokens.length < MOST_TOKENS;
    if (last !== undefined && (isInside || token.type === "space")) {
      last.raw += token.raw;
      last.tokens.push(token);
      last.depth += depthOf(token);
    } else {
      groups.push({ raw: token.raw, tokens: [token], depth: depthOf(token) });
    }
  }
  return groups;
}

function depthOf(token: Token): number {
  if (token.type !== "html") return 0;
  let depth = 0;
  for (const [, closes, isEmpty] of token.raw.matchAll(CONTAINERS)) depth += closes ? -1 : isEmpty ? 0 : 1;
  return depth;
}

/**
 * How many groups no further text can change: those with a whole line of another block behind them, or two where no
 * blank line is between, because the second line may make a table of the first.
 */
function settledCount(groups: readonly Group[]): number {
  let count = groups.length - 1;
  for (let behind = ""; count > 0; count--) {
    behind = groups[count]!.raw + behind;
    const lines = behind.slice(0, LOOKED_AT).match(/\S[^\n]*\n/g)?.length ?? 0;
    if (lines >= (endsBlank(groups[count - 1]!) ? 1 : 2)) break;
  }
  // What looks like the definition of a link may have a title on the lines that follow.
  const doubtful = groups.findIndex((each) => /^ {0,3}\[/.test(each.raw) && !endsBlank(each));
  return Math.max(0, doubtful < 0 ? count : Math.min(count, doubtful));
}

function endsBlank(group: Group): boolean {
  return /\n[ \t]*\n\s*$/.test(group.raw);
}

function definitions(groups: readonly Group[]): Links {
  const found: Links = {};
  const visit = (tokens: readonly Token[]): void => {
    for (const token of tokens) {
      if (token.type === "def") {
        const { tag, href, title } = token as Tokens.Def;
        found[tag] ??= { href, title };
      } else {
        visit(token.type === "list" ? (token as Tokens.List).items : ((token as Tokens.Generic).tokens ?? []));
      }
    }
  };
  for (const each of groups) visit(each.tokens);
  return found;
}

// -- blocks ---------------------------------------------------------------------------------------------------

function blockOf(tokens: readonly Token[]): Block {
  const isPlain = !tokens.some((each) => each.raw.includes("<") && hasHtml(each));
  const only = tokens.filter((each) => each.type !== "space");
  if (only.length !== 1 || only[0]?.type !== "code") return { html: Parser.parse([...tokens]), isPlain };
  const { text, lang } = only[0] as Tokens.Code;
  return {
    code: { text, language: languageOf(lang) },
    isPlain,
    // A long one that grows is shown without it.
    get html() {
      return Parser.parse([...tokens]);
    },
  };
}

/** Whether two blocks look the same. */
export function isSameBlock(one: Block, other: Block): boolean {
  if (one.code === undefined || other.code === undefined) return one.html === other.html;
  return one.code.text === other.code.text && one.code.language === other.code.language;
}

/** Whether there is a tag anywhere inside: in what is said, in an item of a list, in a cell of a table. */
function hasHtml(token: object): boolean {
  if ("type" in token && token.type === "html") return true;
  return Object.values(token).some((each) => typeof each === "object" && each !== null && hasHtml(each as object));
}

function languageOf(info: string | undefined): string {
  return /^\S*/.exec(info ?? "")?.[0] ?? "";
}
