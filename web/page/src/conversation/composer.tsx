/**
 * Where a prompt is written: text, commands, files, comments on lines. What was sent is cleared when the daemon has
 * accepted it, and appears in the conversation by its event; what was refused stays here.
 */

import { type Signal, useSignal } from "@preact/signals";
import type { AvailableCommand, ContentBlock, WhenBusy } from "@turnwire/client";
import { useEffect, useRef } from "preact/hooks";

import { bytesInWords } from "../content/block.js";
import type { LineComment } from "../content/diff.js";
import { Icon } from "../frame/icon.js";
import { type Attachment, type Takes, attach } from "./attachments.js";
import { promptOf } from "./line_comments.js";
import { LIST_ID, SlashCommands, chosen, fitting, optionId } from "./slash_commands.js";

export interface ComposerProps {
  readonly sessionId: string;
  readonly commands: readonly AvailableCommand[];
  readonly takes: Takes;
  readonly isBusy: boolean;
  readonly comments: Signal<readonly LineComment[]>;
  readonly send: (content: readonly ContentBlock[], whenBusy: WhenBusy | undefined) => Promise<string | undefined>;
  readonly stop: () => void;
}

/** What is typed and not sent, by session: it outlives a look at another session, and a reload. */
function draftKey(sessionId: string): string {
  return `draft ${sessionId}`;
}

export function Composer(props: ComposerProps) {
  const { sessionId, commands, takes, isBusy, comments, send, stop } = props;
  const text = useSignal(sessionStorage.getItem(draftKey(sessionId)) ?? "");
  const files = useSignal<readonly Attachment[]>([]);
  const trouble = useSignal("");
  const isSending = useSignal(false);
  const isOver = useSignal(false);
  const at = useSignal(0);
  /** Escape puts the list of commands away until the text changes. */
  const isPutAway = useSignal(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);

  const write = (words: string) => {
    text.value = words;
    at.value = 0;
    isPutAway.value = false;
    if (words) sessionStorage.setItem(draftKey(sessionId), words);
    else sessionStorage.removeItem(draftKey(sessionId));
  };
  const add = async (wanted: Iterable<File>) => {
    for (const file of wanted) {
      const made = await attach(file, takes);
      if ("why" in made) trouble.value = `${made.name} is not attached. ${made.why}`;
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
    try {
      const note = await send(content, whenBusy);
      write("");
      files.value = [];
      comments.value = [];
      trouble.value = note ?? "";
    } catch (error) {
      trouble.value = error instanceof Error ? error.message : String(error);
    } finally {
      isSending.value = false;
      field.current?.focus();
    }
  };

  // Dropping beside the field is meant for it too; without this the browser would leave the page for the file.
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

  const offered = isPutAway.value ? [] : fitting(text.value, commands);
  const choose = (command: AvailableCommand) => {
    write(chosen(command));
    isPutAway.value = true;
    field.current?.focus();
  };
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
          placeholder={isBusy ? "Ask for what comes next" : "Ask the agent"}
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
            if (offered.length && takeKey(event, offered, at, choose, isPutAway)) return;
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
          <>
            <button
              class="button"
              type="button"
              title="Put this into the running turn, if the agent takes it (Ctrl+Enter)"
              disabled={isSending.value}
              onClick={() => void submit("steer")}
            >
              Steer
            </button>
            <button class="button danger" type="button" onClick={stop}>
              Stop
            </button>
          </>
        ) : null}
        <button class="button primary" type="submit" disabled={isSending.value}>
          {isBusy ? "Queue" : "Send"}
        </button>
      </div>
      <p class="unseen" role="status">
        {offered.length ? `${offered.length} commands fit` : ""}
      </p>
      <p class="trouble small" role="status">
        {trouble}
      </p>
    </form>
  );
}

/** Keys that move in the list of commands. Gives whether it was one. */
function takeKey(
  event: KeyboardEvent,
  offered: readonly AvailableCommand[],
  at: Signal<number>,
  choose: (command: AvailableCommand) => void,
  isPutAway: Signal<boolean>,
): boolean {
  const command = offered[at.value];
  if (event.key === "ArrowDown") at.value = (at.value + 1) % offered.length;
  else if (event.key === "ArrowUp") at.value = (at.value + offered.length - 1) % offered.length;
  else if (event.key === "Escape") isPutAway.value = true;
  else if ((event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) && command) choose(command);
  else return false;
  event.preventDefault();
  event.stopPropagation();
  return true;
}

/** What goes with the text: files, and comments on lines. */
function Parts({
  files,
  comments,
}: {
  readonly files: Signal<readonly Attachment[]>;
  readonly comments: Signal<readonly LineComment[]>;
}) {
  if (files.value.length === 0 && comments.value.length === 0) return null;
  return (
    <ul class="parts" aria-label="Goes with the prompt">
      {files.value.map((each) => (
        <li key={each.id}>
          {each.block.type === "image" ? (
            <img alt="" src={`data:${each.block.mimeType};base64,${each.block.data}`} />
          ) : null}
          <span class="part-name">{each.name}</span> <span class="soft small">{bytesInWords(each.bytes)}</span>
          <Away
            label={`Do not attach ${each.name}`}
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
          <Away
            label="Drop this comment"
            act={() => (comments.value = comments.value.filter((other) => other !== each))}
          />
        </li>
      ))}
    </ul>
  );
}

function Away({ label, act }: { readonly label: string; readonly act: () => void }) {
  return (
    <button class="icon-button" type="button" aria-label={label} title={label} onClick={act}>
      <Icon name="close" />
    </button>
  );
}
