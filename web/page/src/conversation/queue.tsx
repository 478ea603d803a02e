/** The prompts that wait, as the daemon has them: shown, changed, moved, removed, held. */

import type { QueuedPrompt } from "@turnwire/client";
import { useState } from "preact/hooks";

export interface QueueActs {
  edit(promptId: string, text: string): Promise<unknown>;
  move(promptId: string, position: number): Promise<unknown>;
  remove(promptId: string): Promise<unknown>;
  hold(held: boolean): Promise<unknown>;
}

const HELD: Readonly<Record<string, string>> = {
  daemon_restarted: "The daemon was restarted. Nothing starts until you let it.",
};

export function QueuePanel({
  prompts,
  held,
  acts,
}: {
  readonly prompts: readonly QueuedPrompt[];
  /** Why nothing starts. */
  readonly held: string | undefined;
  /** None for those who may only look. */
  readonly acts: QueueActs | undefined;
}) {
  if (prompts.length === 0 && held === undefined) return null;
  return (
    <section class="queue" aria-label="Queue">
      <header>
        <strong>{prompts.length === 1 ? "1 prompt waits" : `${prompts.length} prompts wait`}</strong>
        {held === undefined ? null : <span class="badge warn">held</span>}
        <span class="soft small grow">{held === undefined ? "" : (HELD[held] ?? "Nothing starts until it is released.")}</span>
        {acts ? (
          <button class="button plain small" type="button" onClick={() => void acts.hold(held === undefined)}>
            {held === undefined ? "Hold" : "Release"}
          </button>
        ) : null}
      </header>
      <ol>
        {prompts.map((each, place) => (
          <Waiting key={each.promptId} prompt={each} place={place} count={prompts.length} acts={acts} />
        ))}
      </ol>
    </section>
  );
}

function Waiting({
  prompt,
  place,
  count,
  acts,
}: {
  readonly prompt: QueuedPrompt;
  readonly place: number;
  readonly count: number;
  readonly acts: QueueActs | undefined;
}) {
  const [draft, setDraft] = useState<string | undefined>(undefined);
  const { promptId, text, author, content } = prompt;
  // An edit replaces the whole content, so what has more than text is not edited as text.
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
          Leave as it was
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
      {author ? <span class="soft small">{author}</span> : null}
      {acts ? (
        <span class="acts">
          <IconButton label="Move up" sign="↑" isOff={place === 0} act={() => acts.move(promptId, place - 1)} />
          <IconButton
            label="Move down"
            sign="↓"
            isOff={place === count - 1}
            act={() => acts.move(promptId, place + 1)}
          />
          {isText ? <IconButton label="Edit" sign="✎" isOff={false} act={() => setDraft(text)} /> : null}
          <IconButton label="Remove" sign="×" isOff={false} act={() => acts.remove(promptId)} />
        </span>
      ) : null}
    </li>
  );
}

function IconButton({
  label,
  sign,
  isOff,
  act,
}: {
  readonly label: string;
  readonly sign: string;
  readonly isOff: boolean;
  readonly act: () => unknown;
}) {
  return (
    <button class="button plain icon" type="button" aria-label={label} title={label} disabled={isOff} onClick={() => void act()}>
      <span aria-hidden="true">{sign}</span>
    </button>
  );
}
