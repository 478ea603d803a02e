/**
 * Characters that change how a text looks but not its meaning: bidirectional controls, zero-width characters, fillers
 * and other controls. Shown unchanged, they could disguise a command in a permission request ("Trojan Source").
 */

const HIDDEN =
  /[\0-\x08\v-\x1F\x7F-\x9F\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180E\u200B\u200E\u200F\u2028-\u202E\u2060-\u206F\u3164\uFEFF\uFFA0\uFFF9-\uFFFB\u{E0000}-\u{E007F}]/u;
/** Joiners are part of emoji and of some scripts; elsewhere they only hide. */
const JOINER =
  /(?<![\p{Extended_Pictographic}\p{Emoji_Modifier}\uFE0F])(?<!(?!\p{Script=Latin})\p{L}\p{M}*)[\u200C\u200D]/u;
const ALL = new RegExp(`${HIDDEN.source}|${JOINER.source}`, "gu");

/** Return the text with each of them replaced by a mark such as `⟨U+202E⟩`. */
export function visible(text: string): string {
  return text.replace(ALL, (each) => `⟨U+${each.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function isMarked(text: string): boolean {
  return text.search(ALL) >= 0;
}
