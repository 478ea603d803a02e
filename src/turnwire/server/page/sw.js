var e=`turnwire-files-1`,t=new URL(self.registration.scope),n=new URL(`assets/`,t).href,r=new URL(`unreachable-1.js`,n).href;self.addEventListener(`install`,t=>{self.skipWaiting(),t.waitUntil(caches.open(e).then(e=>e.add(r)))}),self.addEventListener(`activate`,e=>e.waitUntil(self.clients.claim())),self.addEventListener(`fetch`,e=>{let{request:r}=e,o=new URL(r.url);r.method===`GET`&&(o.href.startsWith(n)?e.respondWith(i(r)):r.mode===`navigate`&&o.pathname===t.pathname&&e.respondWith(a(r)))});async function i(t){let n=await caches.open(e),i=await n.match(t);if(i)return i;let a=await fetch(t);if(a.ok){await n.put(t,a.clone());let e=(await n.keys()).filter(e=>e.url!==r).slice(0,-60);await Promise.all(e.map(e=>n.delete(e)))}return a}async function a(e){try{return await fetch(e)}catch{return await o()}}async function o(){let t=`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>turnwire: not reachable</title>
${(await(await caches.open(e)).keys()).map(e=>e.url).filter(e=>e.endsWith(`.css`)).slice(-1).map(e=>`<link rel="stylesheet" href="${e}">`).join(``)}
<main class="outside">
<h1>The daemon is not reachable</h1>
<p>It is not running, or there is no network between you and it. Nothing is shown until it answers, because it might not be true any more.</p>
<p class="soft" role="status">This page comes back by itself when it does.</p>
</main>
<script src="${r}"><\/script>
</html>`;return new Response(t,{status:503,headers:{"Content-Type":`text/html; charset=utf-8`,"Content-Security-Policy":`default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`}})}self.addEventListener(`notificationclick`,e=>{let{notification:t,action:n}=e;t.close(),e.waitUntil(n?s(t.data,n):c(t.data))});async function s(e,n){try{let r=`session/${encodeURIComponent(e.sessionId)}/permissions/${encodeURIComponent(e.requestId)}`,i=JSON.stringify({outcome:{outcome:`selected`,optionId:n}});if((await fetch(new URL(r,t),{method:`POST`,headers:{"Content-Type":`application/json`},body:i,credentials:`same-origin`})).ok)return}catch{}await c(e)}async function c({hash:e}){let n=(await self.clients.matchAll({type:`window`,includeUncontrolled:!0})).filter(e=>new URL(e.url).pathname===t.pathname),r=n.find(e=>e.focused)??n.find(t=>new URL(t.url).hash===e)??n[0];if(!r)return void await self.clients.openWindow(new URL(e,t));r.postMessage({show:e}),await r.focus()}