/** A tool call: its title, its state and its content. */

import type { ContentBlock, ToolCallContent } from "@turnwire/client";
import { type ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";

import { durationInWords } from "./amounts.js";
import { bytesOf } from "./ansi.js";
import { ContentBlockView } from "./block.js";
import { fileChanges, type FileChange, type ToldDiff } from "./change.js";
import { Diff, type DiffProps } from "./diff.js";
import { Guard } from "./guard.js";
import { KindIcon, StateIcon } from "./icons.js";
import type { TerminalItem, Terminals, ToolCallItem } from "./items.js";
import { JsonView } from "./json.js";
import { LateMark } from "./marks.js";
import { TerminalOutput } from "./terminal.js";
import {
  changesOf,
  commandOf,
  contentOf,
  exitOf,
  folderOf,
  isAtWork,
  outputOf,
  placesOf,
  stateOf,
  terminalsOf,
  titleOf,
  type ToolState,
  unfenced,
} from "./tool.js";
import { visible } from "./visible.js";

/** The layout and comments of diffs, stored by the caller. */
export type DiffUse = Omit<DiffProps, "change">;

export interface ToolCallCardProps {
  readonly item: ToolCallItem;
  readonly terminals?: Terminals;
  /** Who answered its permission request, in words. */
  readonly answer?: string | undefined;
  /** False if that answer rejected it. */
  readonly isAllowed?: boolean;
  /** Duration in milliseconds, if known. */
  readonly duration?: number;
  /** Whether the reader opened or closed it, if the caller stores that. */
  readonly open?: boolean | undefined;
  readonly onOpen?: (open: boolean) => void;
  readonly diffs?: DiffUse;
  /** Items nested in the call. */
  readonly children?: ComponentChildren;
}

export function ToolCallCard(props: ToolCallCardProps) {
  return (
    <Guard value={props.item}>
      <Card {...props} />
    </Guard>
  );
}

function Card(props: ToolCallCardProps) {
  const { item, terminals, duration, answer, isAllowed = true } = props;
  const [chosen, choose] = useState<boolean>();
  const shown = terminalsOf(item, terminals);
  const exit = exitOf(item, shown);
  const told = stateOf(item, exit);
  // Agents report a rejected call as failed, with a text for their model.
  const state = !isAllowed && told === "failed" ? "not allowed" : told;
  const changes = useMemo(() => changesOf(item), [item.content, item.rawInput]);
  const isOpen = props.open ?? chosen ?? ((state !== "completed" && state !== "not allowed") || changes.length > 0);
  const toggle = (): void => {
    choose(!isOpen);
    props.onOpen?.(!isOpen);
  };
  return (
    <section class={`call ${state.replace(" ", "-")}`}>
      <button type="button" class="call-head" aria-expanded={isOpen} onClick={toggle}>
        <KindIcon kind={item.kind ?? "other"} />
        <span class={commandOf(item, shown) === titleOf(item) ? "call-title mono" : "call-title"}>
          {titleOf(item)}
        </span>
        {!isOpen && <Counts changes={changes} />}
        {item.after !== undefined && <LateMark />}
        {answer !== undefined && <span class="call-answer soft">{answer}</span>}
        <span class="call-state" aria-live="polite">
          <span class={state === "completed" || state === "running" ? "unseen" : ""}>{WORDS[state]}</span>
          {exit !== "" && <span>{exit}</span>}
          {duration !== undefined && <span class="call-time">{durationInWords(duration)}</span>}
          <StateIcon state={state} />
        </span>
      </button>
      {isOpen && <CallBody {...props} shown={shown} changes={changes} state={state} />}
    </section>
  );
}

type ShownState = ToolState | "not allowed";

const WORDS: Readonly<Record<ShownState, string>> = {
  pending: "waiting",
  running: "running",
  paused: "paused",
  completed: "done",
  failed: "failed",
  cancelled: "cancelled",
  "left open": "never finished",
  "not allowed": "not allowed",
};

function Counts({ changes }: { readonly changes: readonly FileChange[] }) {
  const added = changes.reduce((sum, each) => sum + each.added, 0);
  const removed = changes.reduce((sum, each) => sum + each.removed, 0);
  if (added + removed === 0) return null;
  return (
    <span class="diff-count">
      <span class="added">+{added}</span>
      <span class="removed">−{removed}</span>
    </span>
  );
}

interface CallBodyProps extends ToolCallCardProps {
  readonly shown: readonly TerminalItem[];
  readonly changes: readonly FileChange[];
  readonly state: ShownState;
}

function CallBody({ item, terminals, shown, changes, state, diffs, children }: CallBodyProps) {
  const command = commandOf(item, shown);
  const folder = folderOf(item, shown);
  const content = contentOf(item);
  const hasShownDiff = content.some((each) => each.type === "diff");
  const isRun = item.kind === "execute" || command !== undefined;
  const output = content.length === 0 ? outputOf(item) : "";
  return (
    <div class="call-body">
      {command !== undefined && command !== titleOf(item) && <Command command={command} folder={folder} />}
      {changes.length === 0 && <Locations item={item} />}
      {content.map((each, index) => (
        <CallContent
          key={index}
          content={each}
          terminals={terminals}
          isRun={isRun}
          isLive={state !== "not allowed" && isAtWork(state)}
          diffs={diffs}
        />
      ))}
      {!hasShownDiff && changes.map((each) => <Diff key={each.path} {...diffs} change={each} />)}
      {output !== "" && <TerminalOutput output={unfenced(output)} />}
      {children !== undefined && <div class="call-inside">{children}</div>}
      {(item.rawInput !== undefined || item.rawOutput !== undefined) && (
        <div class="call-raw">
          {item.rawInput !== undefined && <JsonView label="Input" value={item.rawInput} />}
          {item.rawOutput !== undefined && <JsonView label="Output" value={item.rawOutput} />}
        </div>
      )}
    </div>
  );
}

/** A command that runs or waits for permission. */
export function Command({ command, folder }: { readonly command: string; readonly folder?: string | undefined }) {
  return (
    <div class="command">
      <pre role="group" tabIndex={0} aria-label="Command">
        <code>{visible(command)}</code>
      </pre>
      {folder !== undefined && <p class="soft small">in {visible(folder)}</p>}
    </div>
  );
}

function Locations({ item }: { readonly item: ToolCallItem }) {
  const unsaid = placesOf(item).filter((each) => !titleOf(item).includes(each));
  if (unsaid.length === 0) return null;
  return (
    <ul class="locations">
      {unsaid.slice(0, 20).map((each) => (
        <li key={each}>{visible(each)}</li>
      ))}
      {unsaid.length > 20 && <li>and {unsaid.length - 20} more</li>}
    </ul>
  );
}

interface CallContentProps {
  readonly content: ToolCallContent;
  readonly terminals: Terminals | undefined;
  readonly isRun: boolean;
  readonly isLive: boolean;
  readonly diffs: DiffUse | undefined;
}

function CallContent({ content, terminals, isRun, isLive, diffs }: CallContentProps) {
  if (content.type === "diff") return <ShownDiff told={content as ToldDiff} diffs={diffs} />;
  if (content.type === "terminal") {
    const [terminal] = terminalsOf({ content: [content] }, terminals);
    return terminal === undefined ? null : <TerminalView terminal={terminal} />;
  }
  const block = content.type === "content" ? (content.content as ContentBlock | undefined) : undefined;
  if (block === undefined)
    return <JsonView label={`Content of the kind ${content.type as string}`} value={content} />;
  // The output of a command is not Markdown, although some agents put a fence around it.
  if (block.type === "text" && isRun) return <TerminalOutput output={unfenced(block.text)} />;
  return <ContentBlockView block={block} streaming={isLive} />;
}

/** Memoized: comparing texts is the most expensive part of a card. */
function ShownDiff({ told, diffs }: { readonly told: ToldDiff; readonly diffs: DiffUse | undefined }) {
  const changes = useMemo(() => fileChanges(told), [told]);
  return (
    <>
      {changes.map((each) => (
        <Diff key={each.path} {...diffs} change={each} />
      ))}
    </>
  );
}

function TerminalView({ terminal }: { readonly terminal: TerminalItem }) {
  const output = terminal.output ?? "";
  return <TerminalOutput output={typeof output === "string" ? bytesOf(output) : output} />;
}
