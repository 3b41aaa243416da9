// Worker of the static site: answers requests one after the other with the WebAssembly module
// (tessera/dashboard/module.cpp), so that a long search does not block the page.
export interface Request {
  id: number;
  method: string;
  path: string;
  body: string;
}
export type Reply =
  | { id: number; status: number; text: string }
  | { id: number; done: number; total: number };

interface Module {
  ccall(name: string, returns: "string", types: "string"[], values: string[]): string;
}
type Create = (options: { onProgress(done: number, total: number): void }) => Promise<Module>;

let present = 0; // id of the request that is being answered
const reply = (message: Reply) => postMessage(message);

// Not bundled: Emscripten wrote it next to this file.
const file = "./planner.js";
const loaded: Promise<Module> = import(/* @vite-ignore */ file).then((it: { default: Create }) =>
  it.default({ onProgress: (done, total) => reply({ id: present, done, total }) }),
);

onmessage = async ({ data }: MessageEvent<Request>) => {
  const module = await loaded;
  present = data.id;
  const answer = module.ccall(
    "tessera_answer",
    "string",
    ["string", "string", "string"],
    [data.method, data.path, data.body],
  );
  reply({ id: data.id, status: Number(answer.slice(0, 3)), text: answer.slice(4) });
};
// The page gets this as an error of the worker.
loaded.catch((error: unknown) =>
  setTimeout(() => {
    throw error;
  }),
);
