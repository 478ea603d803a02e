/** How the page is built: into the daemon's package, the same bytes from the same sources. */

import { defineConfig } from "vite";

export default defineConfig({
  // Wherever the daemon is mounted: every address in the page is relative to it.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../../src/turnwire/server/page",
    emptyOutDir: true,
    target: "es2022",
    // A polyfill would be a script inside of the document, which the page's policy forbids.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  worker: { format: "es" },
});
