/** Names that nobody else has, also on pages without a secure context, where there is no `crypto.randomUUID`. */

export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16).padStart(2, "0")).join(
    "",
  );
}
