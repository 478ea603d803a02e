/**
 * The page's service worker. It keeps the page's own hashed files and nothing else: no answer of the daemon, and not
 * the document, so that what is shown is never older than the daemon. Without a daemon it says so. It also shows what
 * notifications lead to, and sends the answers that were given on them.
 */

const FILES = "turnwire-files-1";
const MOST_FILES = 60;
const ANSWER = "answer ";
const scope = new URL(self.registration.scope);
const assets = new URL("assets/", scope).href;

const waiting = new URL("unreachable-1.js", assets).href;

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(caches.open(FILES).then((files) => files.add(waiting)));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET") return;
  if (url.href.startsWith(assets)) event.respondWith(file(request));
  else if (request.mode === "navigate" && url.pathname === scope.pathname) event.respondWith(page(request));
  // All else is the daemon's own business.
});

/** A name has the hash of what is in it, so a file that was kept is the right one. */
async function file(request) {
  const files = await caches.open(FILES);
  const known = await files.match(request);
  if (known) return known;
  const answer = await fetch(request);
  if (answer.ok) {
    await files.put(request, answer.clone());
    const all = await files.keys();
    const old = all.filter((each) => each.url !== waiting).slice(0, -MOST_FILES);
    await Promise.all(old.map((each) => files.delete(each)));
  }
  return answer;
}

async function page(request) {
  try {
    return await fetch(request);
  } catch {
    return await unreachable();
  }
}

async function unreachable() {
  const files = await (await caches.open(FILES)).keys();
  const styles = files.map((each) => each.url).filter((url) => url.endsWith(".css"));
  const links = styles.slice(-1).map((url) => `<link rel="stylesheet" href="${url}">`);
  const html = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>turnwire: not reachable</title>
${links.join("")}
<main class="outside">
<h1>The daemon is not reachable</h1>
<p>It is not running, or there is no network between you and it. Nothing is shown until it answers, because it might not be true any more.</p>
<p class="soft" role="status">This page comes back by itself when it does.</p>
</main>
<script src="${waiting}"></script>
</html>`;
  const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  const headers = { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy };
  return new Response(html, { status: 503, headers });
}

// -- notifications -------------------------------------------------------------------------------------------

self.addEventListener("notificationclick", (event) => {
  const { notification, action } = event;
  notification.close();
  const isAnswer = action.startsWith(ANSWER);
  event.waitUntil(isAnswer ? answer(notification.data, action.slice(ANSWER.length)) : show(notification.data));
});

/** Answer a permission request. If that does not work, show the session, which says why. */
async function answer(about, optionId) {
  try {
    const path = `session/${encodeURIComponent(about.sessionId)}/permissions/${encodeURIComponent(about.requestId)}`;
    const body = JSON.stringify({ outcome: { outcome: "selected", optionId } });
    const headers = { "Content-Type": "application/json", ...(about.pageKey && { "Turnwire-Page-Key": about.pageKey }) };
    const sent = await fetch(new URL(path, scope), { method: "POST", headers, body, credentials: "same-origin" });
    if (sent.ok) return;
  } catch {
    // As below.
  }
  await show(about);
}

async function show({ hash }) {
  const open = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const ours = open.filter((each) => new URL(each.url).pathname === scope.pathname);
  const tab = ours.find((each) => each.focused) ?? ours.find((each) => new URL(each.url).hash === hash) ?? ours[0];
  if (!tab) return void (await self.clients.openWindow(new URL(hash, scope)));
  tab.postMessage({ show: hash });
  await tab.focus();
}
