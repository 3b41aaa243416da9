// Loads the WebAssembly module in Node.js. Emscripten wrote it for workers of browsers.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";

// Returns a function of method, path and body that returns "STATUS JSON". `onProgress` is called during
// searches.
export async function loadModule(folder, onProgress = () => undefined) {
  globalThis.self ??= globalThis;
  globalThis.location ??= { href: pathToFileURL(`${folder}/`).href };
  const copy = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "tessera-site-")), "planner.mjs");
  fs.copyFileSync(path.join(folder, "planner.js"), copy); // Node.js reads modules from .mjs
  const { default: create } = await import(pathToFileURL(copy).href);
  fs.rmSync(path.dirname(copy), { recursive: true });
  const wasmBinary = fs.readFileSync(path.join(folder, "planner.wasm"));
  const module = await create({ wasmBinary, onProgress });
  return (method, route, body) =>
    module.ccall("tessera_answer", "string", ["string", "string", "string"], [method, route, body]);
}
