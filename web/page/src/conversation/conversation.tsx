/** A session in the page: what was said and done, what it asks, what waits, and where to prompt. */

import { useComputed, useSignal } from "@preact/signals";
import type { AvailableCommand, ContentBlock, WhenBusy } from "@turnwire/client";
import type { Item, Latest, SessionView, Usage } from "@turnwire/client/view";
import { useCallback, useEffect, useMemo } from "preact/hooks";

import type { DiffLayout, LineComment } from "../content/diff.js";
import { UsageMeter } from "../content/marks.js";
import { PlanProgress, PlanView } from "../content/plan.js";
import { offer } from "../frame/commands.js";
import { onShortcut } from "../frame/shortcuts.js";
import { tellError } from "../frame/toasts.js";
import { ConversationState } from "../state/conversation.js";
import { type Daemon, mayControl } from "../state/daemon.js";
import type { Row } from "../state/rows.js";
import type { SessionList } from "../state/session_list.js";
import { AskedCards } from "./asked.js";
import { type Takes, takesOf } from "./attachments.js";
import { Composer } from "./composer.js";
import { ItemView, type Shown } from "./item_view.js";
import { Options, choicesOf } from "./options.js";
import { QueuePanel } from "./queue.js";
import { Standing } from "./standing.js";
import { Timeline } from "./timeline.js";
import { TurnEnd, endOf } from "./turn_end.js";

interface Parts {
  readonly daemon: Daemon;
  readonly list: SessionList;
  readonly state: ConversationState;
}

export function Conversation({
  daemon,
  list,
  sessionId,
}: {
  readonly daemon: Daemon;
  readonly list: SessionList;
  readonly sessionId: string;
}) {
  const state = useMemo(() => new ConversationState(daemon, sessionId), [daemon, sessionId]);
  useEffect(() => () => state.close(), [state]);
  const loading = state.loading.value;
  if (loading === "loading") return <div class="empty" aria-busy="true" />;
  if (loading === "missing") return <p class="empty">There is no such session. It may have been removed.</p>;
  if (typeof loading === "object") return <p class="empty">The session could not be read: {loading.failed}</p>;
  return (
    <section class="conversation" aria-label="Session">
      <Talk key={sessionId} daemon={daemon} list={list} state={state} />
    </section>
  );
}

function Talk({ daemon, list, state }: Parts) {
  const canControl = mayControl(daemon.caller);
  const comments = useSignal<readonly LineComment[]>([]);
  const layout = useSignal<DiffLayout>("unified");
  const opened = useSignal<ReadonlyMap<string, boolean>>(new Map());
  const shown = useMemo<Shown>(() => ({ state, comments: canControl ? comments : undefined, layout, opened }), [state]);
  const draw = useCallback(
    (row: Row<Item>) => (
      <div class="row" key={row.key}>
        {row.kind === "item" ? (
          <ItemView item={row.item} place={row.index} shown={shown} />
        ) : (
          <End state={state} promptId={row.promptId} />
        )}
      </div>
    ),
    [state],
  );
  return (
    <>
      <Timeline blocks={state.rows.blocks} hasOlder={state.hasOlder} loadOlder={() => state.loadOlder()} draw={draw}>
        <AskedCards shown={shown} canAnswer={canControl} />
      </Timeline>
      <Now daemon={daemon} list={list} state={state} />
      <Waiting daemon={daemon} state={state} />
      {canControl ? <Prompt daemon={daemon} state={state} comments={comments} /> : null}
      <Below daemon={daemon} state={state} />
      <Spoken state={state} />
    </>
  );
}

function End({ state, promptId }: { readonly state: ConversationState; readonly promptId: string }) {
  const turn = state.view?.turns.get(promptId);
  return turn ? <TurnEnd turn={turn} /> : null;
}

/** One thing of what is known. A component that reads it is drawn anew when it changes, and not with every word. */
function useKnown<Value>(state: ConversationState, pick: (view: SessionView) => Value): Value | undefined {
  return useComputed(() => {
    const view = state.view;
    return view && pick(view);
  }).value;
}

/** The plan, and what the session does now. */
function Now({ daemon, list, state }: Parts) {
  const entry = useComputed(() => list.byId.value.get(state.sessionId)).value;
  const standing = useKnown(state, (view) => view.state);
  const plans = useKnown(state, (view) => view.latest.plans);
  const active = useKnown(state, activeOf);
  const background = (entry?.backgroundCount ?? 0) + (entry?.runningChildCount ?? 0);
  return (
    <>
      <Plans plans={plans ?? {}} isWorking={active !== undefined} />
      <Standing
        state={standing ?? "idle"}
        startedAt={active?.startedAt}
        isSuspected={entry?.suspectedComplete ?? false}
        background={background}
        settle={mayControl(daemon.caller) && active ? () => void settle(state) : undefined}
      />
    </>
  );
}

/** The agent's plans, while something of them is left to do. */
function Plans({ plans, isWorking }: { readonly plans: NonNullable<Latest["plans"]>; readonly isWorking: boolean }) {
  const left = Object.entries(plans).filter(([, plan]) => isLeft(plan));
  if (left.length === 0) return null;
  return (
    <div class="plans">
      {left.map(([id, plan]) => (
        <details key={id} open={isWorking}>
          <summary class="small">
            Plan {Array.isArray(plan["entries"]) ? <PlanProgress entries={plan["entries"]} /> : null}
          </summary>
          <PlanView plan={plan} />
        </details>
      ))}
    </div>
  );
}

const DONE = new Set(["completed", "cancelled"]);

function isLeft(plan: Readonly<Record<string, unknown>>): boolean {
  const { entries } = plan as { readonly entries?: readonly { readonly status?: string }[] };
  return !Array.isArray(entries) || entries.some((each) => !DONE.has(each.status ?? ""));
}

/** Say that the turn that runs is over. */
async function settle(state: ConversationState): Promise<void> {
  const promptId = state.view?.activePromptId;
  if (promptId !== undefined) await state.session.settle(promptId).catch(tellError);
}

function activeOf(view: SessionView) {
  return view.activePromptId === undefined ? undefined : view.turns.get(view.activePromptId);
}

function Waiting({ daemon, state }: { readonly daemon: Daemon; readonly state: ConversationState }) {
  const prompts = useKnown(state, (view) => view.queue);
  const held = useKnown(state, (view) => view.queueHeld);
  const { session } = state;
  const acts = {
    edit: (promptId: string, text: string) => session.edit(promptId, text).catch(tellError),
    move: (promptId: string, position: number) => session.move(promptId, position).catch(tellError),
    remove: (promptId: string) => session.remove(promptId).catch(tellError),
    hold: (held: boolean) => (held ? session.hold() : session.release()).catch(tellError),
  };
  return (
    <QueuePanel prompts={prompts ?? []} held={held} acts={mayControl(daemon.caller) ? acts : undefined} />
  );
}

const NO_COMMANDS: readonly AvailableCommand[] = [];
const NOT_STEERED: Readonly<Record<string, string>> = {
  not_offered: "The agent takes nothing into a running turn; the prompt is the next.",
  declined: "The agent did not take it into the running turn; the prompt is the next.",
};

function Prompt({
  daemon,
  state,
  comments,
}: {
  readonly daemon: Daemon;
  readonly state: ConversationState;
  readonly comments: Parameters<typeof Composer>[0]["comments"];
}) {
  const standing = useKnown(state, (view) => view.state) ?? "idle";
  const commands = useKnown(state, (view) => view.latest.commands);
  const takes = useTakes(daemon, state);
  const isBusy = standing !== "idle" && standing !== "closed";
  const stop = async () => {
    const promptId = state.view?.activePromptId;
    try {
      await state.session.cancel(promptId);
    } catch (error) {
      tellError(error);
    }
  };
  useEffect(() => {
    if (!isBusy) return;
    return offer([
      { words: "Stop the turn", group: "This session", run: () => void stop() },
      { words: "Settle the turn: say that it is over", group: "This session", run: () => void settle(state) },
    ]);
  }, [isBusy]);
  useEffect(
    () =>
      onShortcut("compose", () => document.querySelector<HTMLTextAreaElement>(".composer-field")?.focus()),
    [],
  );
  if (standing === "closed") return <p class="standing soft small">The session is closed; it takes no prompts.</p>;
  const send = async (content: readonly ContentBlock[], whenBusy: WhenBusy | undefined) => {
    const receipt = await state.session.submit(content, whenBusy === undefined ? {} : { whenBusy });
    return whenBusy === "steer" ? NOT_STEERED[receipt.reason ?? ""] : undefined;
  };
  return (
    <Composer
      key={state.sessionId}
      sessionId={state.sessionId}
      commands={commands ?? NO_COMMANDS}
      takes={takes}
      isBusy={isBusy}
      comments={comments}
      send={send}
      stop={() => void stop()}
    />
  );
}

/** What the session's agent takes in a prompt, as it said when it started. */
function useTakes(daemon: Daemon, state: ConversationState): Takes {
  const takes = useSignal<Takes>(takesOf(undefined));
  const agent = state.agent.value;
  useEffect(() => {
    if (agent === undefined) return;
    void daemon.client.agents().then((agents) => {
      takes.value = takesOf(agents.find((each) => each.name === agent)?.capabilities);
    }, tellError);
  }, [state, agent]);
  return takes.value;
}

/** What the agent is set to, and how full its context is. */
function Below({ daemon, state }: { readonly daemon: Daemon; readonly state: ConversationState }) {
  const latest = useKnown(state, (view) => view.latest) ?? {};
  const isClosed = useKnown(state, (view) => view.state === "closed") ?? false;
  return (
    <div class="below">
      <Options
        choices={choicesOf(latest)}
        canChange={mayControl(daemon.caller) && !isClosed}
        onChoose={(choice, value) => void choice.set(state.session, value).catch(tellError)}
      />
      {latest.usage ? <UsageMeter {...usageOf(latest.usage)} /> : null}
    </div>
  );
}

function usageOf({ used, size, cost }: Usage): Parameters<typeof UsageMeter>[0] {
  return { used, size, cost: cost as Parameters<typeof UsageMeter>[0]["cost"] };
}

/** What changes by itself, said to those who do not see it. */
function Spoken({ state }: { readonly state: ConversationState }) {
  const words = useKnown(state, (view) => {
    if (view.state === "requires_action") return "The agent asks for an answer";
    if (view.state === "running") return "The agent works";
    const last = [...view.turns.values()].findLast((each) => each.state === "ended");
    return last ? `Turn over: ${endOf(last)}` : "";
  });
  return (
    <p class="unseen" role="status">
      {words}
    </p>
  );
}
