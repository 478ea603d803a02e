/** A permission request: what the agent wants to do, its options, and who answered. */

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
  /** What was told of its tool call before. */
  readonly call?: ToolCallItem | undefined;
  readonly terminals?: Terminals;
  readonly mayAnswer: boolean;
  /** Who can answer, for somebody who may not. */
  readonly answerers?: string;
  readonly resolved?: Resolved | undefined;
  /** While what it gives is under way, nothing else can be answered. */
  readonly onAnswer: (optionId: string) => Promise<unknown> | void;
  readonly diffs?: DiffUse;
  /** Beside the title, such as the session that asks. */
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
    const option = isShortcut(event) ? options[Number(event.key) - 1] : undefined;
    if (option === undefined || !canAnswer) return;
    event.preventDefault();
    answer(option);
  };
  return (
    <RequestCard
      request={request}
      resolved={resolved}
      kind={asked.kind}
      title={asked.title}
      head={props.children}
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
              {optionName(each)}
              {index < 9 && <kbd aria-hidden="true">{index + 1}</kbd>}
            </button>
          ))}
        </div>
      )}
      {!mayAnswer && resolved === undefined && (
        <p class="soft small">Waiting for {props.answerers ?? "somebody who may answer"}.</p>
      )}
    </RequestCard>
  );
}

/** A number alone, and not one that is typed into a field. */
function isShortcut(event: KeyboardEvent): boolean {
  const isField = event.target instanceof Element && event.target.closest("input, textarea, select") !== null;
  return /^[1-9]$/.test(event.key) && !isField && !event.ctrlKey && !event.metaKey && !event.altKey;
}

function tone({ kind = "" }: PermissionOption): string {
  if (kind === "allow_once") return "primary";
  return kind.startsWith("reject") ? "danger" : "";
}

/** Sends one answer; says whether one is under way or delivered. */
export function useSending(): [boolean, (send: () => Promise<unknown> | void) => void] {
  const [isSending, setSending] = useState(false);
  const start = (send: () => Promise<unknown> | void): void => {
    const under = send();
    if (under === undefined) return;
    setSending(true);
    // Once it is delivered, the request will be told to be over. What went wrong the caller tells; here it can be
    // tried again.
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
          This request has invisible characters, or some that turn text round. They are shown as marks such as
          ⟨U+202E⟩.
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
        <JsonView label="All that it is given" value={asked.rawInput} open={!isShown} />
      )}
    </>
  );
}

// -- what forms have, too -------------------------------------------------------------------------------------

interface RequestCardProps {
  readonly request: PermissionMembers;
  readonly resolved: Resolved | undefined;
  readonly kind: string;
  readonly title: string;
  readonly head: ComponentChildren;
  readonly children: ComponentChildren;
  readonly onKeyDown?: (event: KeyboardEvent) => void;
}

/** A request of the agent with its title, and with its outcome once it has one. */
export function RequestCard({ request, resolved, kind, title, head, children, onKeyDown }: RequestCardProps) {
  const id = useId();
  const card = useRef<HTMLElement>(null);
  const isOver = resolved !== undefined;
  const hasFocus = useRef(false);
  useEffect(() => {
    // The button that had the focus is gone; who works by keyboard stays here.
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
