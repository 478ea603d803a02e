/**
 * How the page comes in: it asks the daemon who we are. Without a login it says how to get one, and comes in by itself
 * once there is; if the daemon does not answer it says so, and asks again.
 */

import { type ReadonlySignal, effect, signal } from "@preact/signals";
import { type DaemonCalls, Unauthenticated, reach } from "@turnwire/client";

import type { Daemon } from "../state/daemon.js";
import { openFeed } from "../state/feed.js";
import { base, pageKey } from "./page_key.js";
import { wordsOf } from "./toasts.js";

export type Stage =
  | { readonly at: "starting" }
  | { readonly at: "login" }
  | { readonly at: "unreachable"; readonly why: string }
  | { readonly at: "in"; readonly daemon: Daemon };

const AGAIN_MS = 2_000;
const current = signal<Stage>({ at: "starting" });
export const stage: ReadonlySignal<Stage> = current;
let isAsking = false;
/** Tabs tell each other here that they came in. */
const others = typeof BroadcastChannel === "function" ? new BroadcastChannel(`turnwire ${base.pathname}`) : undefined;

/** Begin, and come in whenever that becomes possible. */
export function start(): void {
  const ask = () => {
    if (current.peek().at !== "in" && document.visibilityState === "visible") void enter();
  };
  // It is known that there is a login, so also tabs that nobody looks at come in.
  if (others) others.onmessage = () => void (current.peek().at !== "in" && enter());
  document.addEventListener("visibilitychange", ask);
  addEventListener("focus", ask);
  addEventListener("online", ask);
  void enter();
}

async function enter(): Promise<void> {
  if (isAsking) return;
  isAsking = true;
  try {
    const client = await reach(base, { acp: "agent", pageKey: pageKey() });
    welcome(client);
  } catch (error) {
    if (error instanceof Unauthenticated) current.value = { at: "login" };
    else {
      current.value = { at: "unreachable", why: wordsOf(error) };
      setTimeout(() => void enter(), AGAIN_MS);
    }
  } finally {
    isAsking = false;
  }
}

let hasBeenIn = false;

function welcome(client: DaemonCalls): void {
  // Another login may see other things: nothing of the last one is kept.
  if (hasBeenIn) return location.reload();
  hasBeenIn = true;
  const { caller } = client.capabilities;
  const feed = openFeed(base.href);
  effect(() => {
    if (feed.link.value === "refused") current.value = { at: "login" };
  });
  others?.postMessage("in");
  current.value = { at: "in", daemon: { client, caller, feed } };
}

/** What is shown until the page is in. */
export function Outside({ shown }: { readonly shown: Exclude<Stage, { at: "in" }> }) {
  switch (shown.at) {
    case "starting":
      return <main class="outside" aria-busy="true" />;
    case "login":
      return (
        <main class="outside">
          <h1>Log in</h1>
          <p>On the machine of the daemon, run</p>
          <p>
            <code>turnwire open</code>
          </p>
          <p>
            which opens this page logged in. Or run <code>turnwire login</code>, and open the link that it prints in this
            browser. The link works once.
          </p>
          <p class="soft" role="status">
            This page goes on by itself when you are logged in.
          </p>
        </main>
      );
    case "unreachable":
      return (
        <main class="outside">
          <h1>The daemon does not answer</h1>
          <p>
            Is it running? <code>turnwire serve</code> starts it.
          </p>
          <p class="soft" role="status">
            Trying again. {shown.why}
          </p>
        </main>
      );
  }
}
