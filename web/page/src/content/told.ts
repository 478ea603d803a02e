/** What an agent tells may be anything: read here as what it should be, or as nothing. */

export type Members = Readonly<Record<string, unknown>>;

/** The members of an object; none if it is no object. */
export function members(value: unknown): Members {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Members) : {};
}

/** A text; empty if it is none. */
export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** The texts of a list. */
export function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
}
