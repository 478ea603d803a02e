/** The banner of a lost connection. It appears after a pause, only while the page is visible, and goes with the first event. */

import { signal, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect } from "preact/hooks";

import type { Feed } from "../state/daemon.js";

/** A connection that comes back within this time is not reported. */
const QUIET_MS = 3_000;

/** The daemon does not answer, so the states that the page shows may be out of date. */
export const isAway = signal(false);

export function LinkMark({ feed }: { readonly feed: Feed }) {
  const isSeen = useSignal(document.visibilityState === "visible");
  useEffect(() => {
    const look = () => {
      isSeen.value = document.visibilityState === "visible";
    };
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  useSignalEffect(() => {
    isAway.value = false;
    if (feed.link.value === "open" || !isSeen.value) return undefined;
    const timer = setTimeout(() => {
      isAway.value = true;
    }, QUIET_MS);
    return () => clearTimeout(timer);
  });
  return (
    <div class="link-mark" role="status">
      {isAway.value && <span class="badge warn">Reconnecting… this view may be out of date</span>}
    </div>
  );
}
