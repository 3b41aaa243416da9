// Compares the answers of the WebAssembly module with those of the program, byte by byte.
//   node answers_test.mjs --program site_answers --module DIR [--questions N] [--seed N] [--fresh]
// Exits with 77 (skipped) if there is no module, or with --fresh if it is older than the program.
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { loadModule } from "./module.mjs";
import { questions } from "./questions.mjs";

const { values: options } = parseArgs({
  options: {
    program: { type: "string" },
    module: { type: "string" },
    questions: { type: "string", default: "300" },
    seed: { type: "string", default: "1" },
    fresh: { type: "boolean" },
  },
});
function skip(why) {
  console.log(`skipped: ${why}`);
  process.exit(77);
}
const wasm = path.join(options.module, "planner.wasm");
if (!fs.existsSync(wasm))
  skip("the WebAssembly module was not built: scripts/site.sh module builds it, with emscripten");
if (options.fresh && fs.statSync(wasm).mtimeMs < fs.statSync(options.program).mtimeMs)
  skip("the WebAssembly module is older than the program: scripts/site.sh module");

function ask(list) {
  const { stdout, status, signal } = spawnSync(options.program, {
    input: list.map((q) => `${q.method} ${q.path} ${q.body}\n`).join(""),
    encoding: "utf8",
    maxBuffer: 2 ** 31 - 1,
  });
  const answers = stdout.split("\n");
  if (status === 0) return answers;
  const last = list[answers.length - 1];
  console.log(`the program ended with ${signal ?? status} at the question ${last?.path} ${last?.body}`);
  process.exit(1);
}
const [about] = ask([{ method: "GET", path: "/api/about", body: "" }]);
const list = questions(Number(options.questions), Number(options.seed), JSON.parse(about.slice(4)));
let began = performance.now();
const expected = ask(list);
const native = performance.now() - began;
began = performance.now();
const answer = await loadModule(options.module);
const load = performance.now() - began;

const tally = {};
let shown = 0;
began = performance.now();
list.forEach((q, i) => {
  const got = answer(q.method, q.path, q.body);
  const row = (tally[q.path] ??= { asked: 0, refused: 0, different: 0 });
  row.asked++;
  if (!got.startsWith("200")) row.refused++;
  if (got === expected[i]) return;
  row.different++;
  if (shown++ >= 10) return;
  let at = 0;
  while (got[at] === expected[i][at]) at++;
  const around = (text) => text.slice(Math.max(0, at - 60), at + 40);
  console.log(`${q.path} ${q.body}\n  program: …${around(expected[i])}\n  module:  …${around(got)}`);
});
console.table(tally);
const seconds = (ms) => (ms / 1000).toFixed(2);
console.log(
  `${list.length} questions: program ${seconds(native)} s, module ${seconds(performance.now() - began)} s; ` +
    `module loaded in ${seconds(load)} s`,
);
const different = Object.values(tally).reduce((sum, row) => sum + row.different, 0);
if (different > 0) {
  console.log(`${different} answers differ`);
  process.exit(1);
}
