/** The card of a permission request: its subject, its options, and the answer. */

import type { PermissionMembers, PermissionOption } from "@turnwire/client";
import { type ComponentChildren } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";

import { askedOf, type Asked, optionName, optionsOf, outcomeInWords, type Resolved, wasAllowed } from "./asked.js";
import { Command, type DiffUse } from "./call.js";
import { Diff } from "./diff.js";
import { Guard } from "./guard.js";
import { KindIcon, StateIcon } from "./icons.js";
import type { Terminals, ToolCallItem } from "./items.js";
import { JsonView } from "./json.js";
import { Markdown } from "./markdown.js";
import { visible } from "./visible.js";

export interface PermissionCardProps {
  readonly request: PermissionMembers;
  /** Its tool call, as reported before. */
  readonly call?: ToolCallItem | undefined;
  readonly terminals?: Terminals;
  readonly mayAnswer: boolean;
  readonly resolved?: Resolved | undefined;
  /** No second answer can be given until the promise settles. */
  readonly onAnswer: (optionId: string) => Promise<unknown> | void;
  readonly diffs?: DiffUse;
  /** Shown next to the title, such as the session. */
  readonly children?: ComponentChildren;
}

export function PermissionCard(props: PermissionCardProps) {
  const { request, call, terminals, mayAnswer, resolved, onAnswer } = props;
  const asked = useMemo(() => askedOf(request, call, terminals), [request, call, terminals]);
  const options = optionsOf(request);
  const [isSending, send] = useSending();
  const canAnswer = mayAnswer && resolved === undefined;
  const answer = (option: PermissionOption): void => {
    if (canAnswer && !isSending) send(() => onAnswer(option.optionId));
  };
  const press = (event: KeyboardEvent): void => {
    const option = isNumberKey(event) && !isInField(event) ? options[Number(event.key) - 1] : undefined;
    if (option === undefined || !canAnswer) return;
    event.preventDefault();
    answer(option);
  };
  return (
    <RequestCard
      request={request}
      resolved={resolved}
      kind={asked.kind}
      title={titleOf(asked)}
      head={
        <>
          <span class="badge warn">Permission</span>
          {props.children}
        </>
      }
      onKeyDown={press}
    >
      <Guard value={request.params}>
        <AskedView asked={asked} diffs={props.diffs} />
      </Guard>
      {canAnswer && (
        <div class="options">
          {options.map((each, index) => (
            <button
              key={each.optionId}
              type="button"
              class={`button ${tone(each)}`}
              disabled={isSending}
              aria-keyshortcuts={index < 9 ? String(index + 1) : undefined}
              onClick={() => answer(each)}
            >
              <OptionName option={each} />
              {index < 9 && <kbd aria-hidden="true">{index + 1}</kbd>}
            </button>
          ))}
        </div>
      )}
      {!mayAnswer && resolved === undefined && (
        <p class="soft small">{WAITING}</p>
      )}
    </RequestCard>
  );
}

export const WAITING = "Waiting for someone with permission to answer.";

/** Return the card's title. A title that only repeats the command becomes a question. */
function titleOf({ title, command }: Asked): string {
  const bare = title.replace(/`/g, "").replace(/^run:? /i, "").trim();
  return command !== undefined && bare === command.trim() ? "Run this command?" : title;
}

/** The name of an option; parts between backticks are code. */
function OptionName({ option }: { readonly option: PermissionOption }) {
  const parts = optionName(option).split("`");
  if (parts.length % 2 === 0) return <>{optionName(option)}</>;
  return <span>{parts.map((each, index) => (index % 2 === 1 ? <code key={index}>{each}</code> : each))}</span>;
}

/** Whether a key event is a digit from 1 to 9 without modifiers. */
export function isNumberKey(event: KeyboardEvent): boolean {
  return /^[1-9]$/.test(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey;
}

function isInField({ target }: KeyboardEvent): boolean {
  return target instanceof Element && target.closest("input, textarea, select") !== null;
}

function tone({ kind = "" }: PermissionOption): string {
  if (kind === "allow_once") return "primary";
  return kind.startsWith("reject") ? "danger" : "";
}

/** Return whether an answer is being sent or was delivered, and a function that sends one. */
export function useSending(): [boolean, (send: () => Promise<unknown> | void) => void] {
  const [isSending, setSending] = useState(false);
  const start = (send: () => Promise<unknown> | void): void => {
    const under = send();
    if (under === undefined) return;
    setSending(true);
    // After a delivery the daemon closes the request. After an error, which the caller shows, it can be answered again.
    under.then(undefined, () => setSending(false));
  };
  return [isSending, start];
}

function AskedView({ asked, diffs }: { readonly asked: Asked; readonly diffs: DiffUse | undefined }) {
  const isShown = asked.command !== undefined || asked.changes.length > 0 || asked.text !== "";
  return (
    <>
      {asked.hasMarks && (
        <p class="marks-warning" role="note">
          This request contains invisible characters or characters that reverse text. They are shown as marks such
          as ⟨U+202E⟩.
        </p>
      )}
      {asked.description !== "" && <Markdown text={asked.description} />}
      {asked.command !== undefined && <Command command={asked.command} folder={asked.folder} />}
      {asked.changes.map((each) => (
        <Diff key={each.path} {...diffs} change={each} />
      ))}
      {asked.changes.length === 0 && asked.locations.length > 0 && (
        <ul class="locations">
          {asked.locations.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      {asked.text !== "" && asked.text !== asked.command && <Markdown text={asked.text} />}
      {asked.rawInput !== undefined && (
        <JsonView label="Full input" value={asked.rawInput} open={!isShown} />
      )}
    </>
  );
}

// -- shared with forms ----------------------------------------------------------------------------------------

interface RequestCardProps {
  readonly request: PermissionMembers;
  readonly resolved: Resolved | undefined;
  readonly kind: string;
  readonly title: string;
  readonly head: ComponentChildren;
  readonly children: ComponentChildren;
  readonly onKeyDown?: (event: KeyboardEvent) => void;
}

/** A request of the agent with its title and, once closed, its outcome. */
export function RequestCard({ request, resolved, kind, title, head, children, onKeyDown }: RequestCardProps) {
  const id = useId();
  const card = useRef<HTMLElement>(null);
  const isOver = resolved !== undefined;
  const hasFocus = useRef(false);
  useEffect(() => {
    // The button that had the focus is gone. Keep the focus here for keyboard users.
    const isNowhere = document.activeElement === null || document.activeElement === document.body;
    if (isOver && hasFocus.current && isNowhere) card.current?.focus({ preventScroll: true });
  }, [isOver]);
  const state = resolved === undefined ? "" : wasAllowed(request, resolved) ? "completed" : "cancelled";
  return (
    <section
      class={isOver ? "request over" : "request"}
      ref={card}
      role="group"
      tabIndex={isOver ? -1 : 0}
      aria-labelledby={id}
      onFocusIn={() => (hasFocus.current = true)}
      onFocusOut={(event) => (hasFocus.current = event.relatedTarget === null)}
      {...(onKeyDown && { onKeyDown })}
    >
      <header class="request-head">
        <KindIcon kind={kind} />
        <h3 id={id}>{visible(title)}</h3>
        {head}
      </header>
      {children}
      <p class="outcome" aria-live="polite">
        {resolved !== undefined && (
          <>
            <StateIcon state={state} />
            {outcomeInWords(request, resolved)}
          </>
        )}
      </p>
    </section>
  );
}
