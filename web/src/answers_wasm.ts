// Answers of the WebAssembly module, which runs in a worker. It has the same code as the server.
import type { Answer, Answers, Progress } from "./answers";
import type { Reply, Request } from "./worker";

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
worker.onerror = (event) => {
  broken = new Error(event.message || "the worker did not start");
  for (const request of waiting.values()) request.failed(broken);
  waiting.clear();
};

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
