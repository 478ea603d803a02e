/**
 * Browser notifications, if the user has turned them on. The tab that holds a lock shows them for all tabs. A tab with
 * a visible session holds a lock named after it, so that this session raises no notification. Locks also work for tabs
 * that were killed.
 */

import { type ReadonlySignal, computed, effect, signal } from "@preact/signals";

import { optionName } from "../content/asked.js";
import { hrefOf, route } from "../route.js";
import { titleOf } from "../sessions/badge.js";
import { type Daemon, mayControl } from "../state/daemon.js";
import type { SessionList } from "../state/session_list.js";
import { kept } from "./kept.js";
import { type Note, notesOf } from "./notes.js";
import { base, pageKey } from "./page_key.js";
import { tell } from "./toasts.js";

const LOCK = `turnwire ${base.pathname}`;
const SHOWS = `${LOCK} shows `;
const TEXT = 160;

const choice = kept<"off" | "on">("notifications", ["off", "on"]);

/** Whether this browser supports it: it requires TLS, except on this machine. */
export const canNotify =
  typeof Notification === "function" && "serviceWorker" in navigator && typeof navigator.locks === "object";

/** Whether notifications are on. The browser's permission comes first, in whichever tab it was given. */
export const isNotified: ReadonlySignal<boolean> = computed(
  () => canNotify && choice.value === "on" && Notification.permission === "granted",
);

/** Ask the browser for permission, or turn notifications off. */
export async function setNotified(wanted: boolean): Promise<void> {
  if (!wanted) {
    choice.value = "off";
    return;
  }
  if ((await Notification.requestPermission()) === "granted") {
    choice.value = "on";
    tell("Notifications are on: when a turn finishes, or an agent needs an answer, in a session that you are not viewing.");
  } else {
    tell("This browser blocks notifications from this page. Allow them in its settings for this site.");
  }
}

/** Start the service worker, which shows notifications and caches the page's files. */
export function startWorker(): void {
  if (!("serviceWorker" in navigator)) return;
  navigator.serviceWorker.register(new URL("sw.js", base)).catch((error: unknown) => {
    // The page works without a service worker.
    console.info("turnwire: no service worker", error);
  });
  navigator.serviceWorker.addEventListener("message", ({ data }: MessageEvent<{ readonly show?: string }>) => {
    if (data?.show) location.hash = data.show;
  });
}

/** Start notifying about events. */
export function startNotifications(daemon: Daemon, list: SessionList): void {
  if (!canNotify) return;
  showPresence();
  // Held for the lifetime of the tab; then the next tab takes over.
  void navigator.locks.request(`${LOCK} notifies`, () => {
    daemon.feed.all((events) => {
      if (!isNotified.peek() && !events.some((each) => each.type === "permission_resolved")) return;
      void speak(daemon, list, events).catch((error: unknown) => console.info("turnwire: no notification", error));
    });
    return new Promise(() => {});
  });
}

/** Hold a lock while a session is visible here. */
function showPresence(): void {
  const isSeen = signal(document.visibilityState === "visible");
  document.addEventListener("visibilitychange", () => {
    isSeen.value = document.visibilityState === "visible";
  });
  effect(() => {
    const at = route.value;
    if (!isSeen.value || !("sessionId" in at)) return undefined;
    void closeEnded(at.sessionId);
    const leave = new AbortController();
    let release = () => leave.abort();
    void navigator.locks
      .request(SHOWS + at.sessionId, { mode: "shared", signal: leave.signal }, () => {
        return new Promise<void>((resolve) => {
          release = resolve;
        });
      })
      .catch(() => {});
    return () => release();
  });
}

/** Close the notifications about turns of a session that is now visible. */
async function closeEnded(sessionId: string): Promise<void> {
  const shown = (await (await navigator.serviceWorker.getRegistration(base))?.getNotifications()) ?? [];
  for (const each of shown) if (each.tag.startsWith(`turn ${sessionId} `)) each.close();
}

async function speak(daemon: Daemon, list: SessionList, events: Parameters<typeof notesOf>[0]): Promise<void> {
  const { held = [] } = await navigator.locks.query();
  const seen = held.flatMap(({ name = "" }) => (name.startsWith(SHOWS) ? [name.slice(SHOWS.length)] : []));
  const { raised, over } = notesOf(events, new Set(seen));
  const worker = await navigator.serviceWorker.ready;
  for (const tag of over) for (const each of await worker.getNotifications({ tag })) each.close();
  if (!isNotified.peek()) return;
  for (const each of raised) await show(worker, daemon, list, each);
}

async function show(worker: ServiceWorkerRegistration, daemon: Daemon, list: SessionList, note: Note): Promise<void> {
  const { sessionId, about, id } = note;
  const options = mayControl(daemon.caller) ? note.options : [];
  const answers = options.map((each) => ({ action: `answer ${each.optionId}`, title: optionName(each) }));
  const body = about === "ended" ? await resultOf(daemon, note) : note.text;
  const more: NotificationOptions & { readonly actions: readonly object[]; readonly timestamp: number } = {
    tag: note.tag,
    body: body.length > TEXT ? `${body.slice(0, TEXT)}…` : body,
    icon: new URL("assets/mark-1-192.png", base).href,
    data: { sessionId, requestId: id, hash: hrefOf({ at: "session", sessionId }), pageKey: pageKey() },
    actions: about === "asked" && answers.length < 2 ? [{ action: "show", title: "Show" }, ...answers] : answers,
    requireInteraction: about === "asked",
    timestamp: Date.now(),
  };
  const title = titleOf({ sessionId, ...list.byId.peek().get(sessionId) });
  const what = { asked: "needs you", ended: "turn finished", failed: "turn failed" }[about];
  await worker.showNotification(`${title}: ${what}`, more);
}

/** Return the result of a turn: its text, if available. */
async function resultOf(daemon: Daemon, { sessionId, id }: Note): Promise<string> {
  const turn = await daemon.client.session(sessionId).turn(id).catch(() => undefined);
  return turn?.resultText?.trim() || "The turn has finished.";
}
