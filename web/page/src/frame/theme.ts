/** Light, dark, or as the system has it. */

import { effect } from "@preact/signals";

import { kept } from "./kept.js";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const THEME_WORDS: Readonly<Record<Theme, string>> = {
  system: "As the system",
  light: "Light",
  dark: "Dark",
};

/** What the user chose. */
export const theme = kept<Theme>("theme", THEMES);

/** Show the page in it, from now on. */
export function startTheme(): void {
  const bar = document.createElement("meta");
  bar.name = "theme-color";
  document.head.append(bar);
  const root = document.documentElement;
  const show = () => {
    if (theme.value === "system") delete root.dataset["theme"];
    else root.dataset["theme"] = theme.value;
    bar.content = getComputedStyle(document.body).backgroundColor;
  };
  effect(show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
}
