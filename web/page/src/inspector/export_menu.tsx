/** Downloads: the log, and the conversation as Markdown. */

import { useSignal } from "@preact/signals";
import type { Transcript } from "@turnwire/client";

import { base, pageKey } from "../frame/page_key.js";
import { tellError } from "../frame/toasts.js";
import { CopyButton } from "./event_pane.js";
import { Disclosure } from "./filters.js";
import { assembled, markdownOf } from "./markdown.js";

/** Download the log of a session. A plain link would lack the page key; browsers store a large blob on disk. */
async function exported(sessionId: string): Promise<Blob> {
  const key = pageKey();
  const address = new URL(`session/${encodeURIComponent(sessionId)}/export`, base);
  const answer = await fetch(address, { headers: key ? { "Turnwire-Page-Key": key } : {} });
  if (!answer.ok) throw new Error(`The daemon does not export this session (${answer.status}).`);
  return await answer.blob();
}

function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

export interface ExportMenuProps {
  readonly sessionId: string;
  /** Return the pages of the whole transcript, newest first. */
  readonly readTranscript: () => Promise<readonly Transcript[]>;
}

export function ExportMenu({ sessionId, readTranscript }: ExportMenuProps) {
  const thoughts = useSignal(false);
  const isMaking = useSignal(false);
  const markdown = async () => {
    isMaking.value = true;
    try {
      return markdownOf(assembled(await readTranscript()), { thoughts: thoughts.value });
    } finally {
      isMaking.value = false;
    }
  };
  const save = async () => download(new Blob([await markdown()], { type: "text/markdown" }), `${sessionId}.md`);
  const saveLog = async () => {
    isMaking.value = true;
    try {
      download(await exported(sessionId), `${sessionId}.ndjson`);
    } finally {
      isMaking.value = false;
    }
  };
  return (
    <Disclosure kind="inspector-export" words="Export">
      <div class="inspector-menu">
        <h3>The log</h3>
        <button type="button" class="button" disabled={isMaking.value} onClick={() => void saveLog().catch(tellError)}>
          Save every event (NDJSON)
        </button>
        <h3>The conversation</h3>
        <label>
          <input
            type="checkbox"
            checked={thoughts.value}
            onChange={(event) => (thoughts.value = event.currentTarget.checked)}
          />
          With thoughts
        </label>
        <button type="button" class="button" disabled={isMaking.value} onClick={() => void save().catch(tellError)}>
          Save as markdown
        </button>
        <CopyButton text={markdown} label="Copy as markdown" />
      </div>
    </Disclosure>
  );
}
