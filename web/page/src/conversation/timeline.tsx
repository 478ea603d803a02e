/**
 * The scrolling conversation. Rows are grouped into blocks. A block far from the viewport is an empty box of its last
 * height, so a long conversation costs as much as one screen. Older pages loaded at the top and chunks streamed at the
 * bottom do not move the text that is being read.
 *
 *   L1  While the end is in view, it stays in view.
 *   L2  Otherwise the visible rows stay where they are, whatever is added above or below.
 *   L3  Only blocks near the viewport have their rows in the document.
 */

import type { ReadonlySignal } from "@preact/signals";
import { useSignal, useSignalEffect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** A bounded group of rows. Its key never changes, and rows are only appended. */
export interface Block<Row> {
  readonly key: number;
  readonly rows: ReadonlySignal<readonly Row[]>;
}

/** Margin around the viewport in which rows are rendered. */
const AROUND = "1200px 0px";
/** Distance from the end, in pixels, that still counts as the end. */
const AT_END = 48;
const OLDER_AT = 1_500;

export function Timeline<Row>({
  blocks,
  hasOlder,
  loadOlder,
  draw,
  jumps,
  children,
}: {
  readonly blocks: ReadonlySignal<readonly Block<Row>[]>;
  readonly hasOlder: ReadonlySignal<boolean>;
  readonly loadOlder: () => Promise<void>;
  readonly draw: (row: Row) => ComponentChildren;
  /** Changes when the reader is to be taken to the end. */
  readonly jumps: ReadonlySignal<number>;
  /** Shown after the last row. */
  readonly children?: ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const isAtEnd = useSignal(true);
  const isLoading = useRef(false);
  /** The last measured scroll position, to distinguish the user's scrolling from ours. */
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
    // At the very top the browser does not anchor the scroll position, so prepended rows would push the text down.
    if (element.scrollTop === 0) element.scrollTop = 1;
    try {
      await loadOlder();
    } finally {
      isLoading.current = false;
    }
    // A page may be shorter than the screen.
    requestAnimationFrame(() => void older());
  };

  // L1. The content changes its size for many reasons: text, images, an opened card, a rotated phone.
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
  const toNewest = () => {
    isAtEnd.value = true;
    toEnd();
  };
  useSignalEffect(() => {
    if (jumps.value > 0) toNewest();
  });

  const scrolled = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, scrollHeight: height, clientHeight } = element;
    const isUp = top < seen.current.top - 1 && height >= seen.current.height;
    const isNear = height - top - clientHeight < AT_END;
    // Only the user's scrolling leaves the end. Growing content moves the end away too, and must not.
    if (isNear) isAtEnd.value = true;
    else if (isUp) isAtEnd.value = false;
    seen.current = { top, height };
    void older();
  };

  return (
    <div class="timeline-frame">
      {/* A scrollable region must be reachable with the keyboard. */}
      <div class="timeline" ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
        <div class="timeline-inside" ref={inside}>
          {hasOlder.value ? <p class="older small soft">Loading older messages…</p> : null}
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
          onClick={toNewest}
        >
          Jump to latest
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
        // Keep a block that has the focus, such as a comment that is being written.
        if (!entry || (!entry.isIntersecting && own.contains(document.activeElement))) return;
        // Measured while the rows are there: the empty box gets this height.
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
