// Worker of the static site: answers requests one after the other with the WebAssembly module
// (tessera/dashboard/module.cpp), so that a long search does not block the page.
export interface Request {
  id: number;
  method: string;
  path: string;
  body: string;
}
// The first message: the compiled module.
export interface Start {
  module: WebAssembly.Module;
}
export type Reply =
  | { id: number; status: number; text: string }
  | { id: number; done: number; total: number };

interface Module {
  ccall(name: string, returns: "string", types: "string"[], values: string[]): string;
}
type Create = (options: {
  onProgress(done: number, total: number): void;
  instantiateWasm(imports: WebAssembly.Imports, done: (instance: WebAssembly.Instance) => void): object;
}) => Promise<Module>;

let present = 0; // id of the request that is being answered
const reply = (message: Reply) => postMessage(message);

let start: (module: WebAssembly.Module) => void = () => undefined;
const compiled = new Promise<WebAssembly.Module>((done) => (start = done));
// The page gets this as an error of the worker.
const fail = (error: unknown) =>
  setTimeout(() => {
    throw error;
  });

// Not bundled: Emscripten wrote it next to this file.
const file = "./planner.js";
const loaded: Promise<Module> = import(/* @vite-ignore */ file).then((it: { default: Create }) =>
  it.default({
    onProgress: (done, total) => reply({ id: present, done, total }),
    instantiateWasm: (imports, done) => {
      compiled.then((module) => WebAssembly.instantiate(module, imports)).then(done, fail);
      return {};
    },
  }),
);
loaded.catch(fail);

onmessage = async ({ data }: MessageEvent<Request | Start>) => {
  if ("module" in data) return start(data.module);
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
