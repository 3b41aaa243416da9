// Views of runs, on a dashboard of their own: the trace, runs whose ranks or servers are killed,
// curves and their axes, and many runs at once.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import {
  check,
  Dashboard,
  ended,
  expect,
  folder,
  note,
  rankOf,
  same,
  start,
  until,
} from "./harness.mjs";
import { idOf } from "./live.mjs";
import { go } from "./views.mjs";

const STEP_S = 0.25;
const TOKENS = 2000;
const line = (step, more = {}) =>
  `${JSON.stringify({ step, loss: 8 * 10 ** (-step / 100), grad_norm: 1, lr: 1e-3, tokens: TOKENS, tokens_per_s: TOKENS / STEP_S, step_s: STEP_S, ...more })}\n`;
const lines = (from, to, more = () => ({})) =>
  Array.from({ length: to - from + 1 }, (_, i) => line(from + i, more(from + i))).join("");
const begins = (config, more = {}) => ({ start: { run: config, steps: 1000, ...more } });

export const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const stateOf = (page) => figure(page, "state");
export const chartOf = (page, title) =>
  page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });

// Moves the keyboard cursor of a chart to its end and returns the announced values.
export async function valuesAtEnd(card) {
  await card.locator(".u-over").waitFor();
  await card.locator(".chart").focus();
  await card.locator(".chart").press("End");
  return card.locator("[role=status]").textContent();
}

// Returns the heights, from 0 (top) to 1, of the highest and the lowest pixel of a palette color
// in the column at `at` of the plot.
export const heights = (card, name, at) =>
  card.locator(".chart").evaluate(
    (chart, [color, where]) => {
      const canvas = chart.querySelector("canvas");
      const over = chart.querySelector(".u-over");
      const scale = canvas.width / canvas.clientWidth;
      const box = canvas.getBoundingClientRect();
      const plot = over.getBoundingClientRect();
      const top = Math.round((plot.top - box.top) * scale);
      const tall = Math.round(plot.height * scale);
      const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${color}`).trim();
      const rgb = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      const found = [];
      for (let dx = -3; dx <= 3; dx++) {
        const x = Math.round((plot.left - box.left + where * plot.width) * scale) + dx;
        const { data } = canvas.getContext("2d").getImageData(x, top, 1, tall);
        for (let y = 0; y < tall; y++)
          if (rgb.every((v, i) => Math.abs(v - data[4 * y + i]) < 12)) found.push(y / tall);
      }
      return [Math.min(...found), Math.max(...found)];
    },
    [name, at],
  );

async function checkCurves(page, dashboard, runs) {
  const file = path.join(runs, "overfit.jsonl");
  // Training falls exponentially, validation rises.
  const evaluated = (step) => (step % 10 === 0 ? { eval: { loss: 4 + step / 50 } } : {});
  const config = { lr: "0.001", global_batch: "64", seed: "7", dp: "4", tp: "2", pp: "1", layout: "bf16" };
  fs.writeFileSync(file, line(1, begins(config)) + lines(2, 200, evaluated));
  const id = await until("the run", () => idOf(dashboard, "overfit"));

  await check("live draws the validation loss beside the training loss", async () => {
    await go(page, dashboard.address, "live", `runs=${id}`);
    const loss = chartOf(page, "Loss");
    await loss.locator(".u-over").waitFor();
    same(await figure(page, "eval-loss"), "8", "validation loss");
    const [top] = await heights(loss, "params", 0.95); // of the dashed line with points
    const [, bottom] = await heights(loss, "params", 0.5);
    expect(top < 0.15, `validation loss rises to the top right, drawn at ${top}`);
    expect(bottom > 0.7, `training loss falls, drawn at ${bottom}`);
    const read = await valuesAtEnd(loss);
    expect(read.includes("overfit.jsonl, validation 8"), read);
  });

  await check("live smooths the loss and draws it on a log axis", async () => {
    let [sum, weight] = [0, 0];
    for (let step = 1; step <= 200; step++) {
      sum = 0.9 * sum + 0.1 * 8 * 10 ** (-step / 100);
      weight = 0.9 * weight + 0.1;
    }
    await go(page, dashboard.address, "live", `runs=${id}&smoothing=0.9`);
    const loss = chartOf(page, "Loss");
    const read = await valuesAtEnd(loss);
    expect(read.includes(`overfit.jsonl ${Number((sum / weight).toPrecision(4))},`), read);
    expect(read.includes("overfit.jsonl, raw 0.08"), read);
    await go(page, dashboard.address, "live", `runs=${id}&log=true`);
    await loss.locator(".u-over").waitFor();
    const [left, middle, right] = await Promise.all(
      [0.2, 0.55, 0.9].map(async (x) => (await heights(loss, "params", x))[1]),
    );
    const bend = Math.abs(middle - (left + right) / 2);
    expect(right - left > 0.4 && bend < 0.03, `a straight line: ${left} ${middle} ${right}`);
    await go(page, dashboard.address, "live", `runs=${id}&smoothing=2`);
    await page.locator('[data-field="smoothing"] .reason').waitFor();
  });

  await check("live draws curves over tokens and time, and estimates the time left", async () => {
    fs.utimesSync(file, new Date(), new Date()); // not silent
    for (const [axis, label, value] of [
      ["tokens", "tokens", "400k"],
      ["time", "time in steps", "50 s"],
    ]) {
      await go(page, dashboard.address, "live", `runs=${id}&axis=${axis}`);
      const read = await valuesAtEnd(chartOf(page, "Loss"));
      expect(read.startsWith(`${label} ${value}:`), read);
    }
    same(await figure(page, "eta"), "3.33 min", "time left: 800 steps of 0.25 s");
  });

  await check("live compares hyperparameters of runs", async () => {
    fs.writeFileSync(
      path.join(runs, "other.jsonl"),
      line(1, begins({ ...config, lr: "0.002", seed: "8", tp: "1" })) + lines(2, 50),
    );
    const other = await until("the other run", () => idOf(dashboard, "other"));
    await go(page, dashboard.address, "live", `runs=${id},${other}`);
    const cells = async (key) =>
      (await page.locator(`[data-setting="${key}"] td`).allTextContents()).slice(1).join(" | ");
    await until("both runs", async () => (await cells("seed")) === "7 | 8");
    same(await cells("learning rate"), "0.001 | 0.002", "learning rate");
    same(await cells("global batch"), "64 | 64", "global batch");
    same(await cells("mesh"), "dp=4,tp=2 | dp=4", "mesh");
    same(await cells("layout"), "bf16 | bf16", "layout");
    same(await cells("validation loss"), "8 | –", "validation loss");
  });

  await check("zoom survives new points, and the list agrees with the run", async () => {
    await go(page, dashboard.address, "live", `runs=${id}`);
    const loss = chartOf(page, "Loss");
    const plot = await loss.locator(".u-over").boundingBox();
    const at = (x) => [plot.x + x * plot.width, plot.y + plot.height / 2];
    await page.mouse.move(...at(0.25));
    await page.mouse.down();
    await page.mouse.move(...at(0.4));
    await page.mouse.move(...at(0.5));
    await page.mouse.up();
    const leftmost = async () => {
      await page.mouse.move(...at(0.6));
      await page.mouse.move(...at(0.005));
      return Number(await loss.locator(".u-legend .u-value").first().textContent());
    };
    const before = await leftmost();
    expect(Math.abs(before - 51) < 4, `zoomed to step ${before}`);
    fs.appendFileSync(file, lines(201, 260, evaluated));
    await until("step 260", async () => (await figure(page, "live-step")) === "260");
    same(
      (await page.locator(".runs label", { hasText: "overfit" }).locator(".note").textContent()).trim(),
      "running, step 260",
      "row of the list",
    );
    same(await leftmost(), before, "first step shown after new points");
    await page.mouse.dblclick(...at(0.5));
    const whole = await leftmost();
    expect(whole <= 3, `first step shown after a double click: ${whole}`);
  });
}

async function checkMarks(page, dashboard, runs) {
  await check("labels of marks do not cover each other, and important ones are kept", async () => {
    const file = path.join(runs, "marks.jsonl");
    const saves = (step) => (step % 5 === 0 ? { save_exposed_s: 0.1 } : {});
    fs.writeFileSync(
      file,
      lines(1, 101, saves) + line(102, begins({})) + lines(103, 200, saves) + '{"summary":{}}\n',
    );
    const id = await until("the run", () => idOf(dashboard, "marks"));
    await page.addInitScript(() => {
      window.drawn = [];
      const original = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        if (/^(checkpoint|restart|done)$/.test(text))
          window.drawn.push([this.canvas, text, x, x + this.measureText(text).width]);
        return original.call(this, text, x, y, ...rest);
      };
    });
    await go(page, dashboard.address, "live", `runs=${id}`);
    await chartOf(page, "Loss").locator(".u-over").waitFor();
    await until("the labels", () => page.evaluate(() => window.drawn.length > 2));
    const labels = await page.evaluate(() => {
      const last = window.drawn.at(-1)[0]; // one canvas, and its last drawing
      const all = window.drawn.filter(([canvas]) => canvas === last).map(([, ...rest]) => rest);
      return all.slice(all.findLastIndex(([text]) => text === "restart"));
    });
    const names = labels.map(([text]) => text);
    expect(names.includes("restart") && names.includes("done"), names.join(" "));
    expect(names.includes("checkpoint"), `room is left for checkpoints: ${names.join(" ")}`);
    labels.sort((a, b) => a[1] - b[1]);
    labels.forEach(([text, from], i) =>
      expect(i === 0 || from >= labels[i - 1][2], `${labels[i - 1]} covers ${text} at ${from}`),
    );
  });

  await check("measured memory is the peak of the steps", async () => {
    const memory = { params: 3e6, grads: 3e6, optimizer: 3e6, activations: 1e6, peak: 10e6 };
    fs.writeFileSync(
      path.join(runs, "memory.jsonl"),
      line(1, { mem_peak_bytes: 10e6, ...begins({}, { measured: { memory } }) }) +
        line(2, { mem_peak_bytes: 25e6 }) +
        line(3, { mem_peak_bytes: 20e6 }),
    );
    const id = await until("the run", () => idOf(dashboard, "memory"));
    await go(page, dashboard.address, "live", `runs=${id}`);
    same(await page.textContent('[data-row="measured"] .value'), "25 MB", "measured");
  });
}

async function checkConnection(page, dashboard, runs) {
  await check("a dropped connection is shown at once, and the run again when it is back", async () => {
    const file = path.join(runs, "dropped.jsonl");
    fs.writeFileSync(file, lines(1, 20));
    const id = await until("the run", () => idOf(dashboard, "dropped"));
    const stream = page.waitForResponse((r) => r.url().includes("/events"));
    await go(page, dashboard.address, "live", `runs=${id}`);
    await until("the run", async () => (await stateOf(page).catch(() => "")) === "running");
    await stream;
    await dashboard.stop("SIGKILL");
    const began = performance.now();
    await until("the lost connection", async () => (await stateOf(page)) === "connection lost");
    const took = performance.now() - began;
    note(`the page showed the lost connection after ${Math.round(took)} ms`);
    same(await page.locator(".dot.running").count(), 0, "number of green dots");
    same(await page.textContent(".banner"), "Connection to the server lost. Retrying.", "banner");
    const row = page.locator(".runs label", { hasText: "dropped" });
    expect((await row.textContent()).includes("unknown"), "the list does not call it running");
    // The run ends while no server watches it.
    fs.appendFileSync(file, '{"end":{"state":"failed","reason":"rank 1 was killed"}}\n');
    await dashboard.start();
    await until("the end", async () => (await stateOf(page)) === "failed");
    await until("no banner", async () => (await page.locator(".banner").count()) === 0);
    expect((await row.textContent()).includes("failed"), "the list agrees");
  });

  await check("150 half-sent requests do not keep the page from opening", async () => {
    const { hostname, port } = new URL(dashboard.address);
    const sockets = await Promise.all(
      Array.from(
        { length: 150 },
        () =>
          new Promise((done) => {
            const socket = net.connect(Number(port), hostname, () => {
              socket.write("GET /api/runs HTTP/1.1\r\nHost: 127");
              done(socket);
            });
            socket.on("error", () => done(socket));
          }),
      ),
    );
    const began = performance.now();
    await go(page, dashboard.address, "memory");
    const took = performance.now() - began;
    const waiting = sockets.filter((s) => !s.destroyed && s.readyState === "open").length;
    note(`the page opened after ${Math.round(took)} ms, beside ${waiting} half-sent requests`);
    expect(waiting > 0, "the server closed all of them first");
    for (const socket of sockets) socket.destroy();
  });

  await check("thirty runs at once are all shown, without 503", async () => {
    for (let i = 0; i < 30; i++)
      fs.writeFileSync(path.join(runs, `many${i}.jsonl`), lines(1, 5 + i));
    const ids = await until("the runs", async () => {
      const rows = await (await fetch(`${dashboard.address}/api/runs`)).json();
      const many = rows.filter((r) => r.name.startsWith("many")).map((r) => r.id);
      return many.length === 30 && many;
    });
    const refused = [];
    page.on("response", (r) => r.status() === 503 && refused.push(r.url()));
    await go(page, dashboard.address, "live", `runs=${ids.join(",")}`);
    const heads = page.locator("table thead th");
    await until("all runs", async () => (await heads.count()) === 31);
    fs.appendFileSync(path.join(runs, "many29.jsonl"), lines(35, 77));
    const row = page.locator(".runs label", { hasText: "many29" });
    await until("its new step", async () => (await row.textContent()).includes("step 77"));
    same(refused.join(" "), "", "refused requests");
  });
}

const SHAPE = "--model gpt-tiny --ranks 2 --zero 1 --micro-batch 2 --seq 32 --threads 1".split(" ");

async function checkRealRun(page, tessera, dashboard, runs) {
  const data = path.join(runs, "text.txt");
  fs.writeFileSync(data, "The quick brown fox jumps over the lazy dog. ".repeat(400));
  const trace = path.join(runs, "real.trace");
  const run = start(tessera, [
    ...["train", ...SHAPE, "--data", data, "--val-fraction", "0.2", "--eval-every", "2"],
    ..."--eval-batches 1 --steps 6 --lr 0.002 --seed 7 --samples 0 --trace-steps 3".split(" "),
    ...["--metrics", path.join(runs, "real.jsonl"), "--trace", trace],
  ]);
  await ended(run);
  const id = await until("the real run", () => idOf(dashboard, "real"));

  await check("the trace of a real run shows forward and backward", async () => {
    same(run.exitCode, 0, `exit status (${run.text})`);
    await go(page, dashboard.address, "trace", `source=${id}`);
    const events = JSON.parse(fs.readFileSync(trace, "utf8")).traceEvents.filter((e) => e.ph === "X");
    const from = Math.min(...events.map((e) => e.ts));
    const length = Math.max(...events.map((e) => e.ts + e.dur)) - from;
    // Names of the passes drawn at each pixel of the second row, which is that of computation.
    const { pixels, wide } = await page.locator(".lanes canvas").evaluate((canvas) => {
      const scale = canvas.width / canvas.clientWidth;
      const y = Math.round((22 + 8 + 20 + 4) * scale); // above the labels
      const { data } = canvas.getContext("2d").getImageData(0, y, canvas.width, 1);
      const style = getComputedStyle(document.documentElement);
      const colors = ["forward", "backward"].map((name) => {
        const hex = style.getPropertyValue(`--${name}`).trim();
        return [name, [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))];
      });
      const nameAt = (x) =>
        colors.find(([, rgb]) => rgb.every((v, i) => Math.abs(v - data[4 * x + i]) < 12))?.[0];
      return {
        pixels: Array.from({ length: canvas.clientWidth }, (_, x) => nameAt(Math.round(x * scale))),
        wide: canvas.clientWidth,
      };
    });
    const left = 92; // width of the names
    const position = (t) => left + ((t - from) / length) * (wide - left);
    for (const name of ["forward", "backward"]) {
      const spans = events
        .filter((e) => e.pid === 0 && e.name === name)
        .map((e) => [position(e.ts), position(e.ts + e.dur)]);
      same(spans.length, 3, `number of spans called ${name}`);
      const drawn = pixels.flatMap((n, x) => (n === name ? [x] : []));
      const inside = (x, [begin, end]) => begin - 1.5 <= x && x <= end + 1.5;
      for (const span of spans.filter(([begin, end]) => end - begin > 3))
        expect(drawn.some((x) => inside(x, span)), `${name} is not drawn at ${span}`);
      expect(drawn.length > 0, `${name} is drawn`);
      const stray = drawn.filter((x) => !spans.some((span) => inside(x, span)));
      same(stray.join(), "", `pixels of ${name} outside its spans`);
    }
  });

  await check("memory over a step of a real run is drawn as measured, beside the prediction", async () => {
    const rows = fs.readFileSync(path.join(runs, "real.jsonl"), "utf8").trim().split("\n").map((r) => JSON.parse(r));
    await go(page, dashboard.address, "trace", `source=${id}`);
    for (const step of ["2", "1"]) {
      await page.locator('[data-field="memory_step"] select').selectOption(step);
      const drawn = async (which) => {
        const figure = page.locator(`[data-memory="${which}"]`);
        return figure.evaluate((e) => {
          const [base] = [...e.querySelectorAll("line.grid")].map((l) => Number(l.getAttribute("y1"))).sort((a, b) => b - a);
          const peak = e.querySelector("[data-peak]");
          const areas = [...e.querySelectorAll("[data-area]")];
          const top = Math.min(
            ...areas.flatMap((a) => a.getAttribute("points").split(" ").map((p) => Number(p.split(",")[1]))),
          );
          return {
            peak: Number(peak.dataset.peak),
            high: base - Number(peak.getAttribute("cy")),
            top: base - top,
            areas: areas.map((a) => a.dataset.area).join(),
          };
        });
      };
      const counted = rows.find((r) => String(r.step) === step).mem_peak_bytes;
      await until(`the measured peak of step ${step}`, async () => (await drawn("measured")).peak === counted);
      const measured = await drawn("measured");
      const predicted = await drawn("predicted");
      same(measured.areas, "params,grads,optimizer,buffers,activations,temporary", "categories");
      for (const each of [measured, predicted])
        expect(Math.abs(each.top - each.high) < 0.1, `the areas reach ${each.top}, the peak is at ${each.high}`);
      const planned = rows.find((r) => r.start).start.predicted.memory.peak;
      expect(Math.abs(predicted.peak / planned - 1) < 1e-6, `predicted ${predicted.peak}, planned ${planned}`);
      const ratio = measured.high / predicted.high / (measured.peak / predicted.peak);
      expect(Math.abs(ratio - 1) < 0.01, `one scale: ${JSON.stringify([measured, predicted])}`);
    }
    await page.locator('[data-field="memory_rank"] select').selectOption("1");
    await until("rank 1", async () =>
      (await chartOf(page, "Memory over a step").locator("header").textContent()).includes("of rank 1 in step 1"),
    );
    await go(page, dashboard.address, "trace", `source=${id}&memory_rank=7`);
    same(await page.textContent('[data-field="memory_rank"] .reason'), "must be 0 or 1", "a rank that does not exist");
  });

  await check("a real run has hyperparameters, a validation loss and exposed ≤ total", async () => {
    await go(page, dashboard.address, "live", `runs=${id}`);
    const cell = (key) => page.locator(`[data-setting="${key}"] td`).nth(1).textContent();
    same(await cell("learning rate"), "0.002", "learning rate");
    same(await cell("global batch"), "4", "global batch");
    same(await cell("seed"), "7", "seed");
    same(await cell("mesh"), "dp=2", "mesh");
    same(await cell("layout"), "fp32", "layout");
    const seen = await (await fetch(`${dashboard.address}/api/runs/${id}`)).json();
    same(seen.eval_loss.filter((v) => v != null).length, 3, "number of evaluations");
    seen.comm_s.forEach((total, i) =>
      expect(
        total > 0 && seen.comm_exposed_s[i] <= total * 1.000001,
        `step ${seen.steps[i]}: exposed ${seen.comm_exposed_s[i]} of ${total}`,
      ),
    );
    same(seen.memory.peak, Math.max(...seen.mem_peak_bytes), "measured peak");
  });
}

async function checkKilledRank({ tessera, open, servers }, dashboard, runs) {
  await check("a killed rank ends the run on the page that train --dashboard printed", async () => {
    const metrics = path.join(runs, "killed.jsonl");
    const run = start(tessera, [
      ...["train", "--dashboard", ...SHAPE, "--steps", "100000", "--samples", "0"],
      ...["--metrics", metrics],
    ]);
    const address = await until("the address", () => run.text.match(/http:\/\/\S+/)?.[0], 60000);
    servers.add(new URL(address).origin);
    const page = await open();
    const stream = page.waitForResponse((r) => r.url().includes("/events"));
    await page.goto(address);
    await page.locator('[data-figure="state"]').waitFor();
    await until("the run", async () => (await stateOf(page)) === "running", 60000);
    expect(await page.locator(".runs input").isChecked(), "the run is selected");
    await until("the time left of 100,000 steps", async () =>
      / (min|h|days)$/.test(await figure(page, "eta").catch(() => "")),
    );
    await stream;
    process.kill(rankOf(run.pid, 1), "SIGKILL");
    const began = performance.now();
    await until("its end", async () => (await stateOf(page)) === "failed", 60000);
    note(`the page showed the killed rank after ${Math.round(performance.now() - began)} ms`);
    const reason = await page.textContent("[data-reason]");
    expect(/rank 1 .*SIGKILL/.test(reason), `reason: ${reason}`);
    await ended(run);
    await page.locator(".banner").waitFor(); // its server has ended too
    same(await stateOf(page), "failed", "state without the server");
    same(await page.locator(".dot.running").count(), 0, "number of green dots");
    await page.context().close();
    // Another server reads the end from the file.
    const seen = await until("the run", async () => {
      const rows = await (await fetch(`${dashboard.address}/api/runs`)).json();
      return rows.find((r) => r.name.includes("killed") && r.state !== "running");
    });
    same(seen.state, "failed", "state in the file");
  });
}

export async function checkRunViews(world) {
  const { tessera, torch, open, servers } = world;
  const runs = folder();
  const dashboard = new Dashboard(tessera, ["--runs", runs]);
  await dashboard.start();
  servers.add(dashboard.address);
  const page = await open();
  await checkCurves(page, dashboard, runs);
  if (torch) await checkRealRun(page, tessera, dashboard, runs);
  await checkMarks(page, dashboard, runs);
  await checkConnection(page, dashboard, runs);
  if (torch) await checkKilledRank(world, dashboard, runs);
  await page.context().close();
  await dashboard.stop();
}
