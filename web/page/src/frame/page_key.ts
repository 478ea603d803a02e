/**
 * The page key: the half of this browser's login that is not in its cookie. Browsers send cookies to every port of a
 * host, but store the page key per origin. Every request with the cookie needs it. The login page stores it.
 */

/** The URL at which the daemon is mounted. */
export const base = new URL(".", location.href);
const NAME = `turnwire key ${base.pathname}`;

export function pageKey(): string | undefined {
  return localStorage.getItem(NAME) ?? undefined;
}

export function storePageKey(key: string | null): void {
  if (key) localStorage.setItem(NAME, key);
}

export function forgetPageKey(): void {
  localStorage.removeItem(NAME);
}
