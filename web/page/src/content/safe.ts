/**
 * HTML that an agent wrote, made harmless: no scripts, styles, forms or frames, nothing loaded from other hosts, no
 * class or id by which it could look like a part of the page. `safe` gives nodes that are ready to be shown.
 */

import { TAGS } from "./tags.js";

const ATTRIBUTES = "align alt checked class colspan disabled href open rowspan src start title type".split(" ");

/** What a browser opens for the reader. Another address is one of the agent's machine, and only shown. */
const OPENS = /^(?:https?:\/\/|mailto:)/i;
const SHOWS = /^data:image\/(?:png|gif|jpe?g|webp|avif|bmp|svg\+xml)[;,]/i;

/** Whether the browser itself can make HTML harmless. Where it cannot, tags in markdown are words. */
export const canReadHtml = typeof Element !== "undefined" && "setHTML" in Element.prototype;
const SANITIZER = { elements: TAGS, attributes: ATTRIBUTES };

/**
 * The nodes of `html` without what could do harm, with a box around each code and table. `isPlain` if it was made of
 * markdown without a tag, so that it can only have what markdown has: that is seen to many times as fast.
 */
export function safe(html: string, isPlain: boolean): DocumentFragment {
  // In a template nothing runs or loads.
  const nodes = isPlain ? plainNodes(html) : sanitizedNodes(html);
  // Before they are in the document: an image begins to load as soon as it is.
  for (const code of nodes.querySelectorAll("[class]")) keepLanguage(code);
  for (const image of nodes.querySelectorAll("img")) limitImage(image);
  for (const input of nodes.querySelectorAll("input")) limitInput(input);
  for (const link of nodes.querySelectorAll("a")) limitLink(link);
  for (const table of nodes.querySelectorAll("table")) box(table, "table-box");
  for (const pre of nodes.querySelectorAll("pre")) boxCode(pre);
  return nodes;
}

function plainNodes(html: string): DocumentFragment {
  const template = document.createElement("template");
  template.innerHTML = html;
  for (const element of template.content.querySelectorAll("*")) {
    if (!KNOWN_TAGS.has(element.localName)) element.remove();
    for (const name of element.getAttributeNames()) if (!KNOWN_ATTRIBUTES.has(name)) element.removeAttribute(name);
  }
  return template.content;
}

const KNOWN_TAGS: ReadonlySet<string> = new Set(TAGS);
const KNOWN_ATTRIBUTES: ReadonlySet<string> = new Set(ATTRIBUTES);

function sanitizedNodes(html: string): DocumentFragment {
  // A document of its own: the policy of ours reports what was only read.
  const inert = document.implementation.createHTMLDocument();
  const root = inert.createElement("div") as unknown as HTMLElement & { setHTML(html: string, how: object): void };
  root.setHTML(quiet(html), { sanitizer: SANITIZER });
  // Of the same document: an image begins to load as soon as it belongs to ours, and they are not limited yet.
  const nodes = inert.createDocumentFragment();
  nodes.append(...root.childNodes);
  return nodes;
}

/**
 * HTML without attributes that a browser reports to the page's policy as soon as it reads them, though nothing of them
 * is left afterwards. It makes nothing safe.
 */
function quiet(html: string): string {
  return html.replace(/<[a-z](?:"[^"]*"|'[^']*'|[^>"'])*>/gi, (tag) =>
    tag.replace(/([^\s"'<>/=]+)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+)/g, (attribute, name: string) =>
      /^(?:on|style$)/i.test(name) ? "" : attribute,
    ),
  );
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

/** An image of another host is shown by its address. */
function limitImage(image: HTMLImageElement): void {
  const source = image.getAttribute("src") ?? "";
  if (SHOWS.test(source)) return;
  const shown = document.createElement("a");
  shown.append(`Image: ${image.alt || source || "without an address"}`);
  shown.setAttribute("href", source);
  if (image.closest("a") !== null) image.replaceWith(...shown.childNodes);
  else image.replaceWith(shown);
}

function limitInput(input: HTMLInputElement): void {
  if (input.getAttribute("type") !== "checkbox") input.remove();
  else input.disabled = true;
}

/** A link opens in a tab of its own; one that leads nowhere from here is only shown. */
function limitLink(link: HTMLAnchorElement): void {
  const href = link.getAttribute("href") ?? "";
  if (OPENS.test(href)) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    return;
  }
  const shown = document.createElement("span");
  shown.className = "address";
  if (href !== link.textContent) shown.title = href;
  shown.append(...link.childNodes);
  link.replaceWith(shown);
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
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  // What scrolls is reached by the keyboard, too.
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", `Code ${language}`.trim());
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
