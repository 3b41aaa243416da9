// Memory in the course of a step of a real run that recomputes its layers: as drawn from the ledger
// and from the plan.
import fs from "node:fs";
import path from "node:path";
import { check, Dashboard, ended, expect, folder, note, same, start, until } from "./harness.mjs";
import { idOf } from "./live.mjs";
import { go } from "./views.mjs";

const LAYERS = 4;
const MICROS = 2;

// Returns the thickness of an area at its points, in pixels, with their positions.
const thickness = (page, which, area) =>
  page.locator(`[data-memory="${which}"] [data-area="${area}"]`).evaluate((polygon) => {
    const points = [...polygon.points].map((p) => [p.x, p.y]);
    const upper = points.slice(0, points.length / 2);
    const lower = points.slice(points.length / 2).reverse();
    return upper.map(([x, y], i) => [x, lower[i][1] - y]);
  });

// Returns the number of times that values rise from below 40% of their range to above 70%.
function humps(curve) {
  const values = curve.map(([, v]) => v);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const at = (share) => least + share * (most - least);
  let [count, up] = [0, false];
  for (const v of values) {
    if (!up && v > at(0.7)) [count, up] = [count + 1, true];
    else if (up && v < at(0.4)) up = false;
  }
  return count;
}

// Returns the mean difference of two curves over the step, relative to the largest value.
function difference(a, b) {
  const at = (curve, x) => {
    const i = Math.max(1, curve.findIndex(([to]) => to >= x));
    const [[x0, v0], [x1, v1]] = [curve[i - 1], curve[i]];
    return x1 > x0 ? v0 + ((v1 - v0) * (x - x0)) / (x1 - x0) : v1;
  };
  const [from, to] = [a[0][0], a.at(-1)[0]];
  const most = Math.max(...a.map(([, v]) => v));
  let sum = 0;
  for (let i = 0; i < 1000; i++) {
    const x = from + ((to - from) * (i + 0.5)) / 1000;
    sum += Math.abs(at(a, x) - at(b, x)) / 1000;
  }
  return sum / most;
}

export async function checkStepMemory({ tessera, torch, open, servers }) {
  if (!torch) return;
  const runs = folder();
  const dashboard = new Dashboard(tessera, ["--runs", runs]);
  await dashboard.start();
  servers.add(dashboard.address);
  const page = await open();

  await check("memory over a step of a real run has a hump for each layer that is recomputed, as predicted", async () => {
    const trace = path.join(runs, "recompute.trace");
    const run = start(tessera, [
      ...`train --model gpt-tiny --layers ${LAYERS} --hidden 128 --heads 4 --ranks 2 --zero 1`.split(" "),
      ...`--recompute full --micro-batch 8 --grad-accum ${MICROS} --seq 64 --steps 3 --threads 1`.split(" "),
      ...["--samples", "0", "--trace", trace, "--metrics", path.join(runs, "recompute.jsonl")],
    ]);
    await ended(run);
    same(run.exitCode, 0, `exit status (${run.text})`);
    expect(fs.existsSync(trace), "the trace");
    const id = await until("the run", () => idOf(dashboard, "recompute"));
    await go(page, dashboard.address, "trace", `source=${id}&memory_step=2`);
    await page.locator('[data-memory="measured"] svg').waitFor();
    for (const which of ["measured", "predicted"])
      same(humps(await thickness(page, which, "temporary")), LAYERS * MICROS, `layers recomputed, ${which}`);
    for (const area of ["activations", "temporary"]) {
      const [measured, predicted] = [await thickness(page, "measured", area), await thickness(page, "predicted", area)];
      note(`${area} over a step: predicted within ${(100 * difference(measured, predicted)).toFixed(1)}% of the maximum (mean)`);
    }
  });

  await check("a simulated step keeps and frees activations layer by layer", async () => {
    await go(page, dashboard.address, "memory", "by=model&model=gpt2-xl&dp=8&recompute=full&micro_batch=8&hardware=h200");
    const area = (name) => page.locator(`.areas [data-area="${name}"]`);
    await area("activations").waitFor();
    const curve = await area("temporary").evaluate((polygon) => {
      const points = [...polygon.points].map((p) => [p.x, p.y]);
      const lower = points.slice(points.length / 2).reverse();
      return points.slice(0, points.length / 2).map(([x, y], i) => [x, lower[i][1] - y]);
    });
    const count = humps(curve);
    expect(count === 48 || count === 49, `${count} humps for 48 layers, and the loss may have one`);
  });
  await page.context().close();
  await dashboard.stop();
}
