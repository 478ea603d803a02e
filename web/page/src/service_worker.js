/**
 * The page's service worker. It caches the page's hashed files only: no response of the daemon and not the document, so
 * that the page is never older than the daemon. If the daemon is unreachable, it shows a message. It also opens the
 * session of a notification, and sends the answer that was chosen in one.
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
  // Everything else goes to the daemon.
});

/** File names contain a hash of the content, so a cached file is current. */
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
<p>It is not running, or there is no network connection to it. Sessions are shown again when it answers.</p>
<p class="soft" role="status">This page reloads as soon as the daemon is back.</p>
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

/** Answer a permission request. If that fails, open the session, which shows the reason. */
async function answer(about, optionId) {
  try {
    const path = `session/${encodeURIComponent(about.sessionId)}/permissions/${encodeURIComponent(about.requestId)}`;
    const body = JSON.stringify({ outcome: { outcome: "selected", optionId } });
    const headers = { "Content-Type": "application/json", ...(about.pageKey && { "Turnwire-Page-Key": about.pageKey }) };
    const sent = await fetch(new URL(path, scope), { method: "POST", headers, body, credentials: "same-origin" });
    if (sent.ok) return;
  } catch {
    // Open the session instead.
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
