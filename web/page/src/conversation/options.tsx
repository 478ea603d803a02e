/** The agent's options, or the modes and models of older agents. Shows the values in the log. */

import type { ConfigOption, SessionCalls } from "@turnwire/client";

export interface Choice {
  readonly id: string;
  readonly name: string;
  readonly description?: string;
  readonly value: string | boolean;
  readonly values: readonly { readonly value: string; readonly name: string; readonly description?: string }[];
  set(session: SessionCalls, value: string | boolean): Promise<unknown>;
}

interface Offered {
  readonly configOptions?: readonly ConfigOption[];
  readonly mode?: string;
  readonly modes?: unknown;
  readonly model?: string;
  readonly models?: unknown;
}

/** Return the choices of an agent of ACP v1 or v2. An agent with options has its mode and model among them. */
export function choicesOf(offered: Offered): Choice[] {
  const options = (offered.configOptions ?? []).map(optionOf).filter((each) => each !== undefined);
  const has = (category: string) =>
    (offered.configOptions ?? []).some((each) => each.category === category || idOf(each) === category);
  if (!has("mode")) {
    const mode = listOf("mode", "Mode", offered.mode, offered.modes, (session, id) => session.setMode(id));
    if (mode) options.push(mode);
  }
  if (!has("model")) {
    const model = listOf("model", "Model", offered.model, offered.models, (session, id) => session.setModel(id));
    if (model) options.push(model);
  }
  return options;
}

/** Return the name of the chosen model; empty if the agent offers no choice. */
export function nameOfModel(choices: readonly Choice[]): string {
  const model = choices.find(({ id, name }) => id === "model" || name.toLowerCase() === "model");
  const chosen = model?.values.find(({ value }) => value === model.value);
  return chosen?.name ?? (typeof model?.value === "string" ? model.value : "");
}

function idOf(option: ConfigOption): string {
  return option.configId ?? option.id ?? "";
}

function optionOf(option: ConfigOption): Choice | undefined {
  const id = idOf(option);
  if (!id) return undefined;
  const values = (option.options ?? []).flatMap(valuesOf);
  if (typeof option.currentValue !== "boolean" && values.length === 0) return undefined;
  return {
    id,
    name: option.name || id,
    ...(option.description ? { description: option.description } : {}),
    value: option.currentValue,
    values,
    set: (session, value) => session.setOption(id, value),
  };
}

/** Return the values of an option or of a group of options. */
function valuesOf(offered: unknown): Choice["values"][number][] {
  const each = (offered ?? {}) as Readonly<Record<string, unknown>>;
  if (Array.isArray(each["options"])) return each["options"].flatMap(valuesOf);
  const value = each["value"] ?? each["id"] ?? each["modelId"];
  if (typeof value !== "string") return [];
  const { name, description } = each;
  return [
    {
      value,
      name: typeof name === "string" && name ? name : value,
      ...(typeof description === "string" ? { description } : {}),
    },
  ];
}

function listOf(
  id: string,
  name: string,
  value: string | undefined,
  offered: unknown,
  set: (session: SessionCalls, value: string) => Promise<unknown>,
): Choice | undefined {
  const values = Array.isArray(offered) ? offered.flatMap(valuesOf) : [];
  if (values.length === 0) return undefined;
  return { id, name, value: value ?? "", values, set: (session, chosen) => set(session, String(chosen)) };
}

/** The choices as a row of fields. */
export function Options({
  choices,
  canChange,
  onChoose,
}: {
  readonly choices: readonly Choice[];
  readonly canChange: boolean;
  readonly onChoose: (choice: Choice, value: string | boolean) => void;
}) {
  return (
    <div class="choices">
      {choices.map((each) => (
        <Option key={each.id} choice={each} canChange={canChange} onChoose={(value) => onChoose(each, value)} />
      ))}
    </div>
  );
}

function Option({
  choice,
  canChange,
  onChoose,
}: {
  readonly choice: Choice;
  readonly canChange: boolean;
  readonly onChoose: (value: string | boolean) => void;
}) {
  const { name, description, value, values } = choice;
  if (typeof value === "boolean") {
    return (
      <label class="choice small" title={description}>
        <input
          type="checkbox"
          checked={value}
          disabled={!canChange}
          onChange={(event) => {
            // The field shows the daemon's value: it changes with the event.
            const wanted = event.currentTarget.checked;
            event.currentTarget.checked = value;
            onChoose(wanted);
          }}
        />
        {name}
      </label>
    );
  }
  const known = values.some((each) => each.value === value);
  return (
    <label class="choice small" title={description}>
      <span class="soft">{name}</span>
      <select
        value={value}
        disabled={!canChange}
        onChange={(event) => {
          const wanted = event.currentTarget.value;
          event.currentTarget.value = value;
          onChoose(wanted);
        }}
      >
        {known ? null : <option value={value}>{value || "not chosen"}</option>}
        {values.map((each) => (
          <option key={each.value} value={each.value} title={each.description}>
            {each.name}
          </option>
        ))}
      </select>
    </label>
  );
}
