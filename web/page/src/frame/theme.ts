/** The theme: light, dark, or the system's. */

import { effect } from "@preact/signals";

import { kept } from "./kept.js";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const THEME_WORDS: Readonly<Record<Theme, string>> = {
  system: "System",
  light: "Light",
  dark: "Dark",
};

/** The user's choice. */
export const theme = kept<Theme>("theme", THEMES);

/** Apply the theme now and whenever it changes. */
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
