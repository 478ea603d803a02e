/**
 * HTML that an agent wrote, made harmless: no scripts, styles, forms or frames, nothing loaded from other hosts, no
 * class or id by which it could look like a part of the page. `safe` gives nodes that are ready to be shown.
 */

import createDOMPurify, { type Config } from "dompurify";

const TAGS =
  "a abbr b blockquote br caption center cite code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img input ins kbd " +
  "li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var";

const RULES: Config & { RETURN_DOM_FRAGMENT: true } = {
  ALLOWED_TAGS: TAGS.split(" "),
  ALLOWED_ATTR: "align alt checked class colspan disabled href open rowspan src start title type".split(" "),
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** What a browser opens for the reader. Another address is one of the agent's machine, and only shown. */
const OPENS = /^(?:https?:\/\/|mailto:)/i;
const SHOWS = /^data:image\/(?:png|gif|jpe?g|webp|avif|bmp|svg\+xml)[;,]/i;

const purifier = createDOMPurify(window);
// Before the nodes are in the document: an image begins to load as soon as it is.
purifier.addHook("afterSanitizeAttributes", (node) => {
  keepLanguage(node);
  if (node.tagName === "IMG") limitImage(node);
  else if (node.tagName === "INPUT") limitInput(node);
  else if (node.tagName === "A") limitLink(node);
});

/** The nodes of `html` without what could do harm, with a box around each code and table. */
export function safe(html: string): DocumentFragment {
  const nodes = purifier.sanitize(html, RULES);
  for (const link of nodes.querySelectorAll("a:not([href])")) link.replaceWith(address(link));
  for (const image of nodes.querySelectorAll("img:not([src])")) image.replaceWith(imageLink(image));
  for (const table of nodes.querySelectorAll("table")) box(table, "table-box");
  for (const pre of nodes.querySelectorAll("pre")) boxCode(pre);
  return nodes;
}

/** A code that is nothing but text. */
export function codeBox(text: string, language: string): HTMLElement {
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  if (language !== "") code.className = `language-${language}`;
  code.append(text);
  pre.append(code);
  return boxCode(pre);
}

function keepLanguage(node: Element): void {
  const name = /(?:^|\s)language-([\w+#.-]+)/.exec(node.getAttribute("class") ?? "")?.[1];
  if (node.tagName === "CODE" && name !== undefined) node.className = `language-${name}`;
  else node.removeAttribute("class");
}

function limitImage(node: Element): void {
  const source = node.getAttribute("src") ?? "";
  if (SHOWS.test(source)) return;
  node.removeAttribute("src");
  node.setAttribute("data-source", source);
}

function limitInput(node: Element): void {
  if (node.getAttribute("type") !== "checkbox") node.remove();
  else node.setAttribute("disabled", "");
}

function limitLink(node: Element): void {
  const href = node.getAttribute("href") ?? "";
  if (OPENS.test(href)) {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
    return;
  }
  node.removeAttribute("href");
  if (href !== "" && href !== node.textContent) node.setAttribute("title", href);
}

/** A link that leads nowhere from here. */
function address(link: Element): HTMLElement {
  const shown = document.createElement("span");
  shown.className = "address";
  const title = link.getAttribute("title");
  if (title !== null) shown.title = title;
  shown.append(...link.childNodes);
  return shown;
}

/** An image of another host, by its address. */
function imageLink(image: Element): HTMLElement {
  const source = image.getAttribute("data-source") ?? "";
  const opens = OPENS.test(source) && image.closest("a") === null;
  const shown = document.createElement(opens ? "a" : "span");
  shown.textContent = `Image: ${image.getAttribute("alt") || source || "without an address"}`;
  shown.title = source;
  if (shown instanceof HTMLAnchorElement) {
    shown.href = source;
    shown.target = "_blank";
    shown.rel = "noopener noreferrer";
  }
  return shown;
}

function box(inner: Element, name: string): HTMLElement {
  const outer = document.createElement("div");
  outer.className = name;
  inner.replaceWith(outer);
  outer.append(inner);
  return outer;
}

/** Code with the name of its language and a button that copies it. */
function boxCode(pre: HTMLElement): HTMLElement {
  const outer = box(pre, "code");
  // What scrolls is reached by the keyboard, too.
  pre.tabIndex = 0;
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = "Copy";
  copy.ariaLabel = language === "" ? "Copy this code" : `Copy this ${language} code`;
  head.append(name, copy);
  outer.prepend(head);
  return outer;
}
