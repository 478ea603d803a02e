/**
 * The highlighter with its languages, in a chunk that is loaded on demand. A language without its own rules uses those
 * of a similar one.
 */

import bash from "@speed-highlight/core/languages/bash.js";
import c from "@speed-highlight/core/languages/c.js";
import css from "@speed-highlight/core/languages/css.js";
import diff from "@speed-highlight/core/languages/diff.js";
import go from "@speed-highlight/core/languages/go.js";
import java from "@speed-highlight/core/languages/java.js";
import js from "@speed-highlight/core/languages/js.js";
import json from "@speed-highlight/core/languages/json.js";
import py from "@speed-highlight/core/languages/py.js";
import rs from "@speed-highlight/core/languages/rs.js";
import toml from "@speed-highlight/core/languages/toml.js";
import ts from "@speed-highlight/core/languages/ts.js";
import xml from "@speed-highlight/core/languages/xml.js";
import yaml from "@speed-highlight/core/languages/yaml.js";
import { type ShjLanguageData, tokenizeWith } from "@speed-highlight/core/tokenize";

const LANGUAGES: Readonly<Record<string, unknown>> = {
  bash, c, css, diff, go, java, js, json, py, rs, toml, ts, xml, yaml,
};
const NEAR: Readonly<Record<string, string>> = {
  bash: "sh shell zsh fish console ps1 powershell make makefile docker dockerfile",
  c: "cpp c++ cc cxx h hpp objc",
  css: "scss less",
  diff: "patch",
  java: "kotlin kt csharp cs scala dart swift",
  js: "javascript jsx mjs cjs",
  json: "jsonc json5 jsonl",
  py: "python pyi",
  rs: "rust",
  ts: "typescript tsx mts cts",
  toml: "ini cfg conf properties",
  xml: "html htm svg vue svelte",
  yaml: "yml",
};
const NAMES = new Map(Object.entries(NEAR).flatMap(([name, near]) => near.split(" ").map((each) => [each, name])));

/**
 * Return HTML of the code, with its text escaped and a class for each kind of token; undefined for an unknown language.
 */
export function highlighted(code: string, language: string): string | undefined {
  const name = language.toLowerCase();
  const known = LANGUAGES[NAMES.get(name) ?? name];
  if (known === undefined) return undefined;
  let shown = "";
  const take = (text: string, kind?: string): void => {
    if (text === "") return;
    const escaped = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    shown += kind === undefined ? escaped : `<span class="code-${kind}">${escaped}</span>`;
  };
  const languages = LANGUAGES as Readonly<Record<string, ShjLanguageData>>;
  tokenizeWith(code, known as ShjLanguageData, take, { languages });
  return shown;
}
