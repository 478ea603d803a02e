/** Unique ids, including in pages without a secure context, where `crypto.randomUUID` is missing. */

export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16).padStart(2, "0")).join(
    "",
  );
}
