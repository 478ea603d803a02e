/**
 * Notifications of the browser, for those who asked for them. One tab speaks for all: the one that holds a lock. A tab
 * that shows a session to somebody holds a lock named after it, so that the speaker knows what needs no notification,
 * also of tabs that were killed.
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

/** Whether this browser can do it at all: not without TLS, but for this machine. */
export const canNotify =
  typeof Notification === "function" && "serviceWorker" in navigator && typeof navigator.locks === "object";

/** Whether the user is told. The choice comes after the browser's permission, in whichever tab both were given. */
export const isNotified: ReadonlySignal<boolean> = computed(
  () => canNotify && choice.value === "on" && Notification.permission === "granted",
);

/** Ask the browser for it, or stop it. */
export async function setNotified(wanted: boolean): Promise<void> {
  if (!wanted) {
    choice.value = "off";
    return;
  }
  if ((await Notification.requestPermission()) === "granted") {
    choice.value = "on";
    tell("You are told when a turn ends or an agent asks, while you look elsewhere.");
  } else {
    tell("The browser does not allow notifications of this page; its settings for this site can.");
  }
}

/** Keep the worker that shows notifications and keeps the page's files. */
export function startWorker(): void {
  if (!("serviceWorker" in navigator)) return;
  navigator.serviceWorker.register(new URL("sw.js", base)).catch((error: unknown) => {
    // A page works without.
    console.info("turnwire: no service worker", error);
  });
  navigator.serviceWorker.addEventListener("message", ({ data }: MessageEvent<{ readonly show?: string }>) => {
    if (data?.show) location.hash = data.show;
  });
}

/** Tell what happens from now on. */
export function startNotifications(daemon: Daemon, list: SessionList): void {
  if (!canNotify) return;
  showPresence();
  // Held as long as the tab lives; then the next one speaks.
  void navigator.locks.request(`${LOCK} notifies`, () => {
    daemon.feed.all((events) => {
      if (!isNotified.peek() && !events.some((each) => each.type === "permission_resolved")) return;
      void speak(daemon, list, events).catch((error: unknown) => console.info("turnwire: no notification", error));
    });
    return new Promise(() => {});
  });
}

/** As long as somebody sees a session here, say so. */
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

/** Whoever looks at a session need not be told that its turn ended. */
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
    body: body.length > TEXT ? `${body.slice(0, TEXT)} …` : body,
    icon: new URL("assets/mark-1-192.png", base).href,
    data: { sessionId, requestId: id, hash: hrefOf({ at: "session", sessionId }), pageKey: pageKey() },
    actions: about === "asked" && answers.length < 2 ? [{ action: "show", title: "Show" }, ...answers] : answers,
    requireInteraction: about === "asked",
    timestamp: Date.now(),
  };
  const title = titleOf({ sessionId, ...list.byId.peek().get(sessionId) });
  const what = { asked: "needs you", ended: "turn over", failed: "turn failed" }[about];
  await worker.showNotification(`${title}: ${what}`, more);
}

/** What the turn came to, in its own words if they can be had. */
async function resultOf(daemon: Daemon, { sessionId, id }: Note): Promise<string> {
  const turn = await daemon.client.session(sessionId).turn(id).catch(() => undefined);
  return turn?.resultText?.trim() || "The turn has ended.";
}
