/** What was said in a session. */

import type { Daemon } from "../state/daemon.js";
import type { SessionList } from "../state/session_list.js";

export function Conversation({ sessionId }: { readonly daemon: Daemon; readonly list: SessionList; readonly sessionId: string }) {
  return <p class="soft">The conversation of {sessionId} comes here.</p>;
}
