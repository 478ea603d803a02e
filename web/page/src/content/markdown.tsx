/** Markdown that is cheap to update while it grows: only changed blocks touch the document, at most once per frame. */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

import { type Block, Blocks, isSameBlock } from "./blocks.js";
import { copied } from "./clipboard.js";
import { highlightLater } from "./highlight.js";
import { patchChildren } from "./patch.js";
import { canReadHtml, codeBox, safe } from "./safe.js";
import { TAGS } from "./tags.js";

export interface MarkdownProps {
  readonly text: string;
  /** More chunks will follow. */
  readonly streaming?: boolean;
  /** Show tags as text: the user typed them. It does not change while the text is shown. */
  readonly showsTags?: boolean;
}

export function Markdown({ text, streaming = false, showsTags = false }: MarkdownProps) {
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef<ShownMarkdown>(undefined);
  const frame = useRef(0);
  const wanted = useRef({ text, streaming });
  wanted.current = { text, streaming };

  const rest = useRef(0);

  useLayoutEffect(() => {
    const draw = (): void => {
      const began = performance.now();
      shown.current?.update(wanted.current.text, !wanted.current.streaming);
      const end = performance.now();
      // After a slow block, such as a large table, pause for as long as it took.
      rest.current = end + (end - began);
    };
    const drawInTime = (now: number): void => {
      frame.current = now < rest.current ? requestAnimationFrame(drawInTime) : 0;
      if (frame.current === 0) draw();
    };
    const isFirst = shown.current === undefined;
    shown.current ??= new ShownMarkdown(box.current!, showsTags);
    if (isFirst || !streaming) {
      cancelAnimationFrame(frame.current);
      frame.current = 0;
      draw();
    } else if (frame.current === 0) {
      frame.current = requestAnimationFrame(drawInTime);
    }
  }, [text, streaming]);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  return <div class="markdown" ref={box} onClick={copyCode} />;
}

function copyCode(event: MouseEvent): void {
  const button = event.target instanceof Element ? event.target.closest("button.copy") : null;
  const text = button?.closest(".code")?.querySelector("pre")?.textContent;
  if (button === null || text == null) return;
  void copied(text).then((done) => {
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

/** The elements of a text: one for each block. */
class ShownMarkdown {
  readonly #blocks: Blocks;
  readonly #elements: HTMLElement[] = [];
  /** The block that each element shows. */
  readonly #shown: Block[] = [];
  #settled = 0;

  constructor(
    readonly box: HTMLElement,
    showsTags: boolean,
  ) {
    this.#blocks = new Blocks(showsTags || !canReadHtml ? [] : TAGS);
  }

  update(text: string, isWhole: boolean): void {
    const { kept, blocks, settled } = this.#blocks.update(text, isWhole);
    for (let index = kept; index < blocks.length; index++) {
      this.#show(index, blocks[index]!);
      if (index < settled) for (const code of this.#codes(index)) highlightLater(code);
    }
    for (const extra of this.#elements.splice(blocks.length)) extra.remove();
    this.#shown.length = blocks.length;
    this.#settled = settled;
  }

  #codes(index: number): Iterable<HTMLElement> {
    return this.#elements[index]!.querySelectorAll<HTMLElement>("pre > code");
  }

  #show(index: number, block: Block): void {
    const before = this.#shown[index];
    this.#shown[index] = block;
    const element = this.#elements[index];
    if (element === undefined) {
      const added = document.createElement("div");
      added.append(nodesOf(block));
      this.#elements.push(added);
      this.box.append(added);
    } else if (before === undefined || !isSameBlock(before, block) || index < this.#settled) {
      if (!growCode(element, before, block)) patch(element, block);
    }
  }
}

function nodesOf(block: Block): Node {
  return block.code === undefined ? safe(block.html, block.isPlain) : codeBox(block.code.text, block.code.language);
}

/** Appending to code extends the same text node. */
function growCode(element: HTMLElement, before: Block | undefined, block: Block): boolean {
  if (before?.code === undefined || before.code.language !== block.code?.language) return false;
  const text = element.querySelector("pre > code")?.firstChild;
  if (!(text instanceof Text) || text.nextSibling !== null || text.data !== before.code.text) return false;
  if (block.code.text.startsWith(text.data)) text.appendData(block.code.text.slice(text.data.length));
  else text.data = block.code.text;
  return true;
}

function patch(element: HTMLElement, block: Block): void {
  const next = document.createElement("div");
  next.append(nodesOf(block));
  patchChildren(element, next);
}
