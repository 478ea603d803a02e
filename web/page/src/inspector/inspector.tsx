/** Every event of a session. */

import type { Daemon } from "../state/daemon.js";

export function Inspector({ sessionId }: { readonly daemon: Daemon; readonly sessionId: string; readonly turn?: string }) {
  return <p class="soft">The inspector of {sessionId} comes here.</p>;
}
