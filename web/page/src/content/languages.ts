/**
 * The highlighter with its languages: a chunk of its own. A language that is near another is coloured as that.
 */

import bash from "@speed-highlight/core/languages/bash.js";
import c from "@speed-highlight/core/languages/c.js";
import css from "@speed-highlight/core/languages/css.js";
import diff from "@speed-highlight/core/languages/diff.js";
import docker from "@speed-highlight/core/languages/docker.js";
import go from "@speed-highlight/core/languages/go.js";
import html from "@speed-highlight/core/languages/html.js";
import ini from "@speed-highlight/core/languages/ini.js";
import java from "@speed-highlight/core/languages/java.js";
import js from "@speed-highlight/core/languages/js.js";
import json from "@speed-highlight/core/languages/json.js";
import make from "@speed-highlight/core/languages/make.js";
import py from "@speed-highlight/core/languages/py.js";
import rs from "@speed-highlight/core/languages/rs.js";
import sql from "@speed-highlight/core/languages/sql.js";
import toml from "@speed-highlight/core/languages/toml.js";
import ts from "@speed-highlight/core/languages/ts.js";
import xml from "@speed-highlight/core/languages/xml.js";
import yaml from "@speed-highlight/core/languages/yaml.js";
import { type ShjLanguageData, tokenizeWith } from "@speed-highlight/core/tokenize";

const LANGUAGES: Readonly<Record<string, unknown>> = {
  bash, c, css, diff, docker, go, html, ini, java, js, json, make, py, rs, sql, toml, ts, xml, yaml,
};
const NEAR: Readonly<Record<string, string>> = {
  bash: "sh shell zsh fish console ps1 powershell",
  c: "cpp c++ cc cxx h hpp objc",
  css: "scss less",
  diff: "patch",
  docker: "dockerfile",
  html: "htm vue svelte",
  ini: "cfg conf properties",
  java: "kotlin kt csharp cs scala dart swift",
  js: "javascript jsx mjs cjs",
  json: "jsonc json5 jsonl",
  make: "makefile",
  py: "python pyi",
  rs: "rust",
  ts: "typescript tsx mts cts",
  xml: "svg",
  yaml: "yml",
};
const NAMES = new Map(Object.entries(NEAR).flatMap(([name, near]) => near.split(" ").map((each) => [each, name])));

/** HTML of the code, its text escaped, with a class for each kind of word; none for a language that is not known. */
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
