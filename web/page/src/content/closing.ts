/**
 * Closes half-written markup at the end of a growing text, so that its look does not change with the next letter:
 * emphasis and code end with the text, an unfinished link is shown as its label, an unfinished tag or image is not
 * shown yet. For display only: the complete text is parsed unchanged.
 */

/** The start of the last paragraph, list item or table row: markup does not span it. */
const BEGINNINGS = /(?:^|\n)(?:[ \t]*\n|[ \t]*(?:[-+*]|\d{1,9}[.)]|>|#{1,6}|\|)[ \t]+|[ \t]*\|)/g;

export function closed(text: string): string {
  const start = beginning(text);
  const part = text.slice(start);
  // Dashes below a paragraph turn it into a title; a single dash may become a list item.
  const underline = /\n[ \t]*(?:=+|-{1,2}|[*+]|\d{1,9}[.)]?)[ \t]*$/.exec(text);
  if (underline !== null && underline.index >= start) return closed(text.slice(0, underline.index));
  return text.slice(0, start) + new Scan(part).result();
}

function beginning(text: string): number {
  let start = 0;
  for (const match of text.matchAll(BEGINNINGS)) start = match.index + match[0].length;
  return start;
}

class Scan {
  #text: string;
  #at = 0;
  /** End of the shown text. */
  #end: number;
  /** Open emphasis marks, the innermost last. */
  readonly #open: string[] = [];
  /** The mark that ends an open code span. */
  #code = "";

  constructor(text: string) {
    this.#text = text;
    this.#end = text.length;
  }

  result(): string {
    while (this.#at < this.#end) this.#step();
    const shown = this.#text.slice(0, this.#end);
    if (this.#code === "" && this.#open.length === 0) return shown;
    // A mark after a space would not close.
    return shown.trimEnd() + this.#code + this.#open.reverse().join("");
  }

  #step(): void {
    const letter = this.#text[this.#at]!;
    if (letter === "\\") this.#at += 2;
    else if (letter === "`") this.#readCode();
    else if (letter === "[") this.#readLink(this.#at);
    else if (letter === "!" && this.#text[this.#at + 1] === "[") this.#readImage();
    else if (letter === "<") this.#readTag();
    else if (letter === "*" || letter === "_" || letter === "~") this.#readMark();
    else this.#at++;
  }

  #readCode(): void {
    const mark = /`+/y;
    mark.lastIndex = this.#at;
    const run = mark.exec(this.#text)![0];
    const inside = this.#at + run.length;
    const close = new RegExp(`(?<!\`)${run}(?!\`)`, "g");
    close.lastIndex = inside;
    const found = close.exec(this.#text);
    if (found !== null) {
      this.#at = found.index + run.length;
      return;
    }
    // Code follows, so nothing else opens. Its end may be half-written.
    const code = this.#text.slice(inside).replace(/`+$/, "");
    this.#end = code.trim() === "" ? this.#at : inside + code.length;
    this.#code = code.trim() === "" ? "" : run;
    this.#at = this.#text.length;
  }

  #readImage(): void {
    const end = this.#linkEnd(this.#at + 1);
    if (end === undefined) this.#end = this.#at;
    else this.#at = end;
  }

  #readLink(start: number): void {
    const end = this.#linkEnd(start);
    if (end !== undefined) {
      this.#at = end;
      return;
    }
    const close = this.#text.indexOf("]", start);
    const words = this.#text.slice(start + 1, close < 0 ? undefined : close);
    // Words in brackets that are not a link yet are shown as words, except a checkbox at the start.
    const isTick = start === 0 && words.length <= 1;
    this.#text = this.#text.slice(0, start) + (isTick ? "" : words);
    this.#end = this.#text.length;
  }

  /** Return the end of a link that begins with a bracket; undefined if it is unfinished. */
  #linkEnd(start: number): number | undefined {
    const close = this.#text.indexOf("]", start);
    if (close < 0 || close === this.#text.length - 1) return undefined;
    if (this.#text[close + 1] !== "(") return close + 1;
    const end = this.#text.indexOf(")", close);
    return end < 0 ? undefined : end + 1;
  }

  #readTag(): void {
    const end = this.#text.indexOf(">", this.#at);
    if (end >= 0 || !/[a-z/!]/i.test(this.#text[this.#at + 1] ?? "a")) this.#at = end < 0 ? this.#at + 1 : end + 1;
    else this.#end = this.#at;
  }

  #readMark(): void {
    const letter = this.#text[this.#at]!;
    let end = this.#at;
    while (this.#text[end] === letter) end++;
    const mark = this.#text.slice(this.#at, end);
    const [before, after] = [this.#text[this.#at - 1] ?? " ", this.#text[end] ?? " "];
    const isLast = end >= this.#end;
    if (this.#open.at(-1) === mark && /\S/.test(before)) this.#open.pop();
    // Half of a closing mark, or an opening mark without words.
    else if (isLast) this.#end = this.#at;
    else if (this.#opens(mark, before, after)) this.#open.push(mark);
    this.#at = end;
  }

  #opens(mark: string, before: string, after: string): boolean {
    if (/\s/.test(after) || mark.length > 3) return false;
    if (mark.startsWith("~")) return mark === "~~";
    return mark.startsWith("*") || !/[\p{L}\p{N}]/u.test(before);
  }
}
