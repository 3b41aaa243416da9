import { defineConfig } from "vite";

// The build writes files with fixed names (scripts/web.sh). `--mode site` builds the page for the
// static site: a worker computes the answers, and no server is asked.
const named = (asset) => {
  const name = asset.names?.[0] ?? "";
  if (name.endsWith(".css")) return "page.css";
  if (name.endsWith(".woff2")) return "inter.woff2";
  return "[name][extname]";
};

const source = (name) => new URL(`./src/${name}`, import.meta.url).pathname;
const withoutServer = {
  name: "without-server",
  // The module of the calculators instead of the first answer of the server.
  transformIndexHtml: (html) => html.replace("./api/about", "./planner.wasm"),
};

export default defineConfig(({ mode }) => ({
  base: "./",
  resolve: {
    alias: { "#answers": source(mode === "site" ? "answers_wasm.ts" : "answers_http.ts") },
  },
  plugins: mode === "site" ? [withoutServer] : [],
  worker: { format: "es", rollupOptions: { output: { entryFileNames: "worker.js" } } },
  // `npm run dev` forwards API requests to `tessera dashboard --port 8123`.
  server: { proxy: { "/api": "http://127.0.0.1:8123" } },
  build: {
    target: "es2022",
    outDir: "dist",
    assetsInlineLimit: 0, // the content-security policy forbids data: URLs
    modulePreload: false,
    reportCompressedSize: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        chunkFileNames: "[name].js",
        assetFileNames: named,
      },
    },
  },
}));
