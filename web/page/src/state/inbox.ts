/** Every permission request that waits for an answer, of all sessions, live. */

import { type ReadonlySignal, effect, signal } from "@preact/signals";
import type { PermissionMembers } from "@turnwire/client";

import type { Daemon } from "./daemon.js";
import type { SessionList } from "./session_list.js";

export interface Asked {
  readonly sessionId: string;
  readonly title: string;
  readonly request: PermissionMembers;
  readonly at: number;
}

export class Inbox {
  readonly #asked = signal<readonly Asked[]>([]);
  readonly asked: ReadonlySignal<readonly Asked[]> = this.#asked;

  constructor(
    private readonly daemon: Daemon,
    list: SessionList,
  ) {
    effect(() => {
      void this.#read(list.sessions.value.filter((each) => each.entry.permissionCount > 0).map((each) => each.entry));
    });
  }

  async answer(asked: Pick<Asked, "sessionId" | "request">, answer: object): Promise<void> {
    const path = `/session/${encodeURIComponent(asked.sessionId)}/permissions/${encodeURIComponent(asked.request.requestId)}`;
    await this.daemon.client.request("POST", path, answer, { repeatable: true });
  }

  async #read(entries: readonly { sessionId: string; title?: string }[]): Promise<void> {
    const found = await Promise.all(
      entries.map(async ({ sessionId, title }) => {
        const path = `/session/${encodeURIComponent(sessionId)}/permissions?acp=agent`;
        const open = await this.daemon.client.request<{ permissions: (PermissionMembers & { at: number })[] }>("GET", path);
        return open.permissions.map((request) => ({ sessionId, title: title ?? "", request, at: request.at }));
      }),
    );
    this.#asked.value = found.flat().sort((a, b) => a.at - b.at);
  }
}

export function openInbox(daemon: Daemon, list: SessionList): Inbox {
  return new Inbox(daemon, list);
}
