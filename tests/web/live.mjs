// Live view: metrics files that grow, end in an incomplete line or are replaced, a server that is
// restarted, and (with tessera-torch) a real run that is killed and resumed.
import fs from "node:fs";
import path from "node:path";
import { check, ended, expect, note, rankOf, same, slowDown, start, until } from "./harness.mjs";
import { go } from "./views.mjs";

// Metrics line in the format of tessera train --metrics.
const line = (step) =>
  `${JSON.stringify({ step, loss: 5 / Math.sqrt(step), grad_norm: 1 + 1 / step, lr: 3e-3 * (1 - step / 1000), tokens: 2048, tokens_per_s: 9000 + (step % 7) * 40, step_s: 0.21, forward_s: 0.07, backward_s: 0.14, comm_s: 5e-4, comm_exposed_s: step % 5 === 0 ? 2e-4 : 0, optimizer_s: 1.7e-3, mem_bytes: 9135680, mem_peak_bytes: 46106368, sent_bytes: 3435520, control_bytes: 48 })}\n`;
const lines = (from, to) =>
  Array.from({ length: to - from + 1 }, (_, i) => line(from + i)).join("");
const summary = (zero) =>
  `${JSON.stringify({ summary: { predicted: { memory: { params: 3435520, grads: 1717760, optimizer: 3435520, activations: 35790912, buffers: 530432, temporary: 4866048, peak: 46106176 } }, measured: { memory: { params: 3435520, grads: 1717760, optimizer: 3435520, activations: 35790912, buffers: 530432, temporary: 4902016, peak: 46106368 } }, interrupted: false, run: { dp: "2", model: "gpt-tiny", zero: String(zero) } } })}\n`;

const alive = (run) =>
  expect(
    run.exitCode === null && run.signalCode === null,
    `tessera train ended (${run.signalCode ?? run.exitCode}): ${run.text}`,
  );

// Step times of all ranks, one of them slow.
const RANK_TIMES = {
  ranks: {
    step_s: [0.25, 0.25, 0.25],
    forward_s: [0.06, 0.06, 0.06],
    backward_s: [0.1, 0.17, 0.1],
    comm_exposed_s: [0.08, 0.01, 0.08],
    bubble_s: [0.02, 0, 0.02],
  },
  slow_ranks: [{ rank: 1, phase: "backward", factor: 1.7 }],
};
const lineWith = (step, more) => `${JSON.stringify({ ...JSON.parse(line(step)), ...more })}\n`;

// Writes a run with a slow rank, for the picture in builds that cannot train.
export function writeSlowRun(file) {
  const start = JSON.parse(summary(2)).summary;
  const first = lineWith(1, { start: { run: start.run, predicted: start.predicted, steps: 400 } });
  fs.writeFileSync(file, first + lines(2, 239) + lineWith(240, RANK_TIMES));
}

const shownStep = async (page) =>
  Number(
    (await page.textContent('[data-figure="live-step"]').catch(() => "0"))?.replace(/\D/g, ""),
  );
// idOf: the ID of the run whose file name contains `name`, or undefined if the server has none yet.
export const SLOWED = "slowed";
export async function idOf(dashboard, name) {
  const rows = await (await fetch(`${dashboard.address}/api/runs`)).json();
  return rows.find((r) => r.name.includes(name))?.id;
}
const reaches = (page, step) =>
  until(`step ${step}`, async () => (await shownStep(page)) === step, 40000);

export async function checkLive({ tessera, torch, dashboard, open, runs, pictures }) {
  const page = await open();
  const file = path.join(runs, "first.jsonl");

  await check("live follows a file that grows, half a line at a time", async () => {
    fs.writeFileSync(file, lines(1, 20));
    await go(page, dashboard.address, "live");
    await reaches(page, 20);
    fs.appendFileSync(file, line(21).slice(0, 30));
    fs.appendFileSync(file, line(21).slice(30) + lines(22, 40));
    await reaches(page, 40);
    await page.waitForSelector(".u-over");
  });

  await check("live reconnects after the server was killed and restarted", async () => {
    await dashboard.stop("SIGKILL");
    fs.appendFileSync(file, lines(41, 60));
    await dashboard.start();
    await reaches(page, 60);
    fs.appendFileSync(file, lines(61, 64));
    await reaches(page, 64);
  });

  await check("live starts over when the file is replaced", async () => {
    fs.writeFileSync(`${file}.new`, lines(1, 7));
    fs.renameSync(`${file}.new`, file);
    await reaches(page, 7);
    fs.appendFileSync(file, lines(8, 240) + summary(2));
    await reaches(page, 240);
  });

  await check("every rank has a bar, and the slow rank is marked", async () => {
    const card = page.locator(".card", { hasText: "Phases of each rank" });
    fs.appendFileSync(file, lineWith(241, RANK_TIMES));
    await until("three bars", async () => (await card.locator("[data-row]").count()) === 3);
    const pieces = await card
      .locator("[data-row]")
      .evaluateAll((rows) =>
        rows.map((r) => [...r.querySelectorAll("i")].map((i) => parseFloat(i.style.width))),
      );
    for (const row of pieces)
      expect(
        Math.abs(row.reduce((a, b) => a + b) - 100) < 0.1,
        `the phases add up to the step: ${row.join(" + ")}`,
      );
    const label = await card.locator(".stack").first().getAttribute("aria-label");
    for (const what of ["exposed communication 60 ms", "pipeline bubble 20 ms", "other"])
      expect(label.includes(what), `the label has no "${what}": ${label}`);
    same(await card.locator(".bad").count(), 1, "number of marked rows");
    expect(
      (await card.locator(".bad").textContent()).includes("rank 1"),
      "the slow rank is marked",
    );
    expect((await card.textContent()).includes("backward 1.7×"), "the slow phase is shown");
    same(await page.textContent('[data-figure="slow-1"]'), "rank 1", "among the figures");
    // After the rank has recovered, nothing is marked.
    fs.appendFileSync(file, lineWith(242, { ...RANK_TIMES, slow_ranks: undefined }));
    await until("the mark to disappear", async () => (await card.locator(".bad").count()) === 0);
    same(await card.locator("[data-row]").count(), 3, "number of bars");
    fs.appendFileSync(file, summary(2)); // the run ends again
  });

  await check("two runs are overlaid, and their settings are compared", async () => {
    fs.writeFileSync(
      path.join(runs, "second.jsonl"),
      lines(1, 200).replaceAll('"loss":', '"eval_loss":1,"loss":') + summary(3),
    );
    const second = page.locator(".runs label", { hasText: "second" });
    await second.waitFor();
    const first = page.locator(".runs label", { hasText: "first" });
    for (const label of [first, second]) {
      if (!(await label.locator("input").isChecked())) await label.locator("input").check();
    }
    const table = page.locator(".card", { hasText: "Configurations compared" });
    await table.waitFor();
    expect((await table.textContent()).includes("zero"), "the setting that differs");
    expect(page.url().includes("runs="), "the URL holds the selection");
  });

  if (torch) {
    await check("live follows a real run that is killed and resumed", async () => {
      const metrics = path.join(runs, "resumed.jsonl");
      const args = [
        "train",
        "--model",
        "gpt-tiny",
        "--ranks",
        "2",
        "--zero",
        "1",
        "--micro-batch",
        "2",
        "--steps",
        "4000",
        "--seq",
        "32",
        "--metrics",
        metrics,
        "--save",
        path.join(runs, "saved"),
        "--save-every",
        "10",
        "--resume",
        "auto",
      ];
      let run = start(tessera, args);
      await until(
        "its first checkpoint",
        () => {
          alive(run);
          return (
            fs.existsSync(path.join(runs, "saved")) &&
            fs.existsSync(metrics) &&
            fs.readFileSync(metrics, "utf8").split("\n").length > 30
          );
        },
        60000,
      );
      await go(page, dashboard.address, "live");
      await page.locator(".runs label", { hasText: "resumed" }).waitFor();
      const id = await idOf(dashboard, "resumed");
      await go(page, dashboard.address, "live", `runs=${id}`);
      const before = await until(
        "its steps",
        async () => (await shownStep(page)) > 20 && shownStep(page),
      );
      run.kill("SIGKILL");
      await ended(run);
      const lines = fs.readFileSync(metrics, "utf8").trimEnd().split("\n");
      run = start(tessera, args);
      // The page may lag behind the killed run, so steps count from the end of its file.
      await until(
        "more steps than before",
        async () => {
          alive(run);
          return (await shownStep(page)) > Math.max(before, lines.length) + 20;
        },
        60000,
      );
      const seen = await (await fetch(`${dashboard.address}/api/runs/${id}`)).json();
      expect(
        seen.marks.some((m) => m.kind === "restart"),
        `a mark of the restart: ${JSON.stringify(seen.marks.slice(-4))}`,
      );
      same(seen.phases.length, 2, "number of ranks with phases");
      expect(
        seen.phases.every((p) => p.forward_s > 0 && p.backward_s > 0 && p.step_s > 0),
        `phases: ${JSON.stringify(seen.phases)}`,
      );
      expect(
        seen.steps.every((s, i) => i === 0 || s > seen.steps[i - 1]),
        "every step appears once",
      );
      run.kill("SIGTERM");
      await ended(run);
      await until(
        "its end",
        async () => /stopped|done|silent/.test(await page.textContent('[data-figure="state"]')),
        40000,
      );
      note(`the real run was killed at step ${before}`);
    });

    await check("only the rank that is slowed down is marked", async () => {
      const metrics = path.join(runs, `${SLOWED}.jsonl`);
      const shape = "--model gpt-tiny --ranks 2 --zero 1 --micro-batch 4 --seq 64 --threads 1";
      const length = "--steps 100000 --samples 0 --metrics";
      const run = start(tessera, ["train", ...`${shape} ${length}`.split(" "), metrics]);
      const pid = await until("its ranks", () => (alive(run), rankOf(run.pid, 1)), 60000);
      await until("its first step", () => (alive(run), fs.existsSync(metrics)), 60000);
      const stopSlowing = slowDown(pid);
      try {
        const id = await until("the run", () => idOf(dashboard, SLOWED));
        await go(page, dashboard.address, "live", `runs=${id}`);
        const card = page.locator(".card", { hasText: "Phases of each rank" });
        const marked = card.locator(".bad b");
        await until(
          "the mark",
          async () => (alive(run), (await marked.allTextContents()).join() === "rank 1 slow"),
          120000,
        );
        expect((await card.textContent()).includes("rank 1 is slow"), "the card names the slow rank");
        same(await page.textContent('[data-figure="slow-1"]'), "rank 1", "among the figures");
        const seen = await (await fetch(`${dashboard.address}/api/runs/${id}`)).json();
        const waits = (rank) => seen.phases[rank].comm_exposed_s;
        expect(waits(0) > waits(1), `rank 0 must wait longer than rank 1: ${JSON.stringify(seen.phases)}`);
        const [slow] = seen.stragglers;
        note(`rank ${slow.rank} was marked slow: ${slow.phase} ${slow.factor.toFixed(1)}×`);
        if (pictures) await until("a curve", async () => (await shownStep(page)) >= 40, 120000);
        run.kill("SIGTERM"); // still slow, so the summary has it too
        await until("its end", () => run.exitCode !== null || run.signalCode !== null, 60000);
      } finally {
        await stopSlowing();
        run.kill("SIGKILL");
      }
    });

    await check("gradients of a real step differ before the all-reduce and agree after it", async () => {
      await page.goto("about:blank");
      await page.goto(`${dashboard.address}/#/sync`);
      await page.waitForSelector(".values .same", { timeout: 90000 });
      const rows = await page.$$eval("table tbody tr", (all) =>
        all.map((r) =>
          [...r.querySelectorAll(".values")].map((v) => [...v.children].map((c) => c.textContent)),
        ),
      );
      const useful = rows.filter((r) => r.length === 2);
      expect(useful.length > 0, "parameters");
      expect(
        useful.some(([b]) => new Set(b).size > 1),
        "the gradients before differ between ranks",
      );
      for (const [, after] of useful) same(new Set(after).size, 1, "number of different gradients after");
    });
  }
  await page.context().close();
}
