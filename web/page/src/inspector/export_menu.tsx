/** What can be taken along: the log as it is, the conversation as markdown. */

import { useSignal } from "@preact/signals";
import type { Transcript } from "@turnwire/client";

import { tellError } from "../frame/toasts.js";
import { CopyButton } from "./event_pane.js";
import { Disclosure } from "./filters.js";
import { assembled, markdownOf } from "./markdown.js";

export interface ExportMenuProps {
  readonly sessionId: string;
  /** The pages of the whole transcript, from the newest to the oldest. */
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
  const save = async () => {
    const address = URL.createObjectURL(new Blob([await markdown()], { type: "text/markdown" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${sessionId}.md`;
    link.click();
    URL.revokeObjectURL(address);
  };
  return (
    <Disclosure kind="inspector-export" words="Export">
      <div class="inspector-menu">
        <h3>The log</h3>
        <a class="button" href={`session/${encodeURIComponent(sessionId)}/export`} download={`${sessionId}.ndjson`}>
          Save every event (NDJSON)
        </a>
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
