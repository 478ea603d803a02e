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
    // The colours of both themes are one list: `light-dark()`, of 2024.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    rolldownOptions: {
      input: { index: "index.html", sw: "src/service_worker.js" },
      // A service worker has one address for ever, at the root of what it serves.
      output: { entryFileNames: (file) => (file.name === "sw" ? "sw.js" : "assets/[name]-[hash].js") },
    },
    // A polyfill would be a script inside of the document, which the page's policy forbids.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  worker: { format: "es" },
});
