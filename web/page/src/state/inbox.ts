/** The open requests of all sessions, live. A request is closed by the daemon's event. */

import { type ReadonlySignal, computed, effect, signal } from "@preact/signals";
import { type AnyEvent, type PermissionMembers, TurnwireError } from "@turnwire/client";

import type { Daemon } from "./daemon.js";
import type { SessionList } from "./session_list.js";

export interface Asked {
  readonly sessionId: string;
  readonly title: string;
  readonly request: PermissionMembers;
  /** Time of the request; 0 if unknown. */
  readonly at: number;
}

/** `heard`: the time of arrival by this tab's clock. */
type Open = Omit<Asked, "title"> & { readonly heard: number };

export class Inbox {
  /** By session id and request id. */
  readonly #open = signal<ReadonlyMap<string, Open>>(new Map());
  /** Closed requests: a late list does not bring them back. */
  readonly #over = new Set<string>();
  readonly asked: ReadonlySignal<readonly Asked[]> = computed(() => {
    const sessions = this.list.byId.value;
    return [...this.#open.value.values()]
      .map((each) => ({ ...each, title: sessions.get(each.sessionId)?.title ?? sessions.get(each.sessionId)?.firstPrompt ?? "" }))
      .sort((one, other) => one.at - other.at);
  });

  constructor(
    private readonly daemon: Daemon,
    private readonly list: SessionList,
  ) {
    daemon.feed.all((events) => this.#hear(events));
    // The list is read after the subscription, so the list and the events together are complete.
    effect(() => {
      if (list.loads.value > 0) void this.#read();
    });
  }

  /** Answer a request. `body`: `{outcome}` for a permission request, `{answer}` for a form. */
  async answer(asked: Pick<Asked, "sessionId" | "request">, body: object): Promise<void> {
    await this.daemon.client.session(asked.sessionId).reply(asked.request.requestId, body);
  }

  #hear(events: readonly AnyEvent[]): void {
    for (const each of events) {
      if (each.type === "permission_request") {
        const { sessionId, ...request } = each.data;
        this.#add({ sessionId, request, at: each._meta?.serverTimestamp ?? 0, heard: performance.now() });
      } else if (each.type === "permission_resolved") {
        this.#remove(keyOf(each.data.sessionId, each.data.requestId));
      } else if (each.type === "session_closed") {
        for (const [key, open] of this.#open.peek()) if (open.sessionId === each.data.sessionId) this.#remove(key);
      }
    }
  }

  /** Read the requests from before the subscription, or from a gap in it. */
  async #read(): Promise<void> {
    const needing = [...this.list.byId.peek().values()].filter((each) => each.permissionCount > 0);
    const ids = new Set(needing.map((each) => each.sessionId));
    for (const [key, open] of this.#open.peek()) if (!ids.has(open.sessionId)) this.#remove(key);
    for (const each of needing) await this.#readOf(each.sessionId);
  }

  async #readOf(sessionId: string): Promise<void> {
    const asked = performance.now();
    try {
      const path = `/session/${encodeURIComponent(sessionId)}/permissions?acp=agent`;
      const answer = await this.daemon.client.request<{ permissions: (PermissionMembers & { at: number })[] }>("GET", path);
      const listed = new Set(answer.permissions.map((each) => keyOf(sessionId, each.requestId)));
      for (const [key, open] of this.#open.peek()) {
        // A request that arrived meanwhile is newer than the list.
        if (open.sessionId === sessionId && open.heard < asked && !listed.has(key)) this.#remove(key);
      }
      for (const request of answer.permissions) {
        this.#add({ sessionId, request, at: request.at, heard: performance.now() });
      }
    } catch (error) {
      // If the daemon is away, the list is read again when it is back.
      if (!(error instanceof TurnwireError)) throw error;
    }
  }

  #add(open: Open): void {
    const key = keyOf(open.sessionId, open.request.requestId);
    if (this.#over.has(key) || this.#open.peek().has(key)) return;
    this.#open.value = new Map([...this.#open.peek(), [key, open]]);
  }

  #remove(key: string): void {
    this.#over.add(key);
    if (!this.#open.peek().has(key)) return;
    const remaining = new Map(this.#open.peek());
    remaining.delete(key);
    this.#open.value = remaining;
  }
}

function keyOf(sessionId: string, requestId: string): string {
  return `${sessionId} ${requestId}`;
}

export function openInbox(daemon: Daemon, list: SessionList): Inbox {
  return new Inbox(daemon, list);
}
