/**
 * The highlighter with its languages: a chunk of its own, so the languages are those that say most for their size.
 * One that is near another is coloured as that.
 */

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = { bash, c, diff, go, ini, json, markdown, python, rust, shell, typescript, xml, yaml };
const NEAR: Readonly<Record<string, readonly string[]>> = {
  c: ["cpp", "c++", "cc", "hpp", "objc"],
  json: ["jsonc", "json5"],
  typescript: "javascript js jsx mjs cjs java kotlin kt csharp cs swift scala dart".split(" "),
};

for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
for (const [languageName, names] of Object.entries(NEAR)) hljs.registerAliases([...names], { languageName });

export function highlighted(code: string, language: string): string | undefined {
  if (hljs.getLanguage(language) === undefined) return undefined;
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}
