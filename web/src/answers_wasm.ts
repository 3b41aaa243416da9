// Answers of the WebAssembly module, which runs in a worker. It has the same code as the server.
import type { Answer, Answers, Progress } from "./answers";
import type { Reply, Request, Start } from "./worker";

interface Waiting {
  done: (answer: Answer) => void;
  failed: (error: Error) => void;
  onProgress: ((progress: Progress) => void) | undefined;
}
const waiting = new Map<number, Waiting>();
let asked = 0;
let broken: Error | undefined;

const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
worker.onmessage = ({ data }: MessageEvent<Reply>) => {
  const request = waiting.get(data.id);
  if ("total" in data) return request?.onProgress?.(data);
  waiting.delete(data.id);
  request?.done(data);
};
const fail = (message: string) => {
  broken = new Error(message);
  for (const request of waiting.values()) request.failed(broken);
  waiting.clear();
};
worker.onerror = (event) => fail(event.message || "the worker did not start");

// The page compiles the module, which index.html preloads, while the worker starts. What a host serves
// with another type than application/wasm cannot be compiled as it arrives.
const MODULE = "./planner.wasm";
WebAssembly.compileStreaming(fetch(MODULE))
  .catch(async () => WebAssembly.compile(await (await fetch(MODULE)).arrayBuffer()))
  .then((module) => worker.postMessage({ module } satisfies Start))
  .catch((error: unknown) => fail(String(error)));

export const answers: Answers = {
  live: false,
  docs: "../index.html",
  unreachable: "The calculators did not load. Reload the page, in a browser with WebAssembly.",
  ask: (method, path, body = "", onProgress) =>
    new Promise((done, failed) => {
      if (broken) return failed(broken);
      const id = ++asked;
      waiting.set(id, { done, failed, onProgress });
      worker.postMessage({ id, method, path: `/${path}`, body } satisfies Request);
    }),
};
