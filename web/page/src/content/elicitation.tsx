/** A form of the agent, or a URL that it asks the user to open. */

import type { PermissionMembers } from "@turnwire/client";
import { type AriaAttributes, type ComponentChildren, type TargetedEvent } from "preact";
import { useId, useRef, useState } from "preact/hooks";

import type { Resolved } from "./asked.js";
import {
  contentOf,
  type Elicitation,
  type Field,
  initialValues,
  problemOf,
  problemsOf,
  readElicitation,
  type Value,
  type Values,
} from "./form.js";
import { JsonView } from "./json.js";
import { Markdown } from "./markdown.js";
import { RequestCard, WAITING, useSending } from "./permission.js";
import { visible } from "./visible.js";

export type FormAnswer =
  | { readonly action: "accept"; readonly content?: Readonly<Record<string, unknown>> }
  | { readonly action: "decline" | "cancel" };

export interface FormCardProps {
  readonly request: PermissionMembers;
  readonly mayAnswer: boolean;
  readonly resolved?: Resolved | undefined;
  readonly onAnswer: (answer: FormAnswer) => Promise<unknown> | void;
  readonly children?: ComponentChildren;
}

export function FormCard(props: FormCardProps) {
  const { request, mayAnswer, resolved } = props;
  const asked = readElicitation(request.params);
  const [isSending, send] = useSending();
  const answer = (given: FormAnswer): void => send(() => props.onAnswer(given));
  const isOpen = mayAnswer && resolved === undefined;
  const title = asked.mode === "form" && asked.title !== "" ? asked.title : "The agent has a question";
  return (
    <RequestCard request={request} resolved={resolved} kind="think" title={title} head={props.children}>
      {asked.message !== "" && <Markdown text={visible(asked.message)} />}
      {isOpen && <Asked asked={asked} request={request} isSending={isSending} answer={answer} />}
      {!mayAnswer && resolved === undefined && (
        <p class="soft small">{WAITING}</p>
      )}
    </RequestCard>
  );
}

interface AskedProps<Kind> {
  readonly asked: Kind;
  readonly request: PermissionMembers;
  readonly isSending: boolean;
  readonly answer: (given: FormAnswer) => void;
}

function Asked({ asked, ...rest }: AskedProps<Elicitation>) {
  if (asked.mode === "form") return <Fields {...rest} asked={asked} />;
  if (asked.mode === "url") return <Address {...rest} asked={asked} />;
  return (
    <>
      <p class="soft small">This page cannot show this kind of request.</p>
      <JsonView label="Full request" value={rest.request.params} />
      <Ways {...rest} />
    </>
  );
}

/** The buttons that every request has. */
function Ways({
  isSending,
  answer,
  children,
}: Omit<AskedProps<never>, "asked" | "request"> & { readonly children?: ComponentChildren }) {
  return (
    <div class="options">
      {children}
      <button type="button" class="button" disabled={isSending} onClick={() => answer({ action: "decline" })}>
        Decline
      </button>
      <button type="button" class="button plain" disabled={isSending} onClick={() => answer({ action: "cancel" })}>
        Cancel
      </button>
    </div>
  );
}

function Address({ asked, isSending, answer }: AskedProps<Extract<Elicitation, { mode: "url" }>>) {
  return (
    <>
      <p class="url mono">{asked.url}</p>
      <p class="soft small">
        {asked.host === undefined
          ? "This is not a web address, so it cannot be opened here."
          : `Opens ${asked.host} in a new tab. Continue only if you trust it and expected this.`}
      </p>
      <Ways isSending={isSending} answer={answer}>
        {asked.host !== undefined && (
          <a
            class="button primary"
            href={asked.url}
            target="_blank"
            rel="noopener noreferrer"
            onClick={() => answer({ action: "accept" })}
          >
            Open {asked.host}
          </a>
        )}
      </Ways>
    </>
  );
}

// -- fields ---------------------------------------------------------------------------------------------------

function Fields({ asked, isSending, answer }: AskedProps<Extract<Elicitation, { mode: "form" }>>) {
  const { fields } = asked;
  const form = useRef<HTMLFormElement>(null);
  const [values, setValues] = useState<Values>(() => initialValues(fields));
  const [problems, setProblems] = useState<Readonly<Record<string, string>>>({});
  const change = (field: Field, value: Value): void => {
    setValues({ ...values, [field.name]: value });
    // Remove a problem as soon as it is solved, but report none while the user is still typing.
    if (problemOf(field, value) === undefined) setProblems(omitted(problems, field.name));
  };
  const check = (field: Field): void => {
    const value = values[field.name] ?? "";
    const problem = value === "" ? undefined : problemOf(field, value);
    if (problem !== undefined) setProblems({ ...problems, [field.name]: problem });
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    const found = problemsOf(fields, values);
    setProblems(found);
    const wrong = fields.findIndex((each) => each.name in found);
    if (wrong < 0) answer({ action: "accept", content: contentOf(fields, values) });
    else
      form.current
        ?.querySelectorAll<HTMLElement>(".form-field")
        [wrong]?.querySelector<HTMLElement>("input, select, textarea")
        ?.focus();
  };
  return (
    <form class="form" ref={form} noValidate onSubmit={submit}>
      {asked.description !== "" && <p class="soft small">{asked.description}</p>}
      {fields.map((each) => (
        <FieldView
          key={each.name}
          field={each}
          value={values[each.name] ?? ""}
          problem={problems[each.name]}
          onChange={(value) => change(each, value)}
          onLeave={() => check(each)}
        />
      ))}
      <Ways isSending={isSending} answer={answer}>
        <button type="submit" class="button primary" disabled={isSending}>
          Send
        </button>
      </Ways>
    </form>
  );
}

function omitted(problems: Readonly<Record<string, string>>, name: string): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(problems).filter(([each]) => each !== name));
}

interface FieldViewProps {
  readonly field: Field;
  readonly value: Value;
  readonly problem: string | undefined;
  readonly onChange: (value: Value) => void;
  readonly onLeave: () => void;
}

/** Up to this many choices are shown as radio buttons, more as a list. */
const FEW = 6;

function FieldView(props: FieldViewProps) {
  const { field, problem } = props;
  const id = useId();
  const words = [field.description !== "" && `${id}-about`, problem !== undefined && `${id}-problem`]
    .filter(Boolean)
    .join(" ");
  const tied = {
    "aria-describedby": words || undefined,
    "aria-invalid": problem !== undefined,
    "aria-required": field.isRequired,
  };
  const isGroup = field.type === "array" || (field.choices.length > 0 && field.choices.length <= FEW);
  const name = (
    <>
      {field.title}
      {!field.isRequired && field.type !== "boolean" && <span class="soft small"> optional</span>}
    </>
  );
  const about = (
    <>
      {field.description !== "" && (
        <p class="soft small" id={`${id}-about`}>
          {field.description}
        </p>
      )}
      <p class="problem" id={`${id}-problem`} aria-live="polite">
        {problem}
      </p>
    </>
  );
  if (isGroup) {
    return (
      <fieldset
        class="form-field"
        {...(field.type === "array"
          ? { "aria-describedby": tied["aria-describedby"] }
          : { role: "radiogroup" as const, ...tied })}
      >
        <legend>{name}</legend>
        <Choices {...props} id={id} />
        {about}
      </fieldset>
    );
  }
  if (field.type === "boolean") {
    return (
      <div class="form-field">
        <label class="tick">
          <input
            type="checkbox"
            checked={props.value === true}
            {...tied}
            onChange={(event) => props.onChange(event.currentTarget.checked)}
          />
          <span>{name}</span>
        </label>
        {about}
      </div>
    );
  }
  return (
    <div class="form-field">
      <label for={id}>{name}</label>
      {field.type === "other" ? (
        <p class="soft small">This page does not know how to ask for it.</p>
      ) : (
        <Entry {...props} id={id} tied={tied} />
      )}
      {about}
    </div>
  );
}

/** A choice of one or of several. */
function Choices({ field, value, onChange, onLeave, id }: FieldViewProps & { readonly id: string }) {
  const chosen = Array.isArray(value) ? (value as readonly string[]) : [value as string];
  const pick = (picked: string, isOn: boolean): void => {
    if (field.type !== "array") onChange(picked);
    else
      onChange(
        field.choices.map((each) => each.value).filter((each) => (each === picked ? isOn : chosen.includes(each))),
      );
  };
  return (
    <>
      {field.choices.map((each) => (
        <label class="tick" key={each.value}>
          <input
            type={field.type === "array" ? "checkbox" : "radio"}
            name={id}
            value={each.value}
            checked={chosen.includes(each.value)}
            onChange={(event) => pick(each.value, event.currentTarget.checked)}
            onBlur={onLeave}
          />
          <span>
            {each.title}
            {each.description !== "" && <span class="soft small"> {each.description}</span>}
          </span>
        </label>
      ))}
    </>
  );
}

/** Maximum length of a value for a single-line field. */
const LINE = 200;

interface EntryProps extends FieldViewProps {
  readonly id: string;
  readonly tied: AriaAttributes;
}

/** A text, a number, or a choice from a list. */
function Entry({ field, value, onChange, onLeave, id, tied }: EntryProps) {
  const shared = {
    id,
    class: "field",
    value: value as string,
    onInput: (event: TargetedEvent<HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement>) =>
      onChange(event.currentTarget.value),
    onBlur: onLeave,
    ...tied,
  };
  if (field.choices.length > 0) {
    return (
      <select {...shared}>
        <option value="">{field.isRequired ? "Choose one" : "None"}</option>
        {field.choices.map((each) => (
          <option key={each.value} value={each.value}>
            {each.title}
          </option>
        ))}
      </select>
    );
  }
  if (field.type === "number" || field.type === "integer") {
    return (
      <input
        {...shared}
        type="text"
        inputMode={field.type === "integer" ? "numeric" : "decimal"}
        autocomplete="off"
      />
    );
  }
  if (field.format === undefined && ((field.most ?? 0) > LINE || (value as string).includes("\n")))
    return <textarea {...shared} rows={3} />;
  switch (field.format) {
    case "email":
      return <input {...shared} type="email" />;
    case "uri":
      return <input {...shared} type="url" />;
    case "date":
      return <input {...shared} type="date" />;
    case "date-time":
      return <input {...shared} type="datetime-local" />;
    default:
      return <input {...shared} type="text" />;
  }
}
