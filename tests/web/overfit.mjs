// A real run that overfits: it trains on a sentence and is validated on the sentence backwards. What
// is drawn must be the numbers of its metrics file.
import fs from "node:fs";
import path from "node:path";
import { check, Dashboard, ended, expect, folder, same, start, until } from "./harness.mjs";
import { idOf } from "./live.mjs";
import { chartOf, figure, heights, valuesAtEnd } from "./run_views.mjs";
import { go } from "./views.mjs";

const SENTENCE = "the quick brown fox jumps over a lazy dog. ";
const STEPS = 60;
const EVERY = 5;

const printed = (v) => String(Number(v.toPrecision(4)));

function trained(tessera, runs, name, settings) {
  const metrics = path.join(runs, `${name}.jsonl`);
  const run = start(tessera, [
    ..."train --model gpt-tiny --layers 2 --hidden 64 --heads 4 --ranks 2 --threads 1 --samples 0".split(" "),
    ...["--data", path.join(runs, "forwards.txt"), "--val-data", path.join(runs, "backwards.txt")],
    ...`--eval-every ${EVERY} --eval-batches 1 --steps ${STEPS} --micro-batch 4 --seq 32`.split(" "),
    ...["--metrics", metrics, ...settings],
  ]);
  return { run, metrics };
}

export async function checkOverfit({ tessera, torch, open, servers }) {
  if (!torch) return;
  const runs = folder();
  fs.writeFileSync(path.join(runs, "forwards.txt"), SENTENCE.repeat(60));
  fs.writeFileSync(path.join(runs, "backwards.txt"), [...SENTENCE].reverse().join("").repeat(30));
  const dashboard = new Dashboard(tessera, ["--runs", runs]);
  await dashboard.start();
  servers.add(dashboard.address);
  const page = await open();
  const first = trained(tessera, runs, "overfit", ["--lr", "0.01"]);
  await ended(first.run);
  const rows = fs.readFileSync(first.metrics, "utf8").trim().split("\n").map((r) => JSON.parse(r)).filter((r) => r.step);
  const losses = rows.map((r) => r.loss);
  const evaluated = rows.filter((r) => r.eval).map((r) => [r.step, r.eval.loss]);
  const id = await until("the run", () => idOf(dashboard, "overfit"));
  const loss = chartOf(page, "Loss");

  // Compares the heights of both curves with their values. `place` turns a value into a height.
  const drawnAt = async (place) => {
    for (const step of [20, 40, 55]) {
      const across = (step - 1) / (STEPS - 1);
      const [top, bottom] = await heights(loss, "params", across);
      const validation = place(evaluated.find(([at]) => at === step)[1]);
      const training = place(losses[step - 1]);
      expect(Math.abs(top - validation) < 0.04, `step ${step}: validation at ${top}, expected ${validation}`);
      expect(Math.abs(bottom - training) < 0.04, `step ${step}: training at ${bottom}, expected ${training}`);
    }
  };

  await check("the validation loss of an overfitted run is drawn rising from the falling training loss", async () => {
    same(first.run.exitCode, 0, `exit status (${first.run.text})`);
    same(evaluated.length, STEPS / EVERY, "evaluations");
    expect(losses.at(-1) < 1 && evaluated.at(-1)[1] > 6, `the run does not overfit: ${losses.at(-1)}, ${evaluated.at(-1)[1]}`);
    await go(page, dashboard.address, "live", `runs=${id}`);
    await loss.locator(".u-over").waitFor();
    same(await figure(page, "loss"), printed(losses.at(-1)), "loss");
    same(await figure(page, "eval-loss"), printed(evaluated.at(-1)[1]), "validation loss");
    const all = [...losses, ...evaluated.map(([, v]) => v)];
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const margin = 0.06 * (high - low); // above and below
    await drawnAt((v) => (high + margin - v) / (high - low + 2 * margin));
    const read = await valuesAtEnd(loss);
    expect(read.includes(`overfit.jsonl, validation ${printed(evaluated.at(-1)[1])}`), read);
  });

  await check("an overfitted run on a log axis, smoothed, and over tokens and time", async () => {
    await go(page, dashboard.address, "live", `runs=${id}&log=true`);
    await loss.locator(".u-over").waitFor();
    const all = [...losses, ...evaluated.map(([, v]) => v)];
    let [low, high] = [Math.min(...all), Math.max(...all)];
    if (high / low >= 100) {
      low = 10 ** Math.floor(Math.log10(low));
      high = 10 ** Math.ceil(Math.log10(high));
    } else {
      const margin = Math.max((high / low) ** 0.06, 1.02);
      [low, high] = [low / margin, high * margin];
    }
    await drawnAt((v) => Math.log(high / v) / Math.log(high / low));
    let [sum, weight] = [0, 0];
    for (const v of losses) {
      sum = 0.9 * sum + 0.1 * v;
      weight = 0.9 * weight + 0.1;
    }
    await go(page, dashboard.address, "live", `runs=${id}&smoothing=0.9`);
    const smooth = await valuesAtEnd(loss);
    expect(smooth.includes(`overfit.jsonl ${printed(sum / weight)},`), smooth);
    expect(smooth.includes(`overfit.jsonl, raw ${printed(losses.at(-1))}`), smooth);
    const tokens = rows.reduce((all, r) => all + r.tokens, 0);
    await go(page, dashboard.address, "live", `runs=${id}&axis=tokens`);
    const read = await valuesAtEnd(loss);
    expect(read.startsWith(`tokens ${Number((tokens / 1000).toFixed(2))}k:`), `${tokens}: ${read}`);
    await go(page, dashboard.address, "live", `runs=${id}&axis=time`);
    const [, value, unit] = /^time in steps ([\d.]+) (ms|s|min):/.exec(await valuesAtEnd(loss));
    const time = rows.reduce((all, r) => all + r.step_s, 0);
    const shown = Number(value) * { ms: 1e-3, s: 1, min: 60 }[unit];
    expect(Math.abs(shown / time - 1) < 0.01, `${value} ${unit} of ${time} s`);
  });

  await check("the hyperparameters of two real runs are compared", async () => {
    const second = trained(tessera, runs, "slower", ["--lr", "0.001", "--seed", "5", "--zero", "2", "--grad-accum", "2"]);
    await ended(second.run);
    same(second.run.exitCode, 0, `exit status (${second.run.text})`);
    const other = await until("the other run", () => idOf(dashboard, "slower"));
    await go(page, dashboard.address, "live", `runs=${id},${other}`);
    const cells = async (key) =>
      (await page.locator(`[data-setting="${key}"] td`).allTextContents()).slice(1).join(" | ");
    await until("both runs", async () => (await cells("seed")).endsWith("5"));
    same(await cells("learning rate"), "0.01 | 0.001", "learning rate");
    same(await cells("global batch"), "8 | 16", "global batch");
    same(await cells("mesh"), "dp=2 | dp=2", "mesh");
    same(await cells("layout"), "fp32 | fp32", "layout");
    same(await cells("zero"), "0 | 2", "ZeRO stage");
    const [, least] = await heights(loss, "params", 0.95); // the overfitted run is below the slower one
    const [high] = await heights(loss, "dp", 0.95);
    expect(high < least, `the second run is drawn at ${high}, the first at ${least}`);
  });
  await page.context().close();
  await dashboard.stop();
}
