/** Readers for data of agents, which may be anything: a value of the expected type, or an empty one. */

export type Members = Readonly<Record<string, unknown>>;

/** Return the members of an object; none if it is not one. */
export function members(value: unknown): Members {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Members) : {};
}

/** Return a text; empty if it is not one. */
export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Return the texts in a list. */
export function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
}
