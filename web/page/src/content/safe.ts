/**
 * Sanitized HTML of agents: no scripts, styles, forms or frames, nothing loaded from other hosts, and no class or id by
 * which it could imitate a part of the page. `safe` returns nodes that are ready to be shown.
 */

import { TAGS } from "./tags.js";

const ATTRIBUTES = "align alt checked class colspan disabled href open rowspan src start title type".split(" ");

/** Schemes that the browser may open. Other addresses belong to the agent's machine and are only shown. */
const OPENS = /^(?:https?:\/\/|mailto:)/i;
const SHOWS = /^data:image\/(?:png|gif|jpe?g|webp|avif|bmp|svg\+xml)[;,]/i;

/** Whether the browser has a sanitizer. Without one, tags in Markdown are shown as text. */
export const canReadHtml = typeof Element !== "undefined" && "setHTML" in Element.prototype;
const SANITIZER = { elements: TAGS, attributes: ATTRIBUTES };

/**
 * Return the nodes of `html` without anything harmful, with a box around each code block and table. `isPlain`: it was
 * made of Markdown without tags, so the check is simpler and many times faster.
 */
export function safe(html: string, isPlain: boolean): DocumentFragment {
  // Nothing runs or loads inside a template.
  const nodes = isPlain ? plainNodes(html) : sanitizedNodes(html);
  // Before the nodes are in the document: an image starts to load as soon as it is.
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
  // A separate document: otherwise the policy of this one would report HTML that is only parsed.
  const inert = document.implementation.createHTMLDocument();
  const root = inert.createElement("div") as unknown as HTMLElement & { setHTML(html: string, how: object): void };
  root.setHTML(quiet(html), { sanitizer: SANITIZER });
  // In the same document: an image starts to load as soon as it belongs to this one, and images are not limited yet.
  const nodes = inert.createDocumentFragment();
  nodes.append(...root.childNodes);
  return nodes;
}

/**
 * Remove attributes that browsers report to the page's policy when they parse HTML, although nothing of them remains
 * afterwards. This does not sanitize.
 */
function quiet(html: string): string {
  return html.replace(/<[a-z](?:"[^"]*"|'[^']*'|[^>"'])*>/gi, (tag) =>
    tag.replace(/([^\s"'<>/=]+)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+)/g, (attribute, name: string) =>
      /^(?:on|style$)/i.test(name) ? "" : attribute,
    ),
  );
}

/** A code element that contains only text. */
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

/** An image of another host is replaced by its address. */
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

/** A link opens in a new tab; one that cannot be opened from here is shown as text. */
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

/** Code with the name of its language and a copy button. */
function boxCode(pre: HTMLElement): HTMLElement {
  const outer = box(pre, "code");
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  // A scrollable region must be reachable with the keyboard.
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
