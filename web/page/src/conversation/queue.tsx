/** The queued prompts of the daemon: shown, edited, moved, removed, held. */

import type { Waiting } from "@turnwire/client/view";
import { useState } from "preact/hooks";

import { Icon, type IconName } from "../frame/icon.js";

export interface QueueActs {
  edit(promptId: string, text: string): Promise<unknown>;
  move(promptId: string, position: number): Promise<unknown>;
  remove(promptId: string): Promise<unknown>;
  hold(held: boolean): Promise<unknown>;
}

const HELD: Readonly<Record<string, string>> = {
  daemon_restarted: "The daemon was restarted. Release the queue to start.",
  place_gone: "No running node can host this session.",
};

export function QueuePanel({
  prompts,
  held,
  acts,
  nameOf,
}: {
  readonly prompts: readonly Waiting[];
  /** Why no prompt starts. */
  readonly held: string | undefined;
  /** Undefined for observers. */
  readonly acts: QueueActs | undefined;
  readonly nameOf: (author: string) => string;
}) {
  if (prompts.length === 0 && held === undefined) return null;
  return (
    <section class="queue" aria-label="Queue">
      <header>
        <strong>{prompts.length} queued</strong>
        {held === undefined ? null : <span class="badge warn">held</span>}
        <span class="soft small grow">{held === undefined ? "" : (HELD[held] ?? "No prompt starts until you release the queue.")}</span>
        {acts ? (
          <button class="button plain small" type="button" onClick={() => void acts.hold(held === undefined)}>
            {held === undefined ? "Hold" : "Release"}
          </button>
        ) : null}
      </header>
      <ol>
        {prompts.map((each, place) => (
          <WaitingPrompt
            key={each.promptId}
            prompt={each}
            place={place}
            count={prompts.length}
            acts={acts}
            nameOf={nameOf}
          />
        ))}
      </ol>
    </section>
  );
}

function WaitingPrompt({
  prompt,
  place,
  count,
  acts,
  nameOf,
}: {
  readonly prompt: Waiting;
  readonly place: number;
  readonly count: number;
  readonly acts: QueueActs | undefined;
  readonly nameOf: (author: string) => string;
}) {
  const [draft, setDraft] = useState<string | undefined>(undefined);
  const { promptId, author, content } = prompt;
  const text = content.map((each) => (each.type === "text" ? each.text : "")).join("");
  // An edit replaces the whole content, so only a prompt of plain text can be edited.
  const isText = content.every((each) => each.type === "text");
  if (draft !== undefined && acts) {
    const save = () => {
      if (draft.trim()) void acts.edit(promptId, draft).then(() => setDraft(undefined));
    };
    return (
      <li>
        <textarea
          class="field grow"
          aria-label="Prompt"
          value={draft}
          ref={(element) => element?.focus()}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") setDraft(undefined);
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              save();
            }
          }}
        />
        <button class="button small" type="button" onClick={save}>
          Save
        </button>
        <button class="button plain small" type="button" onClick={() => setDraft(undefined)}>
          Cancel
        </button>
      </li>
    );
  }
  return (
    <li>
      <span class="place soft small">{place + 1}</span>
      <span class="waiting-text grow" title={text}>
        {text || "(no text)"}
      </span>
      {prompt.steering ? <span class="badge info">steering</span> : null}
      {author ? <span class="soft small">{nameOf(author)}</span> : null}
      {acts ? (
        <span class="acts">
          <IconButton label="Move up" icon="up" isOff={place === 0} act={() => acts.move(promptId, place - 1)} />
          <IconButton
            label="Move down"
            icon="down"
            isOff={place === count - 1}
            act={() => acts.move(promptId, place + 1)}
          />
          {isText ? <IconButton label="Edit" icon="pencil" isOff={false} act={() => setDraft(text)} /> : null}
          <IconButton label="Remove" icon="close" isOff={false} act={() => acts.remove(promptId)} />
        </span>
      ) : null}
    </li>
  );
}

function IconButton({
  label,
  icon,
  isOff,
  act,
}: {
  readonly label: string;
  readonly icon: IconName;
  readonly isOff: boolean;
  readonly act: () => unknown;
}) {
  return (
    <button class="icon-button" type="button" aria-label={label} title={label} disabled={isOff} onClick={() => void act()}>
      <Icon name={icon} />
    </button>
  );
}
