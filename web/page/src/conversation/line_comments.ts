/** Comments on lines of diffs, gathered until the next prompt, of which they become a part. */

export interface LineComment {
  readonly path: string;
  readonly line: number;
  /** Whether the line is one of the old file or of the new one. */
  readonly side: "old" | "new";
  /** The line itself. */
  readonly text: string;
  readonly comment: string;
}

/** What is sent: each comment with its place and the line it is about. */
export function promptOf(words: string, comments: readonly LineComment[]): string {
  const told = comments.map(({ path, line, side, text, comment }) => {
    const place = side === "old" ? `${path}, line ${line} before the change` : `${path}:${line}`;
    return `${place}\n> ${text.trim()}\n${comment.trim()}`;
  });
  const heading = comments.length === 1 ? "A comment on the change:" : "Comments on the changes:";
  return [words.trim(), ...(told.length ? [heading, ...told] : [])].filter(Boolean).join("\n\n");
}
