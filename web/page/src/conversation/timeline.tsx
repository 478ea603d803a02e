/**
 * The conversation as it scrolls. Rows stand in blocks; a block that is far from what is seen is an empty box of the
 * height it had, so that a long conversation costs what a screen of it costs. What is loaded later at the top, and
 * what streams at the bottom, moves nothing that is being read.
 *
 *   L1  While the end is seen, it stays seen: new words push old ones up.
 *   L2  While something else is read, it stays where it is, whatever comes above or below.
 *   L3  At most the blocks around the screen have their rows in the document.
 */

import type { ReadonlySignal } from "@preact/signals";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** A part of the rows, of bounded size. It keeps its key, and its rows only grow in number at the end. */
export interface Block<Row> {
  readonly key: number;
  readonly rows: ReadonlySignal<readonly Row[]>;
}

/** Pixels beyond the screen in which rows are kept. */
const AROUND = "1200px 0px";
/** Nearer to the end than this is at the end. */
const AT_END = 48;
const OLDER_AT = 1_500;

export function Timeline<Row>({
  blocks,
  hasOlder,
  loadOlder,
  draw,
  children,
}: {
  readonly blocks: ReadonlySignal<readonly Block<Row>[]>;
  readonly hasOlder: ReadonlySignal<boolean>;
  readonly loadOlder: () => Promise<void>;
  readonly draw: (row: Row) => ComponentChildren;
  /** What stands behind the last row. */
  readonly children?: ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const isAtEnd = useSignal(true);
  const isLoading = useRef(false);
  /** What the box measured when it was last looked at, to tell a user's scrolling from our own. */
  const seen = useRef({ top: 0, height: 0 });

  const toEnd = () => {
    const element = box.current;
    if (!element) return;
    element.scrollTop = element.scrollHeight;
    seen.current = { top: element.scrollTop, height: element.scrollHeight };
  };

  const older = async () => {
    const element = box.current;
    if (!element || isLoading.current || !hasOlder.peek() || element.scrollTop > OLDER_AT) return;
    isLoading.current = true;
    // At the very top a browser anchors nothing: what is read would be pushed down by what is put above it.
    if (element.scrollTop === 0) element.scrollTop = 1;
    try {
      await loadOlder();
    } finally {
      isLoading.current = false;
    }
    // A page may be shorter than the screen.
    requestAnimationFrame(() => void older());
  };

  // L1. The size of what is inside changes for many reasons: words, pictures, a card that opens, a phone that turns.
  useLayoutEffect(() => {
    const element = box.current;
    const content = inside.current;
    if (!element || !content) return;
    const observer = new ResizeObserver(() => {
      if (isAtEnd.peek()) toEnd();
    });
    observer.observe(content);
    observer.observe(element);
    toEnd();
    return () => observer.disconnect();
  }, []);

  useEffect(() => void older(), [hasOlder.value]);

  const scrolled = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, scrollHeight: height, clientHeight } = element;
    const isUp = top < seen.current.top - 1 && height >= seen.current.height;
    const isNear = height - top - clientHeight < AT_END;
    // Only a move of the user leaves the end: when the content grows, the end moves away by itself.
    if (isNear) isAtEnd.value = true;
    else if (isUp) isAtEnd.value = false;
    seen.current = { top, height };
    void older();
  };

  return (
    <div class="timeline-frame">
      {/* A region that scrolls is reachable by the keyboard. */}
      <div class="timeline" ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
        <div class="timeline-inside" ref={inside}>
          {hasOlder.value ? <p class="older small soft">Older messages are loading</p> : null}
          {blocks.value.map((each) => (
            <BlockView key={each.key} block={each} draw={draw} box={box} />
          ))}
          {children}
        </div>
      </div>
      {isAtEnd.value ? null : (
        <button
          class="button to-end"
          type="button"
          onClick={() => {
            isAtEnd.value = true;
            toEnd();
          }}
        >
          Newest
        </button>
      )}
    </div>
  );
}

function BlockView<Row>({
  block,
  draw,
  box,
}: {
  readonly block: Block<Row>;
  readonly draw: (row: Row) => ComponentChildren;
  readonly box: { readonly current: HTMLDivElement | null };
}) {
  const element = useRef<HTMLDivElement>(null);
  const isNear = useSignal(true);
  const height = useRef(0);

  useEffect(() => {
    const own = element.current;
    if (!own || !box.current) return;
    const observer = new IntersectionObserver(
      ([entry]) => {
        // What somebody writes in, such as a comment, stays.
        if (!entry || (!entry.isIntersecting && own.contains(document.activeElement))) return;
        // Read while the rows are there: it is the height that the empty box gets.
        if (!entry.isIntersecting && isNear.peek()) height.current = own.getBoundingClientRect().height;
        isNear.value = entry.isIntersecting;
      },
      { root: box.current, rootMargin: AROUND },
    );
    observer.observe(own);
    return () => observer.disconnect();
  }, []);

  return (
    <div class="block" ref={element} style={isNear.value ? { height: "" } : { height: `${height.current}px` }}>
      {isNear.value ? block.rows.value.map(draw) : null}
    </div>
  );
}
