/**
 * Markdown that grows, cut into its top-level blocks. A block that later text cannot change is settled: it is parsed
 * once, however long the message becomes. The blocks of a whole text do not depend on the chunks in which it arrived.
 */

import { Lexer, Parser, type Token, Tokenizer, type Tokens } from "marked";

import { closed } from "./closing.js";
import { TAGS } from "./tags.js";

export interface Block {
  /** The code of a block that is only a fence, so that it can be shown without parsing HTML. */
  readonly code?: { readonly text: string; readonly language: string };
  /** Not sanitized yet. */
  readonly html: string;
  /** Its Markdown contains no tag. */
  readonly isPlain: boolean;
}

export interface Change {
  /** Number of leading blocks that are unchanged since the last update. */
  readonly kept: number;
  readonly blocks: readonly Block[];
  /** Number of leading blocks that are settled. */
  readonly settled: number;
}

type Links = Lexer["tokens"]["links"];

export class Blocks {
  #source = "";
  #settled: Block[] = [];
  /** End of the settled blocks in the source. */
  #end = 0;
  /** Whether a settled block may refer to a link that is defined later. */
  #namesLinks = false;
  #links: Links = {};
  /** Number of returned blocks that are settled and unchanged. */
  #given = 0;
  readonly #tags: ReadonlySet<string>;

  constructor(tags: readonly string[] = TAGS) {
    this.#tags = new Set(tags);
  }

  /** Update with the whole text so far; `isWhole` if no more will follow. */
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

  /** Settle blocks where possible, and return the open blocks after them. */
  #settle(isWhole: boolean): Block[] {
    const tail = this.#source.slice(this.#end);
    const read = this.#lexed(tail, this.#links);
    let groups = grouped(read.tokens);
    const count = isWhole ? groups.length : settledCount(groups);
    const end = groups.slice(0, count).reduce((sum, each) => sum + each.raw.length, 0);
    const found = definitions(groups.slice(0, count));
    const isNew = Object.keys(found).some((tag) => !(tag in this.#links));
    if (isNew && (this.#namesLinks || this.#settled.length > 0)) {
      // A link definition affects all text before it.
      const source = this.#source;
      this.#begin({ ...found, ...this.#links });
      this.#source = source;
      return this.#settle(isWhole);
    }
    // An incomplete definition must not affect settled blocks.
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

  /** Return the last block of an unfinished text, with its half-written markup closed. */
  #openBlock(group: Group, links: Links): Block {
    const type = group.tokens[0]?.type;
    if (type === "code" || type === "html") return blockOf(group.tokens);
    const shown = closed(group.raw);
    return blockOf(shown === group.raw ? group.tokens : this.#lexed(shown, links).tokens);
  }
}

/** Return a whole text as HTML that is not sanitized yet. */
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

  /** Whether the text begins with a tag that is shown as text. HTML comments are recognized in whole HTML only. */
  #isWords(source: string): boolean {
    const name = /^ {0,3}<[/?!]?([a-z][\w-]*)?/i.exec(source);
    return name !== null && (name[1] === undefined ? this.tags.size === 0 : !this.tags.has(name[1].toLowerCase()));
  }

  /** A title ends with its paragraph; marked would search for the closing quote in all of the following text. */
  override def(source: string): Tokens.Def | undefined {
    const blank = /\n[ \t]*\n/.exec(source);
    return super.def(blank === null ? source : source.slice(0, blank.index + 1));
  }
}

/** Tokens that are shown as one block. */
interface Group {
  raw: string;
  readonly tokens: Token[];
  /** HTML tags that are open at the end of the group. */
  depth: number;
}

/** Elements around Markdown; the text between their tags stays together. */
const CONTAINERS = /<(\/?)(?:details|div|table|center|blockquote|section|ul|ol|dl|sub|sup|p)\b[^>]*?(\/?)>/gi;
/** Characters after a block that decide whether it is settled. */
const LOOKED_AT = 2000;
/** An unclosed tag must not turn all of the following text into one block. */
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
 * Return how many groups no further text can change: those followed by a complete line of another block, or by two if
 * no blank line separates them, because a second line may turn the first into a table.
 */
function settledCount(groups: readonly Group[]): number {
  let count = groups.length - 1;
  for (let behind = ""; count > 0; count--) {
    behind = groups[count]!.raw + behind;
    const lines = behind.slice(0, LOOKED_AT).match(/\S[^\n]*\n/g)?.length ?? 0;
    if (lines >= (endsBlank(groups[count - 1]!) ? 1 : 2)) break;
  }
  // A link definition may have its title on the following lines.
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
    // Not used for a long block that grows.
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

/** Whether a token contains HTML at any depth: in text, list items or table cells. */
function hasHtml(token: object): boolean {
  if ("type" in token && token.type === "html") return true;
  return Object.values(token).some((each) => typeof each === "object" && each !== null && hasHtml(each as object));
}

function languageOf(info: string | undefined): string {
  return /^\S*/.exec(info ?? "")?.[0] ?? "";
}
