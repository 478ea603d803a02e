/** The form of a new session: agent, folder, and optionally the first prompt. */

import { useSignal } from "@preact/signals";
import type { HostedAgent } from "@turnwire/client";
import { useEffect, useId, useRef } from "preact/hooks";

import { focusComposerOf } from "../conversation/composer.js";
import { Dialog, closeDialog, openDialog } from "../frame/dialog.js";
import { keepText, keptText } from "../frame/kept.js";
import { sentence, tellError, wordsOf } from "../frame/toasts.js";
import { go } from "../route.js";
import { type Daemon, mayControl } from "../state/daemon.js";

const STATE_WORDS: Readonly<Record<string, string>> = { starting: ", starting", unavailable: ", not available" };
const OTHER = "";

/** Whether the caller may create sessions. A credential for one session does not allow it. */
export function mayCreate(daemon: Daemon): boolean {
  return mayControl(daemon.caller) && daemon.caller.sessionId === undefined;
}

export function openNewSession(daemon: Daemon): void {
  openDialog(() => (
    <Dialog title="New session" kind="new-session">
      <NewSessionForm daemon={daemon} />
    </Dialog>
  ));
}

/** Label of the built-in agent without a model, which has demonstrations. */
const NO_MODEL = "(no model)";
const DEMONSTRATIONS = ["What is in this folder?", "/demo", "/demo permission"];
const SUGGESTIONS = ["What is in this folder?", "Explain how this project works.", "Find a bug and propose a fix."];

export function NewSessionForm({ daemon }: { readonly daemon: Daemon }) {
  const { workspaces } = daemon.client.capabilities;
  const agents = useSignal<readonly HostedAgent[]>([]);
  const agent = useSignal(keptText("new.agent") ?? "");
  const lastFolder = keptText("new.folder") ?? workspaces[0]?.cwd ?? "";
  const workspace = useSignal(workspaces.some((each) => each.cwd === lastFolder) ? lastFolder : OTHER);
  const folder = useSignal(lastFolder);
  const prompt = useSignal("");
  const problem = useSignal("");
  const isBusy = useSignal(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const id = useId();
  const isTouch = matchMedia("(pointer: coarse)").matches;

  useEffect(() => {
    if (!isTouch && document.activeElement === document.body) field.current?.focus();
    daemon.client.agents().then(
      (found) => {
        agents.value = found;
        // The agent that was chosen last may have been removed.
        if (!found.some((each) => each.name === agent.value)) {
          agent.value = (found.find((each) => each.default) ?? found[0])?.name ?? "";
        }
      },
      (error: unknown) => {
        problem.value = wordsOf(error);
      },
    );
  }, []);

  const create = async () => {
    if (isBusy.value) return;
    isBusy.value = true;
    problem.value = "";
    try {
      const cwd = folder.value.trim();
      const { sessionId } = await daemon.client.open({
        ...(cwd ? { cwd } : {}),
        ...(agent.value ? { agent: agent.value } : {}),
      });
      keepText("new.agent", agent.value);
      keepText("new.folder", cwd);
      const said = prompt.value;
      closeDialog();
      focusComposerOf(sessionId);
      go({ at: "session", sessionId });
      if (said.trim()) await daemon.client.session(sessionId).submit(said).catch(tellError);
    } catch (error) {
      problem.value = wordsOf(error);
    } finally {
      isBusy.value = false;
    }
  };

  const chosen = agents.value.find((each) => each.name === agent.value);
  return (
    <form
      class="new-session-form"
      onSubmit={(event) => {
        event.preventDefault();
        void create();
      }}
      onKeyDown={(event) => {
        const isSent = event.ctrlKey || event.metaKey || (event.target === field.current && !event.shiftKey && !isTouch);
        if (event.key !== "Enter" || event.isComposing || !isSent) return;
        event.preventDefault();
        void create();
      }}
    >
      <label for={`${id}p`}>First prompt</label>
      <textarea
        id={`${id}p`}
        class="field"
        ref={field}
        rows={3}
        placeholder="What should the agent do? (optional)"
        data-first
        value={prompt}
        onInput={(event) => (prompt.value = event.currentTarget.value)}
      />
      <ul class="suggestions" aria-label="Suggestions">
        {(chosen?.label.endsWith(NO_MODEL) ? DEMONSTRATIONS : SUGGESTIONS).map((each) => (
          <li key={each}>
            <button
              type="button"
              class="button small"
              onClick={() => {
                prompt.value = each;
                field.current?.focus();
              }}
            >
              {each}
            </button>
          </li>
        ))}
      </ul>
      <div class="new-session-where">
        {agents.value.length === 1 && (
          <div>
            <span class="label">Agent</span>
            <span class="field only">{chosen?.label}</span>
          </div>
        )}
        {agents.value.length > 1 && (
          <div>
            <label for={`${id}a`}>Agent</label>
            <select id={`${id}a`} class="field" value={agent.value} onChange={(event) => (agent.value = event.currentTarget.value)}>
              {agents.value.map((each) => (
                <option key={each.name} value={each.name}>
                  {each.label}
                  {STATE_WORDS[each.state] ?? ""}
                </option>
              ))}
            </select>
          </div>
        )}
        <div>
          <label for={`${id}w`}>Folder</label>
          <select
            id={`${id}w`}
            class="field"
            value={workspace.value}
            onChange={(event) => {
              workspace.value = event.currentTarget.value;
              if (workspace.value !== OTHER) folder.value = workspace.value;
            }}
          >
            {workspaces.map((each) => (
              <option key={each.cwd} value={each.cwd}>
                {each.cwd}
              </option>
            ))}
            <option value={OTHER}>Another folder…</option>
          </select>
        </div>
        {workspace.value === OTHER && (
          <div>
            <label for={`${id}f`}>Folder path</label>
            <input
              id={`${id}f`}
              class="field mono"
              spellcheck={false}
              placeholder={`${workspaces[0]?.cwd ?? ""}/…`}
              value={folder}
              onInput={(event) => (folder.value = event.currentTarget.value)}
            />
          </div>
        )}
      </div>
      {chosen?.why && <p class="soft small">{sentence(chosen.why)}</p>}
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      <div class="dialog-acts">
        <button type="submit" class="button primary" disabled={isBusy.value}>
          {isBusy.value ? "Starting…" : prompt.value.trim() ? "Start and send" : "Start session"}
        </button>
      </div>
    </form>
  );
}
