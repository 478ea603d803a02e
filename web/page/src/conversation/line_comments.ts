/** Comments on lines of diffs, which become part of the next prompt. */

import type { LineComment } from "../content/diff.js";

/** Return the prompt: the text, and each comment with its location and line. */
export function promptOf(words: string, comments: readonly LineComment[]): string {
  const told = comments.map(({ path, line, side, text, comment }) => {
    const place = side === "old" ? `${path}, line ${line} before the change` : `${path}:${line}`;
    return `${place}\n> ${text.trim()}\n${comment.trim()}`;
  });
  const heading = comments.length === 1 ? "A comment on the change:" : "Comments on the changes:";
  return [words.trim(), ...(told.length ? [heading, ...told] : [])].filter(Boolean).join("\n\n");
}
