// Plans in the other views, their uncertainty, and collectives over nodes: the numbers of the page
// equal those of the command line.
import { check, expect, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

// Format numbers as the page does.
const scaled = (v, units) => {
  let at = 0;
  while (v >= 999.5 && at + 1 < units.length) ((v /= 1000), at++);
  return `${Number(v.toFixed(v >= 99.995 ? 1 : 2))}${units[at]}`;
};
const count = (v) => scaled(v, ["", "k", "M", "B", "T"]);
const seconds = (v) =>
  v === 0
    ? "0 s"
    : v < 1e-3
      ? `${scaled(v * 1e6, [""])} µs`
      : v < 1
        ? `${scaled(v * 1e3, [""])} ms`
        : v < 120
          ? `${scaled(v, [""])} s`
          : `${scaled(v / 60, [""])} min`;
const grouped = (v) => v.toLocaleString("en-US");

// Flags of tessera plan and simulate that repeat a plan, from the question that it prints.
function flags(q) {
  const all = [
    ["--model", q.model.name],
    ...["dp", "tp", "pp", "zero", "layout", "seq", "recompute", "hardware"].map((k) => [`--${k}`, q[k]]),
    ["--dp-replicate", q.dp_replicate],
    ["--cp", q.cp],
    ["--ep", q.ep],
    ["--micro-batch", q.micro_batch],
    ["--grad-accum", q.grad_accum],
    ["--axis-order", q.order],
    ...(q.pp > 1 ? [["--schedule", q.schedule], ["--chunks", q.chunks]] : []),
  ].flatMap(([flag, value]) => [flag, String(value)]);
  return q.sequence_parallel ? [...all, "--sequence-parallel"] : all;
}

const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const shows = (page, name, text, what) =>
  until(`${what}: ${name} ${text}`, async () => (await figure(page, name)) === text).catch(
    async () => same(await figure(page, name), text, `${what}: ${name}`),
  );

export async function checkPlans({ tessera, dashboard, open }) {
  const page = await open();

  // Each search has a row with settings that a view could lose.
  for (const [what, search, wanted] of [
    [
      "interleaved with 20 chunks",
      "model=llama2-13b&gpus=32&global_batch=256",
      (q) => q.schedule === "interleaved" && q.chunks === 20,
    ],
    [
      "sequence parallel, dp 6",
      "model=llama2-13b&gpus=12&global_batch=48&hardware=h100&seq=2048",
      (q) => q.sequence_parallel && q.dp === 6,
    ],
    [
      "zero bubble",
      "model=llama2-13b&gpus=12&global_batch=48&hardware=h200&seq=2048",
      (q) => q.schedule === "zb-v",
    ],
    ["experts", "model=mixtral-8x7b&gpus=32&global_batch=256", (q) => q.ep > 1 && q.schedule === "interleaved"],
    ["replicas", "model=llama2-13b&gpus=32&global_batch=256", (q) => q.dp_replicate > 1],
    ["recomputed", "model=llama2-13b&gpus=4&global_batch=64", (q) => q.recompute === "full"],
  ]) {
    await check(`a plan shows its own numbers in every view: ${what}`, async () => {
      await go(page, dashboard.address, "plan", `${search}&compare=false`);
      const query = Object.fromEntries(new URLSearchParams(search));
      const settings = { hardware: "h100", layout: "bf16", top: 40, ...query };
      const words = Object.entries(settings).flatMap(([k, v]) => [`--${k.replace("_", "-")}`, `${v}`]);
      const { best } = json(tessera, "plan", "--search", ...words, "--json");
      const row = best.findIndex((p) => wanted(p.question));
      expect(row >= 0, `the search found no such plan: ${what}`);
      const q = best[row].question;
      const plan = json(tessera, "plan", ...flags(q), "--json");
      const simulated = json(tessera, "simulate", ...flags(q), "--json");
      same(plan.tokens_per_s, best[row].tokens_per_s, "tokens/s of plan and search");
      await page.locator("[data-plans] tbody tr").nth(row).click();
      await shows(page, "plan-memory", bytes(plan.memory.total), what);
      await shows(page, "plan-tokens", count(plan.tokens_per_s), what);
      await shows(page, "plan-bubble", seconds(plan.time.bubble), what);

      const links = Object.fromEntries(
        await page.$$eval(".buttons a.button", (all) => all.map((e) => [e.textContent, e.href])),
      );
      const openIn = async (view, ready) => {
        expect(/\?plan=[^&]+$/.test(links[view]), `the plan is one value of the URL: ${links[view]}`);
        await page.goto(links[view]);
        await page.waitForSelector(ready);
      };
      await openIn("Memory", `[data-total="${q.zero}"]`);
      await shows(page, "total", bytes(plan.memory.total), `${what}: memory`);
      await openIn("Scaling", ".u-over");
      await shows(page, "throughput", count(simulated.tokens_per_s), `${what}: scaling`);
      await shows(page, "step", seconds(simulated.step), `${what}: scaling`);
      await openIn("Trace", ".lanes canvas");
      await shows(page, "tokens", count(simulated.tokens_per_s), `${what}: trace`);
      await shows(page, "bubble", seconds(simulated.time.bubble), `${what}: trace`);
      await openIn("Pipeline", ".gantt .pass");
      same(await page.locator(".gantt").count(), 1, `${what}: schedules`);
      await shows(page, "tokens", count(simulated.tokens_per_s), `${what}: pipeline`);
      await shows(page, "bubble", seconds(simulated.time.bubble), `${what}: pipeline`);
      const command = await page.locator(".head [data-copies^=tessera]").getAttribute("data-copies");
      for (const word of [`--stages ${q.pp}`, `--micro-batches ${q.grad_accum}`, `--schedule ${q.schedule}`])
        expect(`${command} `.includes(`${word} `), `${what}: ${command} has no ${word}`);
      if (q.schedule === "interleaved")
        expect(command.endsWith(`--chunks ${q.chunks}`), `${what}: chunks in ${command}`);
      await openIn("Collectives", ".cells td");
      const sent = plan.traffic.dp + plan.traffic.dp_replicate;
      await until(
        `${what}: ${bytes(sent)} sent at stage ${q.zero}`,
        async () => (await page.textContent(`[data-sent="${q.zero}"]`)) === bytes(sent),
      );
    });
  }

  await check("a setting of a plan without a control is listed and can be removed", async () => {
    const plan = "model:llama2-13b;dp:8;pp:2;zero:1;grad_accum:8;schedule:interleaved;chunks:10";
    await go(page, dashboard.address, "trace", `plan=${plan}`);
    await page.locator('[data-setting="chunks"]').click();
    await until("the plan without chunks", () => page.url().endsWith("schedule:interleaved"));
    same(await page.locator("[data-setting]").count(), 0, "settings left");
    // A change made here is part of the plan in the other views.
    await page.locator('[data-field="dp"] input[type="range"]').focus();
    await page.keyboard.press("ArrowRight");
    await until("dp=16 in the URL", () => page.url().includes("dp=16"));
    await page.locator("[data-plan] .button", { hasText: "Scaling" }).click();
    await page.waitForSelector(".u-over");
    expect(page.url().includes("dp:16"), page.url());
    same(await page.locator('[data-field="dp"] .exact').inputValue(), "16", "dp");
    await page.locator("[data-plan] button", { hasText: "Close plan" }).click();
    await until("no plan in the URL", () => !page.url().includes("plan="));
  });

  await check("collectives over nodes take the time of the command", async () => {
    const shared = "--ranks 8 --bytes 200MB --bandwidth 100GB/s --per-node 4 --between-bandwidth 25GB/s";
    for (const algorithm of ["ring", "tree", "two-level"]) {
      await go(page, dashboard.address, "collectives", `algorithm=${algorithm}`);
      const words = `explain collective --algorithm ${algorithm} ${shared} --json`;
      const printed = json(tessera, ...words.split(" "));
      await shows(page, "seconds", seconds(printed.seconds), algorithm);
      const sent = await page.$$eval("[data-sent-by]", (all) => all.map((e) => e.textContent));
      const expected = algorithm === "tree" ? printed.bytes_by_rank.map(bytes) : [];
      same(sent.join(), expected.join(), `${algorithm}: sent by rank`);
    }
    const times = await page.$$eval("table:has(tr.on) tbody tr td:last-child", (all) =>
      all.map((e) => e.textContent),
    );
    same(times[0], "14 ms", "ring");
    expect(parseFloat(times[2]) < 14, `two-level must be faster than the ring: ${times}`);
  });

  await check("the plan view shows intervals, equal plans, and how many were tried", async () => {
    await go(page, dashboard.address, "plan", "gpus=8&global_batch=64&compare=false");
    const words =
      "plan --search --model llama2-13b --gpus 8 --hardware h100 --global-batch 64 --layout bf16 --top 40 --json";
    const found = json(tessera, ...words.split(" "));
    same(
      await figure(page, "tried"),
      `${grouped(found.tried)} tried, ${grouped(found.fitting)} fit, ${found.best.length} shown`,
      "numbers of configurations",
    );
    const rows = await page.$$eval("[data-plans] tbody tr", (all) =>
      all.map((r) => [r.querySelector(".equal").textContent, r.querySelector("[data-interval]").textContent.trim()]),
    );
    same(rows.length, found.best.length, "rows");
    found.best.forEach((p, i) => {
      same(rows[i][0], p.as_good_as_the_best ? "=" : "", `row ${i}: =`);
      const { low, high } = p.time.interval;
      same(rows[i][1], `${seconds(low)} to ${seconds(high)}`, `row ${i}: interval`);
    });
    expect(new Set(rows.map((r) => r[0])).size === 2, "some plans must be equal and some slower");
    const faded = found.best.filter((p) => !p.as_good_as_the_best).length;
    same(await page.locator(".scatter circle.faded").count(), faded, "faded dots");
    const [dot, bar] = await page.$eval(".scatter", (e) => {
      const box = (s) => e.querySelector(s).getBoundingClientRect();
      const centre = box("circle.on");
      return [centre.top + centre.height / 2, [box(".interval").top, box(".interval").bottom]];
    });
    expect(bar[0] < dot && dot < bar[1], `the interval ${bar} must contain the dot at ${dot}`);
    for (const [reason, number] of Object.entries(found.ruled_out))
      same(await page.textContent(`[data-ruled-out="${reason}"]`), grouped(number), reason);
  });

  await check("when nothing fits, the plan view shows why and the nearest plan that fits", async () => {
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/plan?model=llama2-70b&gpus=4&compare=false`);
    await page.waitForSelector('[data-figure="nearest-gpus"]');
    const words =
      "plan --search --model llama2-70b --gpus 4 --hardware h100 --global-batch 256 --layout bf16 --json";
    const { closest, nearest_fit: nearest } = json(tessera, ...words.split(" "));
    const lines = (name) =>
      page.$$eval(`[data-figure="${name}"]`, (all) => all.map((e) => e.textContent).join("\n"));
    same(await lines("why"), closest.notes.join("\n"), "why");
    const advice = [closest.remedy, ...closest.advice].map((line) => `Advice: ${line}`);
    same(await lines("advice"), advice.join("\n"), "advice");
    same(await figure(page, "nearest-gpus"), `${nearest.question.gpus} GPUs`, "nearest");
    same(await figure(page, "plan-memory"), bytes(nearest.memory.total), "its memory");
    await page.locator("button", { hasText: `Plan for ${nearest.question.gpus} GPUs` }).click();
    await page.waitForSelector("[data-plans] tbody tr");
    await shows(page, "plan-tokens", count(nearest.tokens_per_s), "its tokens/s");
    await page.goto(`${dashboard.address}/#/plan?gpus=41&compare=false`);
    await page.waitForSelector('[data-figure="no-nearest"]');
    await page.locator('[data-ruled-out="fewer layers than pp · chunks"]').waitFor();
  });
  await page.context().close();
}
