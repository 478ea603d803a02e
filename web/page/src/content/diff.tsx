/** The change of a file, unified or side by side, with comments on its lines. */

import { type ComponentChildren, type JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import {
  type FileChange,
  type Fold,
  folded,
  type Gap,
  type Line,
  type Pair,
  type Row,
  type Side,
  sideBySide,
} from "./change.js";
import { highlightedLines, isHighlighting, languageOfPath, whenIdle } from "./highlight.js";
import { visible } from "./visible.js";

export type DiffLayout = "unified" | "split";

export interface LineComment {
  readonly path: string;
  readonly line: number;
  readonly side: Side;
  /** The text of the commented line. */
  readonly text: string;
  readonly comment: string;
}

export interface DiffProps {
  readonly change: FileChange;
  /** Side by side is used only if there is room for it. */
  readonly layout?: DiffLayout;
  /** Without it the layout cannot be chosen. */
  readonly onLayout?: (layout: DiffLayout) => void;
  readonly comments?: readonly LineComment[];
  /** Without it lines cannot be commented. */
  readonly onComment?: (comment: LineComment) => void;
  readonly onRemoveComment?: (comment: LineComment) => void;
}

/** Minimum width of two sides, in pixels. */
const ROOM = 700;
/** Rows shown at first, and added on demand: laying out a row takes time. */
const LARGE = 600;
const FIRST = 200;
const FURTHER = 2000;

export function Diff(props: DiffProps) {
  const { change, layout = "unified", onLayout } = props;
  const box = useRef<HTMLElement>(null);
  const hasRoom = useRoom(box, layout === "split");
  const isSplit = layout === "split" && hasRoom;
  return (
    <section class="diff" ref={box} aria-label={`Change of ${change.path}`}>
      <header class="diff-head">
        <ChangedPath change={change} />
        <span class="diff-count">
          {change.added > 0 && <span class="added">+{change.added}</span>}
          {change.removed > 0 && <span class="removed">−{change.removed}</span>}
        </span>
        {onLayout !== undefined && hasRoom && change.lines.length > 0 && (
          <button type="button" class="quiet" onClick={() => onLayout(isSplit ? "unified" : "split")}>
            {isSplit ? "Unified" : "Side by side"}
          </button>
        )}
      </header>
      {change.lines.length > 0 ? (
        <Lines {...props} isSplit={isSplit} />
      ) : (
        <p class="diff-none">{inWords(change)}</p>
      )}
    </section>
  );
}

const OPERATIONS: Readonly<Record<string, string>> = {
  add: "new",
  delete: "deleted",
  move: "moved",
  copy: "copied",
};

function ChangedPath({ change }: { readonly change: FileChange }) {
  const cut = Math.max(change.path.lastIndexOf("/"), change.path.lastIndexOf("\\")) + 1;
  const word = change.operation === "modify" ? "" : (OPERATIONS[change.operation] ?? change.operation);
  const isBad = change.operation === "delete";
  return (
    <span class="diff-path" title={change.path}>
      <span class="diff-folder">{visible(change.path.slice(0, cut))}</span>
      <span class="diff-file">{visible(change.path.slice(cut))}</span>
      {word !== "" && <span class={`badge ${isBad ? "bad" : "info"}`}>{word}</span>}
      {change.oldPath !== undefined && <span class="soft small"> from {visible(change.oldPath)}</span>}
    </span>
  );
}

function inWords(change: FileChange): string {
  if (change.isBinary) return "A binary file. Its content is not shown.";
  if (change.operation === "move" || change.operation === "copy") return "The content is the same.";
  return change.operation === "add" ? "An empty file." : "The agent shows no lines of it.";
}

/** Whether the element is wide enough for two sides. */
function useRoom(box: { readonly current: HTMLElement | null }, isNeeded: boolean): boolean {
  const [hasRoom, setRoom] = useState(false);
  useLayoutEffect(() => {
    const element = box.current!;
    // Measuring forces a layout, so measure before painting only if the first paint depends on it.
    if (isNeeded) setRoom(element.clientWidth >= ROOM);
    const observer = new ResizeObserver(() => setRoom(element.clientWidth >= ROOM));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return hasRoom;
}

// -- lines ----------------------------------------------------------------------------------------------------

interface Place {
  readonly side: Side;
  readonly line: Line;
}

/** Data that all rows share. */
interface LinesContext {
  readonly props: DiffProps;
  readonly html: (line: Line) => string | undefined;
  readonly open: Place | undefined;
  readonly setOpen: (place: Place | undefined) => void;
}

function Lines({ isSplit, ...props }: DiffProps & { readonly isSplit: boolean }) {
  const { change } = props;
  const [unfolded, unfold] = useState<ReadonlySet<Line>>(new Set());
  const [open, setOpen] = useState<Place>();
  const [limit, setLimit] = useState(FIRST);
  const html = useHighlight(change);
  const rows = useMemo(() => shownRows(change, unfolded), [change, unfolded]);
  const all: readonly (Row | Pair)[] = useMemo(() => (isSplit ? sideBySide(rows) : rows), [rows, isSplit]);
  const shown = all.length > LARGE ? all.slice(0, limit) : all;
  const context: LinesContext = { props, html, open, setOpen };
  const columns = isSplit ? 4 : 3;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const stops = box.current!.querySelectorAll<HTMLElement>(".diff-comment");
    if (stops.length > 0 && ![...stops].some((each) => each.tabIndex === 0)) stops[0]!.tabIndex = 0;
  });
  const draw = (row: Row | Pair): JSX.Element => {
    if (row.kind === "gap") return <GapRow columns={columns} gap={row} />;
    if (row.kind === "fold")
      return <FoldRow columns={columns} fold={row} onShow={() => unfold(new Set([...unfolded, row.lines[0]!]))} />;
    return row.kind === "pair" ? (
      <PairRow pair={row} context={context} />
    ) : (
      <UnifiedRow line={row} context={context} />
    );
  };
  return (
    <div class="diff-box" ref={box} onKeyDown={moveFocus} onFocusIn={keepTabStop}>
      <table class={isSplit ? "diff-lines split" : "diff-lines"}>
        {isSplit && (
          <colgroup>
            <col class="narrow" />
            <col />
            <col class="narrow" />
            <col />
          </colgroup>
        )}
        <tbody>{shown.map(draw)}</tbody>
      </table>
      {shown.length < all.length && (
        <button type="button" class="more" onClick={() => setLimit(limit + FURTHER)}>
          Show {Math.min(FURTHER, all.length - shown.length).toLocaleString("en")} more of{" "}
          {all.length.toLocaleString("en")} lines
        </button>
      )}
    </div>
  );
}

function shownRows(change: FileChange, unfolded: ReadonlySet<Line>): Row[] {
  return folded(change.lines).flatMap((row): readonly Row[] =>
    row.kind === "fold" && unfolded.has(row.lines[0]!) ? row.lines : [row],
  );
}

/** Highlight when the browser is idle. */
function useHighlight(change: FileChange): LinesContext["html"] {
  const isReady = isHighlighting.value;
  const [known, setKnown] = useState<{ readonly of: FileChange; readonly html: LinesContext["html"] }>();
  useEffect(
    () =>
      whenIdle(() => {
        const language = languageOfPath(change.path);
        const [old, next] = [htmlOfSide(change, "old", language), htmlOfSide(change, "new", language)];
        const html = (line: Line): string | undefined =>
          line.new === undefined ? old.get(line.old!) : next.get(line.new);
        if (old.size + next.size > 0) setKnown({ of: change, html });
      }),
    [change, isReady],
  );
  return known?.of === change ? known.html : plain;
}

function plain(): undefined {
  return undefined;
}

function htmlOfSide(change: FileChange, side: Side, language: string): ReadonlyMap<number, string> {
  const lines = change.lines.filter((each): each is Line => each.kind !== "gap" && each[side] !== undefined);
  const html = highlightedLines(lines.map((each) => each.text).join("\n"), language);
  return new Map(html?.map((each, index) => [lines[index]![side]!, each]));
}

function GapRow({ columns, gap }: { readonly columns: number; readonly gap: Gap }) {
  return (
    <tr class="diff-fold">
      <td colSpan={columns}>
        {gap.count.toLocaleString("en")} unchanged {gap.count === 1 ? "line" : "lines"}
      </td>
    </tr>
  );
}

function FoldRow({
  columns,
  fold,
  onShow,
}: {
  readonly columns: number;
  readonly fold: Fold;
  readonly onShow: () => void;
}) {
  return (
    <tr class="diff-fold">
      <td colSpan={columns}>
        <button type="button" onClick={onShow}>
          Show {fold.lines.length.toLocaleString("en")} unchanged lines
        </button>
      </td>
    </tr>
  );
}

const SIGNS = { same: " ", added: "+", removed: "−" };

function UnifiedRow({ line, context }: { readonly line: Line; readonly context: LinesContext }) {
  const side: Side = line.kind === "removed" ? "old" : "new";
  return (
    <>
      <tr class={line.kind}>
        <Gutter line={line} side="old" context={context} isPlain={side !== "old"} />
        <Gutter line={line} side="new" context={context} isPlain={side !== "new"} />
        <Words line={line} context={context} />
      </tr>
      <Notes place={{ line, side }} columns={3} context={context} />
      {line.kind === "same" && <Notes place={{ line, side: "old" }} columns={3} context={context} />}
    </>
  );
}

function PairRow({ pair, context }: { readonly pair: Pair; readonly context: LinesContext }) {
  return (
    <>
      <tr class="pair">
        {pair.old ? <Gutter line={pair.old} side="old" context={context} /> : <td class="none" colSpan={2} />}
        {pair.old && <Words line={pair.old} context={context} />}
        {pair.new ? <Gutter line={pair.new} side="new" context={context} /> : <td class="none" colSpan={2} />}
        {pair.new && <Words line={pair.new} context={context} />}
      </tr>
      {pair.old && <Notes place={{ line: pair.old, side: "old" }} columns={4} context={context} />}
      {pair.new && <Notes place={{ line: pair.new, side: "new" }} columns={4} context={context} />}
    </>
  );
}

function Words({ line, context }: { readonly line: Line; readonly context: LinesContext }) {
  const html = context.html(line);
  return (
    <td class={`words ${line.kind}`}>
      <span class="sign">{SIGNS[line.kind]}</span>
      {html === undefined ? <code>{visible(line.text)}</code> : <code dangerouslySetInnerHTML={{ __html: visible(html) }} />}
    </td>
  );
}

interface GutterProps {
  readonly line: Line;
  readonly side: Side;
  readonly context: LinesContext;
  /** The number alone. */
  readonly isPlain?: boolean;
}

function Gutter({ line, side, context, isPlain = false }: GutterProps) {
  const number = line[side];
  const name = `number ${line.kind}`;
  if (isPlain || number === undefined || context.props.onComment === undefined)
    return <td class={name}>{number}</td>;
  return (
    <td class={name}>
      {number}
      <button
        type="button"
        class="diff-comment"
        tabIndex={-1}
        aria-label={`Comment on line ${number}${side === "old" ? " of the old text" : ""}`}
        onClick={() => context.setOpen({ line, side })}
      >
        +
      </button>
    </td>
  );
}

/** Tab reaches one line of a diff; arrow keys move from there. */
function moveFocus(event: KeyboardEvent): void {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  if (!(event.target instanceof HTMLElement) || !event.target.matches(".diff-comment")) return;
  const buttons = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>(".diff-comment")];
  const next = buttons[buttons.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
  if (next === undefined) return;
  event.preventDefault();
  next.focus();
}

function keepTabStop(event: FocusEvent): void {
  if (!(event.target instanceof HTMLElement) || !event.target.matches(".diff-comment")) return;
  const before = (event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>('.diff-comment[tabindex="0"]');
  for (const each of before) each.tabIndex = -1;
  event.target.tabIndex = 0;
}

// -- comments -------------------------------------------------------------------------------------------------

interface NotesProps {
  readonly place: Place;
  readonly columns: number;
  readonly context: LinesContext;
}

function Notes({ place, columns, context }: NotesProps) {
  const { line, side } = place;
  const { change, comments = [], onRemoveComment } = context.props;
  const isOpen = context.open?.line === line && context.open.side === side;
  const here = comments.filter(
    (each) => each.path === change.path && each.side === side && each.line === line[side],
  );
  if (!isOpen && here.length === 0) return null;
  const note = (children: ComponentChildren): JSX.Element => (
    <tr class="diff-note">
      <td colSpan={columns}>{children}</td>
    </tr>
  );
  return (
    <>
      {here.map((each) =>
        note(
          <div class="note">
            <p>{each.comment}</p>
            {onRemoveComment !== undefined && (
              <button type="button" class="quiet" onClick={() => onRemoveComment(each)}>
                Remove
              </button>
            )}
          </div>,
        ),
      )}
      {isOpen && note(<CommentEditor place={place} context={context} />)}
    </>
  );
}

function CommentEditor({ place, context }: Omit<NotesProps, "columns">) {
  const field = useRef<HTMLTextAreaElement>(null);
  const opener = useRef(document.activeElement);
  const { line, side } = place;
  useEffect(() => field.current?.focus(), []);
  const close = (): void => {
    context.setOpen(undefined);
    if (opener.current instanceof HTMLElement) opener.current.focus();
  };
  const add = (event: Event): void => {
    event.preventDefault();
    const comment = field.current!.value.trim();
    if (comment !== "") {
      context.props.onComment?.({
        path: context.props.change.path,
        line: line[side]!,
        side,
        text: line.text,
        comment,
      });
    }
    close();
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) add(event);
  };
  return (
    <form class="note-editor" onSubmit={add}>
      <textarea
        ref={field}
        class="field"
        rows={2}
        aria-label={`Comment on line ${line[side]!}`}
        onKeyDown={press}
      />
      <div class="note-buttons">
        <button type="submit" class="button primary">
          Add comment
        </button>
        <button type="button" class="button" onClick={close}>
          Cancel
        </button>
        <span class="soft small">It goes with your next prompt.</span>
      </div>
    </form>
  );
}
