/**
 * A form of the agent (`elicitation/create`), read from its JSON schema: its fields, their types, and problems with the
 * values. Parts of a schema that are unknown here are left to the agent to check.
 */

import { type Members, members, text, texts } from "./told.js";
import { visible } from "./visible.js";

export interface Choice {
  readonly value: string;
  readonly title: string;
  readonly description: string;
}

/** `other` is an unknown type: it is not shown, and cannot be filled in. */
export type FieldType = "string" | "number" | "integer" | "boolean" | "array" | "other";

export interface Field {
  readonly name: string;
  readonly type: FieldType;
  readonly title: string;
  readonly description: string;
  readonly isRequired: boolean;
  readonly choices: readonly Choice[];
  readonly initial: Value;
  /** The smallest and largest number, length, or number of entries. */
  readonly least?: number;
  readonly most?: number;
  readonly pattern?: string;
  /** `email`, `uri`, `date`, `date-time`, or another one, which is not checked. */
  readonly format?: string;
}

/** A value filled in by a person: a text, a checkbox, or the checked values of a list. */
export type Value = string | boolean | readonly string[];
export type Values = Readonly<Record<string, Value>>;

export type Elicitation =
  | {
      readonly mode: "form";
      readonly message: string;
      readonly title: string;
      readonly description: string;
      readonly fields: readonly Field[];
    }
  /** `url` can be opened from here only if it is a web address. */
  | { readonly mode: "url"; readonly message: string; readonly url: string; readonly host: string | undefined }
  | { readonly mode: "other"; readonly message: string };

export function readElicitation(params: unknown): Elicitation {
  const asked = members(params);
  const message = text(asked["message"]);
  const schema = members(asked["requestedSchema"]);
  const mode = asked["mode"] ?? "form";
  if (mode === "url") return { mode, message, url: text(asked["url"]), host: hostOf(text(asked["url"])) };
  if (mode !== "form" || asked["requestedSchema"] === undefined) return { mode: "other", message };
  const required = new Set(texts(schema["required"]));
  const fields = Object.entries(members(schema["properties"])).map(([name, each]) =>
    readField(name, members(each), required.has(name)),
  );
  return { mode, message, title: text(schema["title"]), description: text(schema["description"]), fields };
}

function hostOf(url: string): string | undefined {
  try {
    const { protocol, host } = new URL(url);
    return protocol === "https:" || protocol === "http:" ? host : undefined;
  } catch {
    return undefined;
  }
}

const TYPES: Readonly<Record<string, FieldType>> = {
  string: "string",
  number: "number",
  integer: "integer",
  boolean: "boolean",
  array: "array",
};
/** The members by which a schema bounds a value of a type. */
const BOUNDS: Readonly<Record<FieldType, readonly [string, string]>> = {
  string: ["minLength", "maxLength"],
  number: ["minimum", "maximum"],
  integer: ["minimum", "maximum"],
  array: ["minItems", "maxItems"],
  boolean: ["", ""],
  other: ["", ""],
};

function readField(name: string, schema: Members, isRequired: boolean): Field {
  const told = TYPES[text(schema["type"]) || "string"] ?? "other";
  const choices = choicesOf(told === "array" ? members(schema["items"]) : schema);
  const type = told === "array" && choices.length === 0 ? "other" : told;
  const [least, most] = BOUNDS[type].map((each) => schema[each]);
  return {
    name,
    type,
    title: visible(text(schema["title"]) || name),
    description: text(schema["description"]),
    isRequired,
    choices,
    initial: initialValue(type, schema),
    ...(typeof least === "number" && { least }),
    ...(typeof most === "number" && { most }),
    ...(typeof schema["pattern"] === "string" && { pattern: schema["pattern"] }),
    ...(typeof schema["format"] === "string" && { format: schema["format"] }),
  };
}

function choicesOf(schema: Members): Choice[] {
  const titled = [schema["oneOf"], schema["anyOf"]].flatMap((each) =>
    Array.isArray(each) ? each.map(members) : [],
  );
  const found = titled.map((each) => ({
    value: text(each["const"]),
    title: visible(text(each["title"]) || text(each["const"])),
    description: text(each["description"]),
  }));
  if (found.length > 0) return found;
  const names = texts(schema["enumNames"]);
  return texts(schema["enum"]).map((value, index) => ({ value, title: visible(names[index] ?? value), description: "" }));
}

function initialValue(type: FieldType, schema: Members): Value {
  const given = schema["default"];
  if (type === "boolean") return given === true;
  if (type === "array") return texts(given);
  if (schema["format"] === "date-time" && typeof given === "string") return localTime(given);
  return typeof given === "string" || typeof given === "number" ? String(given) : "";
}

export function initialValues(fields: readonly Field[]): Values {
  return Object.fromEntries(fields.map((each) => [each.name, each.initial]));
}

// -- what was filled in ---------------------------------------------------------------------------------------

/** Return the problem with a value in words; undefined if there is none. */
export function problemOf(field: Field, value: Value): string | undefined {
  if (field.type === "other") return field.isRequired ? "This cannot be filled in here." : undefined;
  if (typeof value === "boolean") return undefined;
  if (typeof value !== "string") return listProblem(field, value);
  if (value === "")
    return field.isRequired && (field.type !== "string" || field.least !== 0) ? required(field) : undefined;
  return field.type === "string" ? textProblem(field, value) : numberProblem(field, value);
}

function required(field: Field): string {
  return field.choices.length > 0 ? "Choose one." : "Fill this in.";
}

function listProblem(
  { isRequired, least = 0, most = Infinity }: Field,
  value: readonly string[],
): string | undefined {
  // An optional list that was not touched is left out.
  if (value.length === 0 && !isRequired) return undefined;
  if (value.length < least) return `Choose at least ${least}.`;
  return value.length > most ? `Choose at most ${most}.` : undefined;
}

function numberProblem({ type, least = -Infinity, most = Infinity }: Field, value: string): string | undefined {
  const number = Number(value);
  if (value.trim() === "" || !Number.isFinite(number)) return "Give a number.";
  if (type === "integer" && !Number.isInteger(number)) return "Give a whole number.";
  if (number < least) return `Give a number of at least ${least}.`;
  return number > most ? `Give a number of at most ${most}.` : undefined;
}

function textProblem(
  { choices, least = 0, most = Infinity, pattern, format }: Field,
  value: string,
): string | undefined {
  if (choices.length > 0) return choices.some((each) => each.value === value) ? undefined : "Choose one of these.";
  const length = [...value].length;
  if (length < least) return `Give at least ${least} characters.`;
  if (length > most) return `Give at most ${most} characters.`;
  if (pattern !== undefined && !matches(pattern, value)) return `This does not look like ${pattern}.`;
  return formatProblem(format, value);
}

function matches(pattern: string, value: string): boolean {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    // A pattern in another dialect of regular expressions.
    return true;
  }
}

function formatProblem(format: string | undefined, value: string): string | undefined {
  if (format === "email") return /^[^\s@]+@[^\s@]+$/.test(value) ? undefined : "Give an e-mail address.";
  if (format === "uri") return URL.canParse(value) ? undefined : "Give a whole address, with https:// in front.";
  if (format === "date") return isDay(value) ? undefined : "Give a date, such as 2026-01-31.";
  if (format === "date-time") return Number.isNaN(Date.parse(value)) ? "Give a date and a time." : undefined;
  return undefined;
}

function isDay(value: string): boolean {
  const day = new Date(`${value}T00:00:00Z`);
  return /^\d{4}-\d\d-\d\d$/.test(value) && !Number.isNaN(day.getTime()) && day.toISOString().startsWith(value);
}

/** Return the problems of a whole form, by field. */
export function problemsOf(fields: readonly Field[], values: Values): Readonly<Record<string, string>> {
  const found = fields.map((each) => [each.name, problemOf(each, values[each.name] ?? "")] as const);
  return Object.fromEntries(found.filter((each): each is readonly [string, string] => each[1] !== undefined));
}

/** Return the content for the agent, without empty fields. */
export function contentOf(fields: readonly Field[], values: Values): Readonly<Record<string, unknown>> {
  const content: Record<string, unknown> = {};
  for (const field of fields) {
    const value = values[field.name] ?? "";
    const isEmpty = value === "" || (Array.isArray(value) && value.length === 0);
    if (field.type === "other" || (isEmpty && !field.isRequired)) continue;
    content[field.name] = typed(field, value);
  }
  return content;
}

function typed(field: Field, value: Value): unknown {
  if (typeof value !== "string") return value;
  if (field.type === "number" || field.type === "integer") return Number(value);
  return field.format === "date-time" ? new Date(value).toISOString() : value;
}

/** Return a time in the format of a field for local time. */
function localTime(moment: string): string {
  const time = new Date(moment);
  if (Number.isNaN(time.getTime())) return "";
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
