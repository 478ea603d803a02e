/**
 * The prompt field, with commands, files and comments on lines. The field is cleared when the daemon has accepted the
 * prompt, which then appears in the conversation by its event. A rejected prompt stays in the field.
 */

import { type Signal, useSignal } from "@preact/signals";
import type { AvailableCommand, ContentBlock, WhenBusy } from "@turnwire/client";
import { useEffect, useRef } from "preact/hooks";

import { bytesInWords } from "../content/block.js";
import type { LineComment } from "../content/diff.js";
import { Icon } from "../frame/icon.js";
import { type MenuEntry, toggleMenu } from "../frame/menu.js";
import { isAway } from "../frame/link_mark.js";
import { wordsOf } from "../frame/toasts.js";
import { type Attachment, type Takes, attach } from "./attachments.js";
import { promptOf } from "./line_comments.js";
import { LIST_ID, SlashCommands, chosen, fitting, optionId } from "./slash_commands.js";

export interface ComposerProps {
  readonly sessionId: string;
  readonly commands: readonly AvailableCommand[];
  readonly takes: Takes;
  readonly isBusy: boolean;
  readonly comments: Signal<readonly LineComment[]>;
  /** Send a prompt. The result is a note for the user, if there is one. `signal` gives up waiting for the daemon. */
  readonly send: (
    content: readonly ContentBlock[],
    whenBusy: WhenBusy | undefined,
    signal: AbortSignal,
  ) => Promise<string | undefined>;
  readonly stop: () => void;
}

/** The session whose composer takes the focus when it is shown: the one that was created last. */
let focusedNext: string | undefined;

export function focusComposerOf(sessionId: string): void {
  focusedNext = sessionId;
}

/** The key of a session's draft, which survives a reload and a visit to another session. */
function draftKey(sessionId: string): string {
  return `draft ${sessionId}`;
}

export function Composer(props: ComposerProps) {
  const { sessionId, commands, takes, isBusy, comments, send, stop } = props;
  const text = useSignal(sessionStorage.getItem(draftKey(sessionId)) ?? "");
  const files = useSignal<readonly Attachment[]>([]);
  const trouble = useSignal("");
  const isSending = useSignal(false);
  const sending = useRef<AbortController>(undefined);
  const isOver = useSignal(false);
  const at = useSignal(0);
  /** Escape hides the list of commands until the text changes. */
  const isHidden = useSignal(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);

  const write = (words: string) => {
    text.value = words;
    at.value = 0;
    isHidden.value = false;
    if (words) sessionStorage.setItem(draftKey(sessionId), words);
    else sessionStorage.removeItem(draftKey(sessionId));
  };
  const add = async (wanted: Iterable<File>) => {
    for (const file of wanted) {
      const made = await attach(file, takes);
      if ("why" in made) trouble.value = `${made.name} was not attached. ${made.why}`;
      else files.value = [...files.value, made];
    }
  };
  const submit = async (whenBusy?: WhenBusy) => {
    const words = promptOf(text.value, comments.value);
    if (isSending.value || (!words && files.value.length === 0)) return;
    isSending.value = true;
    trouble.value = "";
    const content: ContentBlock[] = files.value.map((each) => each.block);
    if (words) content.push({ type: "text", text: words });
    sending.current = new AbortController();
    try {
      const note = await send(content, whenBusy, sending.current.signal);
      write("");
      files.value = [];
      comments.value = [];
      trouble.value = note ?? "";
    } catch (error) {
      if (!sending.current.signal.aborted) trouble.value = wordsOf(error);
    } finally {
      isSending.value = false;
      field.current?.focus();
    }
  };

  useEffect(() => {
    if (focusedNext !== sessionId) return;
    focusedNext = undefined;
    field.current?.focus();
  }, []);
  useEffect(() => () => sending.current?.abort(), []);
  // A file dropped anywhere is attached; without this the browser would leave the page and open the file.
  useEffect(() => {
    const over = (event: DragEvent) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      isOver.value = true;
    };
    const drop = (event: DragEvent) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      isOver.value = false;
      void add(event.dataTransfer.files);
    };
    const leave = (event: DragEvent) => {
      if (event.relatedTarget === null) isOver.value = false;
    };
    addEventListener("dragover", over);
    addEventListener("drop", drop);
    addEventListener("dragleave", leave);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("drop", drop);
      removeEventListener("dragleave", leave);
    };
  }, [takes]);

  const offered = isHidden.value ? [] : fitting(text.value, commands);
  const choose = (command: AvailableCommand) => {
    write(chosen(command));
    isHidden.value = true;
    field.current?.focus();
  };
  const isEmpty = !text.value.trim() && files.value.length === 0 && comments.value.length === 0;
  const waysToSend = (): MenuEntry[] => [
    { words: "Queue: send when this turn ends", icon: "plus", run: () => void submit() },
    { words: "Steer: put it into this turn (Ctrl+Enter)", icon: "up", run: () => void submit("steer") },
  ];
  const isTouch = matchMedia("(pointer: coarse)").matches;

  return (
    <form
      class={isOver.value ? "composer over" : "composer"}
      aria-label="Prompt"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <Parts files={files} comments={comments} />
      {offered.length ? <SlashCommands commands={offered} at={at.value} onChoose={choose} /> : null}
      <div class="composer-row">
        <textarea
          ref={field}
          class="composer-field"
          rows={1}
          placeholder={isBusy ? "Queue a follow-up" : "Ask the agent"}
          aria-label="Prompt"
          aria-autocomplete="list"
          aria-controls={offered.length ? LIST_ID : undefined}
          aria-activedescendant={offered.length ? optionId(at.value) : undefined}
          value={text.value}
          onInput={(event) => write(event.currentTarget.value)}
          onPaste={(event) => {
            if (!event.clipboardData?.files.length) return;
            event.preventDefault();
            void add(event.clipboardData.files);
          }}
          onKeyDown={(event) => {
            if (event.isComposing) return;
            if (offered.length && moveInList(event, offered, at, choose, isHidden)) return;
            if (event.key !== "Enter" || event.shiftKey || (isTouch && !event.ctrlKey)) return;
            event.preventDefault();
            void submit(isBusy && (event.ctrlKey || event.metaKey) ? "steer" : undefined);
          }}
        />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            void add([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <button
          class="icon-button"
          type="button"
          aria-label="Attach files"
          title="Attach files"
          onClick={() => picker.current?.click()}
        >
          <Icon name="attach" />
        </button>
        {isBusy ? (
          <button
            class={isEmpty ? "button primary" : "icon-button"}
            type="button"
            aria-label="Stop"
            title="Stop the turn"
            onClick={stop}
          >
            <Icon name="stop" />
            {isEmpty ? "Stop" : null}
          </button>
        ) : null}
        {isBusy && isEmpty ? null : (
          <button class="button primary" type="submit" disabled={isSending.value}>
            {isSending.value ? "Sending…" : isBusy ? "Queue" : "Send"}
          </button>
        )}
        {isBusy && !isEmpty ? (
          <button
            class="icon-button"
            type="button"
            aria-label="More ways to send"
            title="More ways to send"
            aria-haspopup="menu"
            aria-expanded="false"
            disabled={isSending.value}
            onClick={(event) => toggleMenu(event.currentTarget, waysToSend())}
          >
            <Icon name="dots" />
          </button>
        ) : null}
      </div>
      <p class="unseen" role="status">
        {offered.length ? `${offered.length} ${offered.length === 1 ? "command matches" : "commands match"}` : ""}
      </p>
      <Delivery isSending={isSending.value} cancel={() => sending.current?.abort()} />
      <p class="trouble small" role="status">
        {trouble}
      </p>
    </form>
  );
}

/** What happens to a prompt that is sent while the daemon is away. */
function Delivery({ isSending, cancel }: { readonly isSending: boolean; readonly cancel: () => void }) {
  if (!isSending || !isAway.value) return null;
  return (
    <p class="delivery small" role="status">
      <span>The daemon is away. Your prompt is sent as soon as it is back.</span>
      <button class="button plain small" type="button" onClick={cancel}>
        Don't send
      </button>
    </p>
  );
}

/** Handle a key that moves in the list of commands. Return whether it was one. */
function moveInList(
  event: KeyboardEvent,
  offered: readonly AvailableCommand[],
  at: Signal<number>,
  choose: (command: AvailableCommand) => void,
  isHidden: Signal<boolean>,
): boolean {
  const command = offered[at.value];
  if (event.key === "ArrowDown") at.value = (at.value + 1) % offered.length;
  else if (event.key === "ArrowUp") at.value = (at.value + offered.length - 1) % offered.length;
  else if (event.key === "Escape") isHidden.value = true;
  else if ((event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) && command) choose(command);
  else return false;
  event.preventDefault();
  event.stopPropagation();
  return true;
}

/** The files and line comments of the prompt. */
function Parts({
  files,
  comments,
}: {
  readonly files: Signal<readonly Attachment[]>;
  readonly comments: Signal<readonly LineComment[]>;
}) {
  if (files.value.length === 0 && comments.value.length === 0) return null;
  return (
    <ul class="parts" aria-label="Attached to the prompt">
      {files.value.map((each) => (
        <li key={each.id}>
          {each.block.type === "image" ? (
            <img alt="" src={`data:${each.block.mimeType};base64,${each.block.data}`} />
          ) : null}
          <span class="part-name">{each.name}</span> <span class="soft small">{bytesInWords(each.bytes)}</span>
          <RemoveButton
            label={`Remove ${each.name}`}
            act={() => (files.value = files.value.filter((other) => other !== each))}
          />
        </li>
      ))}
      {comments.value.map((each) => (
        <li key={`${each.path}:${each.side}:${each.line}:${each.comment}`}>
          <span class="part-name mono small">
            {each.path.split("/").at(-1)}:{each.line}
          </span>{" "}
          <span class="part-name">{each.comment}</span>
          <RemoveButton
            label="Remove this comment"
            act={() => (comments.value = comments.value.filter((other) => other !== each))}
          />
        </li>
      ))}
    </ul>
  );
}

function RemoveButton({ label, act }: { readonly label: string; readonly act: () => void }) {
  return (
    <button class="icon-button" type="button" aria-label={label} title={label} onClick={act}>
      <Icon name="close" />
    </button>
  );
}
