/**
 * Reading an update field by field, and the rules by which a field changes a stored value. An absent field keeps the
 * value, a value replaces it, and null clears it in ACP v2 but counts as absent in v1. A field of a wrong type counts
 * as absent, because one bad field must not cost the others. Cleared fields, and empty lists and objects, are left out.
 */

export type Members = Readonly<Record<string, unknown>>;

/** Return the members of an object; undefined if it is not one. */
export function membersOf(value: unknown): Members | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Members) : undefined;
}

export function entriesOf(value: unknown): readonly unknown[] | undefined {
  return Array.isArray(value) ? value : undefined;
}

export function textOf(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

type Loose<Value> = { readonly [Name in keyof Value]?: Value[Name] | undefined };

/** Return a copy with other members; undefined members are removed. */
export function changed<Value extends object>(value: Value, members: Loose<Value>): Value {
  const next = { ...value } as Record<string, unknown>;
  for (const [name, member] of Object.entries(members)) {
    if (member !== undefined) next[name] = member;
    else if (name in next) delete next[name];
  }
  return next as Value;
}

/** The fields of one update. */
export class Patch {
  constructor(
    readonly members: Members,
    readonly nullClears: boolean,
  ) {}

  text(name: string, current: string | undefined): string | undefined {
    const member = this.members[name];
    if (member === null) return this.nullClears ? undefined : current;
    return textOf(member) ?? current;
  }

  /** A text with a default value, which is left out. */
  word(name: string, current: string | undefined, usual: string): string | undefined {
    const text = this.text(name, current);
    return text === usual ? undefined : text;
  }

  /** Any value. */
  raw(name: string, current: unknown): unknown {
    const member = this.members[name];
    if (member === null) return this.nullClears ? undefined : current;
    return member === undefined ? current : member;
  }

  /** A list, replaced as a whole. */
  entries<Entry>(name: string, current: readonly Entry[] | undefined): readonly Entry[] | undefined {
    const member = this.members[name];
    if (member === null) return this.nullClears ? undefined : current;
    const entries = entriesOf(member);
    if (entries === undefined) return current;
    return entries.length ? (entries as readonly Entry[]) : undefined;
  }

  /** `_meta`: an absent key stays, a null key is removed, another value replaces it. */
  meta(current: Members | undefined): Members | undefined {
    const member = this.members["_meta"];
    if (member === null) return this.nullClears ? undefined : current;
    const keys = membersOf(member);
    if (keys === undefined) return current;
    const merged = Object.entries({ ...current, ...keys }).filter(([, value]) => value !== null);
    return merged.length ? Object.fromEntries(merged) : undefined;
  }
}
