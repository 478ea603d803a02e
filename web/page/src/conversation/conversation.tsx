/** What was said in a session. */

import type { Daemon } from "../state/daemon.js";

export function Conversation({ sessionId }: { readonly daemon: Daemon; readonly sessionId: string }) {
  return <p class="soft">The conversation of {sessionId} comes here.</p>;
}
