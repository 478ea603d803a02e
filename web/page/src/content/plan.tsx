/** The agent's plan with the state of each step. */

import type { PlanEntry } from "@turnwire/client";

import { StateIcon } from "./icons.js";
import { JsonView } from "./json.js";
import { Markdown } from "./markdown.js";
import { members, text } from "./told.js";

export interface PlanViewProps {
  /** As the agent reported it: `entries`, or in v2 also Markdown `content`, or the `uri` of a file. */
  readonly plan: unknown;
  readonly title?: string;
}

const STATES: Readonly<Record<string, string>> = {
  pending: "pending",
  in_progress: "running",
  completed: "completed",
  cancelled: "cancelled",
};
const WORDS: Readonly<Record<string, string>> = {
  pending: "to do",
  running: "in progress",
  completed: "done",
  cancelled: "dropped",
};

export function PlanView({ plan, title = "Plan" }: PlanViewProps) {
  const told = members(plan);
  const entries = Array.isArray(told["entries"]) ? told["entries"].map(readEntry) : undefined;
  const [content, uri] = [text(told["content"]), text(told["uri"])];
  return (
    <section class="plan" aria-label={title}>
      <header class="plan-head">
        <span>{title}</span>
        {entries !== undefined && <PlanProgress entries={entries} />}
      </header>
      {entries !== undefined && (
        <ol class="plan-entries">
          {entries.map((each, index) => (
            <PlanLine key={index} entry={each} />
          ))}
        </ol>
      )}
      {content !== "" && <Markdown text={content} />}
      {uri !== "" && <p class="address">{uri}</p>}
      {entries === undefined && content === "" && uri === "" && (
        <JsonView label="Plan as the agent reported it" value={plan} />
      )}
    </section>
  );
}

function readEntry(told: unknown): PlanEntry {
  const { content, priority, status } = members(told);
  return { content: text(content), priority: text(priority), status: text(status) };
}

export function PlanProgress({ entries }: { readonly entries: readonly PlanEntry[] }) {
  const wanted = entries.filter((each) => each.status !== "cancelled");
  const done = wanted.filter((each) => each.status === "completed").length;
  return (
    <span class="plan-progress" aria-live="polite">
      {done} of {wanted.length}
    </span>
  );
}

function PlanLine({ entry }: { readonly entry: PlanEntry }) {
  const state = STATES[entry.status] ?? "pending";
  return (
    <li class={`plan-entry ${state}`}>
      <StateIcon state={state} />
      <span>
        {entry.content}
        <span class="unseen"> ({WORDS[state]})</span>
        {entry.priority === "high" && <span class="badge warn">high</span>}
      </span>
    </li>
  );
}
