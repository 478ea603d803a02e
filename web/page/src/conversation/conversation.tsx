/** A session: its conversation, open requests, queue and prompt field. */

import { type Signal, useComputed, useSignal } from "@preact/signals";
import { type AvailableCommand, type ContentBlock, DaemonUnreachable, type PromptReceipt, type WhenBusy } from "@turnwire/client";
import type { Item, Latest, SessionView, Usage } from "@turnwire/client/view";
import { useCallback, useEffect, useMemo } from "preact/hooks";

import type { DiffLayout, LineComment } from "../content/diff.js";
import { UsageMeter } from "../content/marks.js";
import { PlanProgress, PlanView } from "../content/plan.js";
import { offer } from "../frame/commands.js";
import { onShortcut } from "../frame/shortcuts.js";
import { tellError } from "../frame/toasts.js";
import { ConversationState } from "../state/conversation.js";
import { type Daemon, mayControl, whenOpen } from "../state/daemon.js";
import type { Row } from "../state/rows.js";
import type { SessionList } from "../state/session_list.js";
import { AskedCards } from "./asked.js";
import { type Takes, takesOf } from "./attachments.js";
import { Composer } from "./composer.js";
import { ItemView, type Shown } from "./item_view.js";
import { modelOf } from "./model.js";
import { Options, choicesOf, nameOfModel } from "./options.js";
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
  if (loading === "missing") return <p class="empty">This session does not exist. It may have been removed.</p>;
  if (typeof loading === "object") return <p class="empty">The session could not be loaded: {loading.failed}</p>;
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
  const jumps = useSignal(0);
  const shown = useMemo<Shown>(() => ({ state, comments: canControl ? comments : undefined, layout, opened }), [state]);
  const draw = useCallback(
    (row: Row<Item>) => (
      <div class="row" key={row.key}>
        {row.kind === "item" ? (
          <ItemView item={row.item} place={row.index} shown={shown} />
        ) : (
          <End state={state} promptId={row.promptId} canPrompt={canControl} />
        )}
      </div>
    ),
    [state],
  );
  return (
    <>
      <Timeline
        blocks={state.rows.blocks}
        hasOlder={state.hasOlder}
        loadOlder={() => state.loadOlder()}
        draw={draw}
        jumps={jumps}
      >
        <AskedCards shown={shown} canAnswer={canControl} />
      </Timeline>
      <Now daemon={daemon} list={list} state={state} />
      <Waiting daemon={daemon} state={state} />
      {canControl ? <Prompt daemon={daemon} state={state} comments={comments} jumps={jumps} /> : null}
      <Below daemon={daemon} state={state} />
      <Spoken state={state} />
    </>
  );
}

function End({ state, promptId, canPrompt }: EndProps) {
  const view = state.view;
  const turn = view?.turns.get(promptId);
  if (!turn) return null;
  const isFailed = turn.outcome?.error !== undefined && view?.state !== "closed";
  const content = canPrompt && isFailed ? view?.promptOf(promptId) : undefined;
  const again = content?.length ? () => void state.session.submit([...content]).catch(tellError) : undefined;
  return (
    <>
      {turn.plans ? <Plans plans={turn.plans} isOpen={false} /> : null}
      <TurnEnd turn={turn} nameOf={state.nameOf} again={again} />
    </>
  );
}

interface EndProps {
  readonly state: ConversationState;
  readonly promptId: string;
  readonly canPrompt: boolean;
}

/** Return one part of the view. The component is rendered again when that part changes, not with every chunk. */
function useKnown<Value>(state: ConversationState, pick: (view: SessionView) => Value): Value | undefined {
  return useComputed(() => {
    const view = state.view;
    return view && pick(view);
  }).value;
}

/** The current plan and the session's state. */
function Now({ daemon, list, state }: Parts) {
  const entry = useComputed(() => list.byId.value.get(state.sessionId)).value;
  const standing = useKnown(state, (view) => view.state);
  // The plan of a turn that has ended is shown at its end.
  const plans = useKnown(state, (view) => (activeOf(view) ? view.latest.plans : undefined));
  const active = useKnown(state, activeOf);
  const background = (entry?.backgroundCount ?? 0) + (entry?.runningChildCount ?? 0);
  return (
    <>
      {plans ? <Plans plans={plans} isOpen /> : null}
      <Standing
        state={standing ?? "idle"}
        startedAt={active?.startedAt}
        isSuspected={entry?.suspectedComplete ?? false}
        background={background}
        canAnswer={mayControl(daemon.caller)}
        settle={mayControl(daemon.caller) && active ? () => void settle(state) : undefined}
      />
    </>
  );
}

/** The agent's plans: open during the turn, folded afterwards. */
function Plans({ plans, isOpen }: { readonly plans: NonNullable<Latest["plans"]>; readonly isOpen: boolean }) {
  return (
    <div class="plans">
      {Object.entries(plans).map(([id, plan]) => (
        <details key={id} open={isOpen}>
          <summary class="small">
            Plan {Array.isArray(plan["entries"]) ? <PlanProgress entries={plan["entries"]} /> : null}
          </summary>
          <PlanView plan={plan} />
        </details>
      ))}
    </div>
  );
}

/** Declare the running turn over. */
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
    <QueuePanel
      prompts={prompts ?? []}
      held={held}
      acts={mayControl(daemon.caller) ? acts : undefined}
      nameOf={state.nameOf}
    />
  );
}

const NO_COMMANDS: readonly AvailableCommand[] = [];
const NOT_STEERED: Readonly<Record<string, string>> = {
  not_offered: "This agent cannot be steered, so the prompt was queued.",
  declined: "The agent declined to be steered, so the prompt was queued.",
};

function Prompt({
  daemon,
  state,
  comments,
  jumps,
}: {
  readonly daemon: Daemon;
  readonly state: ConversationState;
  readonly comments: Parameters<typeof Composer>[0]["comments"];
  readonly jumps: Signal<number>;
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
      { words: "Settle the turn: mark it as over", group: "This session", run: () => void settle(state) },
    ]);
  }, [isBusy]);
  useEffect(
    () =>
      onShortcut("compose", () => document.querySelector<HTMLTextAreaElement>(".composer-field")?.focus()),
    [],
  );
  if (standing === "closed") return <p class="standing soft small">This session is closed. It can be read, but not prompted.</p>;
  const send = async (content: readonly ContentBlock[], whenBusy: WhenBusy | undefined, signal: AbortSignal) => {
    const receipt = await submitOnce(daemon, state, content, whenBusy, signal);
    if (!receipt.queued) jumps.value++;
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

const AGAIN_MS = 500;

/** Submit a prompt, again after each time that the daemon was away. One key makes all attempts the same prompt. */
async function submitOnce(
  daemon: Daemon,
  state: ConversationState,
  content: readonly ContentBlock[],
  whenBusy: WhenBusy | undefined,
  signal: AbortSignal,
): Promise<PromptReceipt> {
  const options = { key: `page-${crypto.randomUUID()}`, ...(whenBusy === undefined ? {} : { whenBusy }) };
  for (;;) {
    try {
      return await state.session.submit(content, options);
    } catch (error) {
      if (!(error instanceof DaemonUnreachable)) throw error;
      await whenOpen(daemon.feed.link, AGAIN_MS);
      signal.throwIfAborted();
    }
  }
}

/** Return the kinds of content that the session's agent accepts in a prompt. */
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

/** The agent's options and the use of its context. */
function Below({ daemon, state }: { readonly daemon: Daemon; readonly state: ConversationState }) {
  const latest = useKnown(state, (view) => view.latest) ?? {};
  const isClosed = useKnown(state, (view) => view.state === "closed") ?? false;
  const choices = choicesOf(latest);
  const model = nameOfModel(choices);
  useEffect(() => {
    modelOf.value = model;
    return () => {
      modelOf.value = "";
    };
  }, [model]);
  return (
    <div class="below">
      <Options
        choices={choices}
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

/** The session's state for screen readers. */
function Spoken({ state }: { readonly state: ConversationState }) {
  const words = useKnown(state, (view) => {
    if (view.state === "requires_action") return "The agent needs an answer";
    if (view.state === "running") return "The agent is working";
    const last = [...view.turns.values()].findLast((each) => each.state === "ended");
    return last ? `Turn finished: ${endOf(last, state.nameOf)}` : "";
  });
  return (
    <p class="unseen" role="status">
      {words}
    </p>
  );
}
