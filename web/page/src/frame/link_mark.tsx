/** That no news comes: said only while somebody looks and it has been so for a while, and gone with the first news. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect } from "preact/hooks";

import type { Feed } from "../state/daemon.js";

/** Shorter than this, a link that is lost comes back without anybody having noticed. */
const QUIET_MS = 3_000;

export function LinkMark({ feed }: { readonly feed: Feed }) {
  const isSeen = useSignal(document.visibilityState === "visible");
  const isShown = useSignal(false);
  useEffect(() => {
    const look = () => {
      isSeen.value = document.visibilityState === "visible";
    };
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  useSignalEffect(() => {
    isShown.value = false;
    if (feed.link.value === "open" || !isSeen.value) return undefined;
    const timer = setTimeout(() => {
      isShown.value = true;
    }, QUIET_MS);
    return () => clearTimeout(timer);
  });
  return (
    <div class="link-mark" role="status">
      {isShown.value && <span class="badge warn">Reconnecting … what you see may be old</span>}
    </div>
  );
}
