// Mixtures of experts: the heat map of a run, as drawn, read, listed and saved, and the controls of
// experts in the calculators.
import fs from "node:fs";
import path from "node:path";
import { check, ended, expect, json, note, same, start, until } from "./harness.mjs";
import { idOf } from "./live.mjs";
import { bytes, findings, go } from "./views.mjs";

const LEFT = 44; // pixels left of the cells
const sum = (list) => list.reduce((a, b) => a + b, 0);
const near = (a, b, by) => Math.abs(a - b) <= by;

const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const card = (page, title) =>
  page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });
const MAP = "Tokens of each expert";

// Metrics of a run with 3 experts in 2 layers. Expert 2 of blocks.0 gets no token at first.
function writeRun(file, steps) {
  const load = (layer, tokens, dropped) => ({ layer, tokens, imbalance: 1, dropped, entropy: 0.9, balance: 1, z: 1 });
  const line = (step) => ({
    step,
    loss: 5 / step,
    tokens: 60,
    step_s: 0.1,
    experts: [
      load("blocks.0.experts", step < 4 ? [90, 30, 0] : [60 - step, 40, 20 + step], 0.25),
      load("blocks.1.experts", [40 + step, 40, 40 - step], 0),
    ],
  });
  const lines = Array.from({ length: steps }, (_, i) => JSON.stringify(line(i + 1)));
  fs.writeFileSync(file, `${lines.join("\n")}\n`);
}

// Returns {steps, tokens[expert][step]} of one layer of a metrics file, or of all.
function counted(file, layer) {
  const rows = fs.readFileSync(file, "utf8").trim().split("\n").map((r) => JSON.parse(r)).filter((r) => r.experts);
  const loads = rows.map((r) => r.experts.filter((l) => !layer || l.layer === layer));
  const experts = loads[0][0].tokens.length;
  return {
    steps: rows.map((r) => r.step),
    tokens: Array.from({ length: experts }, (_, e) => loads.map((all) => sum(all.map((l) => l.tokens[e])))),
    loads,
  };
}

// Checks the pixel in the middle of every cell: its color must be that of its share of the mean.
async function checkDrawn(page, { steps, tokens }) {
  const drawn = await page.locator(".heat canvas").evaluate(
    (canvas, { experts, columns, left }) => {
      const scale = canvas.width / canvas.clientWidth;
      const row = (canvas.clientHeight - 36) / experts;
      const ctx = canvas.getContext("2d");
      const style = getComputedStyle(document.documentElement);
      const rgb = (name) => {
        const hex = style.getPropertyValue(`--${name}`).trim();
        return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      };
      const at = (e, c) => {
        const x = left + ((c + 0.5) / columns) * (canvas.clientWidth - left);
        return [...ctx.getImageData(Math.floor(x * scale), Math.floor((e + 0.5) * row * scale), 1, 1).data];
      };
      return {
        none: rgb("faint"),
        all: rgb("ep"),
        cells: Array.from({ length: experts }, (_, e) => Array.from({ length: columns }, (_, c) => at(e, c))),
      };
    },
    { experts: tokens.length, columns: steps.length, left: LEFT },
  );
  const colors = new Set();
  steps.forEach((step, c) => {
    const mean = sum(tokens.map((row) => row[c])) / tokens.length;
    tokens.forEach((row, e) => {
      const part = row[c] / (row[c] + mean);
      const wanted = drawn.none.map((v, i) => v + (drawn.all[i] - v) * part);
      const got = drawn.cells[e][c];
      colors.add(got.join());
      expect(
        wanted.every((v, i) => near(v, got[i], 1.5)),
        `expert ${e}, step ${step}: ${row[c]} of a mean of ${mean} is drawn as ${got}, expected ${wanted.map(Math.round)}`,
      );
    });
  });
  expect(colors.size > 2, `${colors.size} colors`);
}

async function saved(page, kind, title = MAP) {
  const box = card(page, title);
  await box.locator(".save > summary").click();
  const [file] = await Promise.all([page.waitForEvent("download"), box.locator(`[data-save="${kind}"]`).click()]);
  return fs.readFileSync(await file.path());
}

async function checkRun(page, dashboard, file, id) {
  const layers = counted(file).loads[0].map((l) => l.layer);
  const last = counted(file).steps.length - 1;
  await go(page, dashboard.address, "live", `runs=${id}`);
  await page.locator(".heat canvas").waitFor();
  const shown = (text) =>
    until(text, async () => (await card(page, MAP).locator("header").textContent()).includes(text));

  await check(`experts: each cell of ${path.basename(file)} has the color of its tokens, of all layers and of one`, async () => {
    await shown("all layers");
    await checkDrawn(page, counted(file));
    await page.locator('[data-field="layer"] select').selectOption(layers[1]);
    await shown(layers[1]);
    await checkDrawn(page, counted(file, layers[1]));
    expect(page.url().includes(`layer=${layers[1]}`), page.url());
    await page.locator("button.theme").click();
    await checkDrawn(page, counted(file, layers[1]));
    await page.locator("button.theme").click();
  });

  await check("experts: cells are read with the arrow keys and with the pointer", async () => {
    const { steps, tokens } = counted(file, layers[1]);
    const status = page.locator(".heat [role=status]");
    const text = (e, c) => {
      const mean = sum(tokens.map((row) => row[c])) / tokens.length;
      const times = Number((tokens[e][c] / mean).toFixed(3));
      return [`expert ${e}, step ${steps[c]}: ${tokens[e][c].toLocaleString("en-US")} tokens`, `${Number(times.toPrecision(4))} times the mean`];
    };
    const says = async (e, c) => {
      for (const part of text(e, c)) expect((await status.textContent()).includes(part), `${await status.textContent()}, expected ${part}`);
    };
    await page.locator(".heat canvas").focus();
    await page.keyboard.press("ArrowDown");
    await says(0, last);
    for (const key of ["ArrowDown", "ArrowLeft", "ArrowLeft"]) await page.keyboard.press(key);
    await says(1, last - 2);
    await page.keyboard.press("Home");
    await says(1, 0);
    for (let i = 0; i < tokens.length + 2; i++) await page.keyboard.press("ArrowDown");
    await says(tokens.length - 1, 0);
    const label = await page.locator(".heat canvas").getAttribute("aria-label");
    expect(label.includes(`${tokens.length} experts of ${layers[1]}, steps 1 to ${steps[last]}`), label);
    const box = await page.locator(".heat canvas").boundingBox();
    const row = (box.height - 36) / tokens.length;
    await page.mouse.move(box.x + LEFT + 3, box.y + 1.5 * row);
    await says(1, 0);
    same(await page.locator(".heat .tip").count(), 1, "texts at the pointer");
    await page.mouse.move(box.x + 3, box.y + 3);
    same(await page.locator(".heat .tip").count(), 0, "texts beside the cells");
  });

  await check("experts: the table has the same tokens, and axe finds nothing", async () => {
    const { steps, tokens } = counted(file, layers[1]);
    await page.locator('[data-field="table"] input').check();
    await page.locator("table.loads").waitFor();
    const cells = await page.$$eval("table.loads tbody tr", (rows) =>
      rows.map((r) => [...r.querySelectorAll("td")].map((td) => Number(td.dataset.value))),
    );
    const per = Math.ceil(steps.length / 16);
    const starts = steps.flatMap((_, c) => (c % per === 0 ? [c] : []));
    same(
      JSON.stringify(cells),
      JSON.stringify(tokens.map((row) => starts.map((c) => sum(row.slice(c, c + per))))),
      "tokens",
    );
    const heads = await page.locator("table.loads thead th").allTextContents();
    same(heads.length, starts.length + 1, "heads");
    expect(heads[1].startsWith(per === 1 ? "step 1" : "steps 1 to "), heads[1]);
    same((await findings(page)).join("\n"), "", "findings with the table");
    await page.locator('[data-field="table"] input').uncheck();
    await page.locator(".heat canvas").waitFor();
    same((await findings(page)).join("\n"), "", "findings with the picture");
  });

  await check("experts: saved values and pictures are those that are drawn", async () => {
    const { steps, tokens } = counted(file, layers[1]);
    const rows = (await saved(page, "csv")).toString().trim().split("\n");
    same(rows[0], ["first step", "last step", ...tokens.map((_, e) => `expert ${e}`)].join(), "heads");
    same(rows.length, steps.length + 1, "rows");
    steps.forEach((step, c) => same(rows[c + 1], [step, step, ...tokens.map((row) => row[c])].join(), `step ${step}`));
    const { tables } = JSON.parse(await saved(page, "json"));
    same(tables[0].rows[last]["expert 1"], tokens[1][last], "JSON");
    const svg = (await saved(page, "svg")).toString();
    expect(!/NaN|undefined/.test(svg), "a coordinate is not a number");
    const fills = [...svg.matchAll(/<rect[^>]*fill="(rgb\([^"]*\))"/g)].length;
    expect(fills >= steps.length * tokens.length, `${fills} boxes for ${steps.length} × ${tokens.length} cells`);
    same((await saved(page, "png")).subarray(1, 4).toString(), "PNG", "PNG");
  });
}

export async function checkExperts({ tessera, torch, dashboard, open, runs }) {
  const page = await open({ colorScheme: "light", reducedMotion: "reduce" });
  const written = path.join(runs, "experts-written.jsonl");
  writeRun(written, 12);
  const id = await until("the run", () => idOf(dashboard, "experts-written"));
  await checkRun(page, dashboard, written, id);

  await check("experts: new steps are drawn as they come, and the curves of the router", async () => {
    await go(page, dashboard.address, "live", `runs=${id}`);
    writeRun(written, 20);
    const title = () => page.locator(".heat canvas").getAttribute("aria-label");
    await until("step 20", async () => (await title()).includes("steps 1 to 20"));
    await checkDrawn(page, counted(written));
    const legend = async (name) => Number(await card(page, name).locator(".u-legend .u-value").nth(1).textContent());
    // Step 20: 40, 40, 40 and 60, 40, 20.
    same(await legend("Busiest expert"), 1.25, "mean over the layers of busiest / mean");
    same(await legend("Entropy of the router"), 0.9, "entropy");
    // A quarter of the pairs of one layer: 40 of 280.
    const dropped = await card(page, "Dropped tokens").locator(".u-legend .u-value").nth(1).textContent();
    same(dropped, "14.3%", "dropped");
  });

  await check("experts: an unknown layer is refused, and runs without experts have no map", async () => {
    await go(page, dashboard.address, "live", `runs=${id}&layer=blocks.9`);
    const reason = page.locator('[data-field="layer"] .reason');
    await reason.waitFor();
    same(await reason.textContent(), "The run has no such layer with experts.", "reason");
    same(await page.locator(".heat").count(), 0, "maps");
    const plain = path.join(runs, "no-experts.jsonl");
    fs.writeFileSync(plain, '{"step":1,"loss":3}\n{"step":2,"loss":2}\n');
    const other = await until("the run", () => idOf(dashboard, "no-experts"));
    await go(page, dashboard.address, "live", `runs=${other}`);
    await page.waitForSelector(".u-over");
    same(await page.locator('.heat, [data-field="layer"]').count(), 0, "maps and controls");
    same(await page.locator("[data-row]").count(), 0, "bars of phases that the metrics do not have");
  });

  if (torch) {
    const metrics = path.join(runs, "experts-real.jsonl");
    const words = "train --model moe-tiny --ranks 2 --ep 2 --micro-batch 2 --seq 32 --steps 24 --samples 0 --threads 1 --seed 3 --trace-steps 3 --metrics";
    const run = start(tessera, [...words.split(" "), metrics, "--trace", path.join(runs, "experts-real.trace")]);
    await ended(run);
    await check("experts: a real run writes the use of its experts", async () => {
      same(run.exitCode, 0, `exit status (${run.text})`);
      const { steps, tokens } = counted(metrics, "blocks.0.experts");
      same(steps.length, 24, "steps");
      // 2 ranks × 2 sequences × 32 tokens × 2 experts.
      steps.forEach((step, c) => same(sum(tokens.map((row) => row[c])), 256, `pairs in step ${step}`));
    });
    const real = await until("the run", () => idOf(dashboard, "experts-real"));
    await checkRun(page, dashboard, metrics, real);
    await checkTrace(page, dashboard, real);
  } else {
    note("without tessera-torch: the use of experts was written by the test");
  }

  await checkCalculatorsOfExperts(page, tessera, dashboard);
  await page.context().close();
}

async function checkTrace(page, dashboard, id) {
  await check("experts: the timeline of a real run has the communication and the reading of data in their colors", async () => {
    await go(page, dashboard.address, "trace", `source=${id}`);
    const named = await page.locator(".legend li").allTextContents();
    for (const name of ["dp communication", "ep communication", "reading of data"])
      expect(named.includes(name), `${name} is not in the legend: ${named}`);
    const colors = await page.evaluate(() => {
      const style = getComputedStyle(document.documentElement);
      return Object.fromEntries(["weight", "rest", "dp", "ep"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    });
    const svg = (await saved(page, "svg", "Timeline")).toString();
    const boxes = (color) => svg.split(`fill="${colors[color]}"`).length - 1;
    // The gradients of experts are reduced, not computed, and no backward pass is split.
    same(boxes("weight"), 0, "boxes in the color of weight gradients");
    for (const color of ["rest", "dp", "ep"]) expect(boxes(color) > 0, `no box of ${color}`);
  });
}

async function checkCalculatorsOfExperts(page, tessera, dashboard) {
  const total = (text) => until(text, async () => (await figure(page, "total")) === text).catch(async () => same(await figure(page, "total"), text, "total"));

  await check("experts: a plan of a model with experts follows the slider of ep", async () => {
    const words = "plan --model mixtral-8x7b --dp 8 --zero 1 --layout bf16 --hardware h100 --json".split(" ");
    await go(page, dashboard.address, "memory", "by=model&model=mixtral-8x7b&dp=8&zero=1");
    await total(bytes(json(tessera, ...words).memory.total));
    const slider = page.locator('[data-field="ep"] input[type=range]');
    await slider.focus();
    for (let i = 0; i < 2; i++) await page.keyboard.press("ArrowRight"); // 2, 4
    await until("ep 4", () => page.url().includes("ep=4"));
    await total(bytes(json(tessera, ...words, "--ep", "4").memory.total));
    const command = await page.locator(".head [data-copies^=tessera]").getAttribute("data-copies");
    expect(command.includes("--ep 4"), command);
    await page.locator('[data-field="ep"] input.exact').fill("3");
    await page.keyboard.press("Enter");
    const reason = page.locator('[data-field="ep"] .reason');
    await reason.waitFor();
    expect((await reason.textContent()).includes("must divide"), await reason.textContent());
  });

  await check("experts: any model gets experts from the controls", async () => {
    const words = "plan --model llama2-7b --experts 8 --expert-ffn 2048 --dp 8 --ep 8 --zero 1 --layout bf16 --hardware h100 --json".split(" ");
    await go(page, dashboard.address, "memory", "by=model&model=llama2-7b&dp=8&zero=1&experts=8&expert_ffn=2048&ep=8");
    await total(bytes(json(tessera, ...words).memory.total));
    expect(await page.locator("details.further").evaluate((e) => e.open), "controls that are set are shown");
    expect((await page.locator('[data-field="experts"]').textContent()).includes("router"), "with their help");
  });

  await check("experts: every view with a model has controls of all settings of experts", async () => {
    for (const view of ["memory", "scaling", "context", "plan", "trace", "questions"]) {
      await go(page, dashboard.address, view, view === "plan" ? "top=10" : view === "memory" ? "by=model" : "");
      const about = await (await fetch(`${dashboard.address}/api/about`)).json();
      for (const { name } of about.settings.filter((s) => s.group === "Experts"))
        same(await page.locator(`details.further [data-field="${name}"]`).count(), 1, `${name} in ${view}`);
    }
  });

  await check("experts: ep of an opened plan is kept, and its traffic is shown", async () => {
    const plan = "model:mixtral-8x7b;dp:8;ep:8;zero:1;layout:bf16;hardware:h100";
    await go(page, dashboard.address, "memory", `plan=${plan}`);
    const words = "plan --model mixtral-8x7b --dp 8 --ep 8 --zero 1 --layout bf16 --hardware h100 --json".split(" ");
    const expected = json(tessera, ...words);
    await total(bytes(expected.memory.total));
    same(await page.locator("[data-setting=ep]").count(), 0, "ep has a control");
    const sent = await page.textContent(".figures");
    expect(sent.includes(`ep ${bytes(expected.traffic.ep)}`), `${sent} has no ep ${bytes(expected.traffic.ep)}`);
  });
}
