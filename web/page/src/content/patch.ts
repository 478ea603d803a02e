/**
 * Make one element like another with as few changes as a growing text needs. Nodes that stay in place are kept, and
 * with them the selection, folds and scroll positions.
 */

/** Make the children of `shown` those of `wanted`, which is consumed. */
export function patchChildren(shown: Node, wanted: Node): void {
  let old = shown.firstChild;
  let next = wanted.firstChild;
  while (next !== null) {
    const [oldAfter, nextAfter]: [ChildNode | null, ChildNode | null] = [
      old?.nextSibling ?? null,
      next.nextSibling,
    ];
    if (old === null) shown.appendChild(next);
    else if (old.nodeName !== next.nodeName) shown.replaceChild(next, old);
    else patchNode(old, next);
    [old, next] = [oldAfter, nextAfter];
  }
  while (old !== null) {
    const after: ChildNode | null = old.nextSibling;
    old.remove();
    old = after;
  }
}

function patchNode(old: ChildNode, next: ChildNode): void {
  if (old instanceof Element && next instanceof Element) {
    patchAttributes(old, next);
    patchChildren(old, next);
  } else if (old.nodeValue !== next.nodeValue) {
    old.nodeValue = next.nodeValue;
  }
}

function patchAttributes(old: Element, next: Element): void {
  // Keep what the reader folded or unfolded.
  next.toggleAttribute("open", old.hasAttribute("open"));
  for (const name of old.getAttributeNames()) if (!next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}
