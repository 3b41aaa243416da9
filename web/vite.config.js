import { defineConfig } from "vite";

// Six files of fixed names, which the program carries inside: see scripts/web.sh.
const named = (asset) => {
  const name = asset.names?.[0] ?? "";
  if (name.endsWith(".css")) return "page.css";
  if (name.endsWith(".woff2")) return "inter.woff2";
  return "[name][extname]";
};

export default defineConfig({
  base: "./",
  // `npm run dev` beside a `tessera dashboard --port 8123` that answers.
  server: { proxy: { "/api": "http://127.0.0.1:8123" } },
  build: {
    target: "es2022",
    outDir: "dist",
    assetsInlineLimit: 0, // the content-security policy has no place for data: addresses
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
});
