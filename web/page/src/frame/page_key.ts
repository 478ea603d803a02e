/**
 * The half of this browser's login that is not in its cookie. Cookies go to every port of a host; this is stored per
 * origin, and every request that shows the cookie must show it too. The login page writes it.
 */

/** Where the daemon is mounted. */
export const base = new URL(".", location.href);

export function pageKey(): string | undefined {
  return localStorage.getItem(`turnwire key ${base.pathname}`) ?? undefined;
}
