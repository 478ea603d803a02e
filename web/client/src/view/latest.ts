/**
 * Updates of which only the latest counts: commands, mode, options, usage, plans, the agent's title of the session.
 */

import type { AvailableCommand, ConfigOption } from "../acp.js";
import { type Members, Patch, changed, entriesOf, membersOf, textOf } from "./patch.js";

export interface Usage {
  readonly used: number;
  readonly size: number;
  readonly cost?: unknown;
}

/** State besides the transcript that a late client needs. */
export interface Latest {
  readonly commands?: readonly AvailableCommand[];
  readonly mode?: string;
  /** The modes that the agent offers. */
  readonly modes?: readonly unknown[];
  readonly model?: string;
  readonly models?: readonly unknown[];
  readonly configOptions?: readonly ConfigOption[];
  readonly usage?: Usage;
  /** By plan id, in the form of `plan` in a v2 `plan_update`; the plan of a v1 agent is `main`. */
  readonly plans?: Readonly<Record<string, Members>>;
  /** Other members of the response that opened the session. */
  readonly beside?: Members;
  /** The agent's title of the session. */
  readonly title?: string;
  readonly updatedAt?: string;
  readonly meta?: Members;
}

const OFFERED = new Set(["sessionId", "modes", "models", "configOptions", "availableCommands"]);

/** Apply the modes, models, options and commands in the agent's response that opened the session. */
export function takeOffers(latest: Latest, offers: unknown): Latest {
  const members = membersOf(offers) ?? {};
  const [mode, modes] = choice(members["modes"], "currentModeId", "availableModes");
  const [model, models] = choice(members["models"], "currentModelId", "availableModels");
  const others = Object.entries(members).filter(([name]) => !OFFERED.has(name));
  const beside = others.length ? Object.fromEntries(others) : undefined;
  const next = changed<Latest>(latest, { mode, modes, model, models, beside });
  const withOptions = setConfigOptions(next, members) ?? next;
  return setCommands(withOptions, members) ?? withOptions;
}

/** The current value, and the available ones. */
type Choice = readonly [string | undefined, readonly unknown[] | undefined];

function choice(offered: unknown, current: string, available: string): Choice {
  const members = membersOf(offered) ?? {};
  const listed = entriesOf(members[available]);
  return listed === undefined ? [undefined, undefined] : [textOf(members[current]), listed];
}

/** Return the values after an update; undefined if a required member is missing. `nullClears`: the agent speaks v2. */
type Fold = (latest: Latest, update: Members, nullClears: boolean) => Latest | undefined;

const setCommands = (latest: Latest, update: Members): Latest | undefined => {
  const commands = entriesOf(update["availableCommands"]) as readonly AvailableCommand[] | undefined;
  return commands && { ...latest, commands };
};

const setConfigOptions = (latest: Latest, update: Members): Latest | undefined => {
  const configOptions = entriesOf(update["configOptions"]) as readonly ConfigOption[] | undefined;
  return configOptions && { ...latest, configOptions };
};

const setMode: Fold = (latest, update) => {
  // ACP's own page shows `modeId` where its schema has `currentModeId`.
  const mode = textOf(update["currentModeId"]) || textOf(update["modeId"]);
  return mode === undefined ? undefined : { ...latest, mode };
};

const setUsage: Fold = (latest, update, nullClears) => {
  const { used, size } = update as { readonly used?: number | null; readonly size?: number | null };
  if (used == null || size == null) return undefined;
  const cost = new Patch(update, true).raw("cost", nullClears ? latest.usage?.cost : undefined);
  return { ...latest, usage: changed<Usage>({ used, size }, { cost }) };
};

const setPlan: Fold = (latest, update) => {
  const entries = entriesOf(update["entries"]);
  if (entries === undefined) return undefined;
  return { ...latest, plans: { ...latest.plans, main: { type: "items", planId: "main", entries } } };
};

const updatePlan: Fold = (latest, update) => {
  const plan = membersOf(update["plan"]);
  const planId = textOf(plan?.["planId"]);
  if (plan === undefined || planId === undefined) return undefined;
  return { ...latest, plans: { ...latest.plans, [planId]: plan } };
};

const removePlan: Fold = (latest, update) => {
  const planId = textOf(update["planId"]);
  if (planId === undefined) return undefined;
  const left = Object.entries(latest.plans ?? {}).filter(([each]) => each !== planId);
  return changed<Latest>(latest, { plans: left.length ? Object.fromEntries(left) : undefined });
};

const describeSession: Fold = (latest, update) => {
  const patch = new Patch(update, true);
  return changed<Latest>(latest, {
    title: patch.text("title", latest.title),
    updatedAt: patch.text("updatedAt", latest.updatedAt),
    meta: patch.meta(latest.meta),
  });
};

/** One fold per kind of update. */
export const LATEST_FOLDS: ReadonlyMap<string, Fold> = new Map<string, Fold>([
  ["available_commands_update", setCommands],
  ["config_option_update", setConfigOptions],
  ["current_mode_update", setMode],
  ["usage_update", setUsage],
  ["plan", setPlan],
  ["plan_update", updatePlan],
  ["plan_removed", removePlan],
  ["session_info_update", describeSession],
]);
