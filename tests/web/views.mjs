// Every view: loading, keyboard, agreement with the command line.
import fs from "node:fs";
import path from "node:path";
import { check, expect, here, json, note, same, until } from "./harness.mjs";

const axeSource = fs.readFileSync(path.join(here, "node_modules/axe-core/axe.min.js"), "utf8");

// Selectors of elements that appear when a view has its response.
export const READY = {
  memory: '[data-total="3"]',
  scaling: ".u-over",
  collectives: ".cells td",
  pipeline: ".gantt .pass",
  context: "[data-owner]",
  plan: "[data-plans] tbody tr",
  live: "main h1",
  sync: "main h1",
  trace: ".lanes canvas",
  questions: "[data-question]",
};

export async function go(page, address, view, query = "") {
  await page.goto("about:blank");
  await page.goto(`${address}/#/${view}${query ? `?${query}` : ""}`);
  await page.waitForSelector(READY[view]);
}

const valueOf = (page, selector) => page.$eval(selector, (e) => Number(e.dataset.value));

// Formats bytes as the page does.
export function bytes(v) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (v >= 999.5 && at < 5) ((v /= 1000), at++);
  return `${Number(v.toFixed(v >= 99.995 ? 1 : 2))} ${units[at]}`;
}

export async function findings(page, rules) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
  const { violations } = await page.evaluate(
    (only) =>
      window.axe.run(document, {
        runOnly: only
          ? { type: "rule", values: only }
          : { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21aa"] },
        resultTypes: ["violations"],
      }),
    rules,
  );
  return violations
    .filter((v) => v.impact === "serious" || v.impact === "critical")
    .map(
      (v) =>
        `${v.id} at ${v.nodes
          .slice(0, 3)
          .map((n) => `${n.target.join(" ")} (${n.failureSummary?.split("\n")[1]?.trim() ?? ""})`)
          .join("; ")}`,
    );
}

// Measures the time until the first view is drawn, and its parts.
async function timeFirstView(page, address, which) {
  const began = performance.now();
  await page.goto(`${address}/`);
  await page.waitForSelector(READY.memory);
  const all = performance.now() - began;
  const [loaded, parsed, painted] = await page.evaluate(() => {
    const [navigation] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    return [navigation.responseEnd, navigation.domContentLoadedEventEnd, paint?.startTime ?? NaN];
  });
  note(
    `first view drawn ${all.toFixed(0)} ms after the request, ${which} (target: 1000); ` +
      `by the page's clock: loaded ${loaded.toFixed(0)}, parsed ${parsed.toFixed(0)}, painted ${painted.toFixed(0)} ms`,
  );
}

export async function checkViews({ tessera, dashboard, open }) {
  const page = await open();

  await check("memory opens at 7B, DP 8, with the planner's numbers", async () => {
    await timeFirstView(page, dashboard.address, "in a new browser");
    const another = await open();
    await timeFirstView(another, dashboard.address, "in a running browser");
    await another.context().close();
    for (const stage of [0, 1, 2, 3]) {
      const plan = json(
        tessera,
        "plan",
        "--params",
        "7B",
        "--dp",
        "8",
        "--zero",
        String(stage),
        "--json",
      );
      same(await valueOf(page, `[data-total="${stage}"]`), plan.memory.total, `stage ${stage}`);
      same(
        (await page.textContent(`[data-total="${stage}"]`)).trim(),
        bytes(plan.memory.total),
        `text of stage ${stage}`,
      );
    }
  });

  await check(
    "a slider moved with the keyboard shows the numbers of tessera plan --json",
    async () => {
      const slider = page.locator('[data-field="dp"] input[type="range"]');
      await slider.focus();
      for (const dp of [16, 32, 64]) {
        await page.keyboard.press("ArrowRight");
        const plan = json(
          tessera,
          "plan",
          "--params",
          "7B",
          "--dp",
          String(dp),
          "--zero",
          "2",
          "--json",
        );
        await until(
          `dp ${dp}`,
          async () => (await valueOf(page, '[data-total="2"]')) === plan.memory.total,
        );
        same(
          await page.textContent('[data-figure="grads"]'),
          bytes(plan.memory.grads),
          "gradients",
        );
      }
      expect(page.url().includes("dp=64"), `the URL must have dp=64: ${page.url()}`);
      await page.locator('[data-field="dp_replicate"] input[type="range"]').focus();
      await page.keyboard.press("ArrowRight");
      const words = "plan --params 7B --dp 64 --zero 2 --dp-replicate 2 --json";
      const hybrid = json(tessera, ...words.split(" "));
      await until(
        "2 replicas",
        async () => (await valueOf(page, '[data-total="2"]')) === hybrid.memory.total,
      );
      await page.keyboard.press("ArrowLeft");
    },
  );

  await check("a model by name shows the numbers of tessera plan --json", async () => {
    await go(
      page,
      dashboard.address,
      "memory",
      "by=model&model=gpt2-xl&dp=4&zero=1&micro_batch=2&recompute=full",
    );
    const plan = json(
      tessera,
      "plan",
      "--model",
      "gpt2-xl",
      "--dp",
      "4",
      "--zero",
      "1",
      "--micro-batch",
      "2",
      "--recompute",
      "full",
      "--json",
    );
    await until(
      "its total",
      async () => (await valueOf(page, '[data-total="1"]')) === plan.memory.total,
    );
    same(
      await page.textContent('[data-figure="activations"]'),
      bytes(plan.memory.activations),
      "activations",
    );
  });

  await check("a copied command prints the same numbers", async () => {
    await page.locator(".head button", { hasText: "Copy command" }).click();
    const command = await page.locator(".head [data-copies^=tessera]").getAttribute("data-copies");
    const copied = await page.evaluate(() => navigator.clipboard.readText()).catch(() => command);
    same(copied, command, "the clipboard");
    const [name, ...args] = command.split(" ");
    same(name, "tessera", "command");
    const printed = json(tessera, ...args, "--json");
    for (const s of printed.stages)
      same(await valueOf(page, `[data-total="${s.stage}"]`), s.memory.total, s.name);
  });

  await check("a rejected value shows the error message next to its control", async () => {
    for (const [view, query, field] of [
      ["memory", "dp=many", "dp"],
      ["memory", "by=model&model=gpt2-xl&tp=7", "tp"],
      ["collectives", "dp=many", "dp"],
      ["live", "runs=nothing", "runs"],
      ["pipeline", "pp=9999", "pp"],
    ]) {
      await page.goto("about:blank");
      await page.goto(`${dashboard.address}/#/${view}?${query}`);
      const reason = await page.waitForSelector(`[data-field="${field}"] .reason`);
      expect((await reason.textContent()).length > 10, "the message is too short");
      await until(`${view}: no second message`, async () => (await page.locator(".banner").count()) === 0);
    }
    const exact = page.locator('[data-field="pp"] .exact');
    await exact.fill("4");
    await exact.press("Enter");
    await page.waitForSelector(READY.pipeline);
    await until(
      "the message to disappear",
      async () => (await page.locator(".reason").count()) === 0,
    );
  });

  await check("moving a slider updates the view", async () => {
    await go(page, dashboard.address, "memory");
    const times = await page.evaluate(async () => {
      const slider = document.querySelector('[data-field="dp"] input[type="range"]');
      const shown = () => document.querySelector('[data-total="3"]').dataset.value;
      const took = [];
      for (let i = 0; i < 20; i++) {
        const before = shown();
        const began = performance.now();
        slider.value = String(3 + (i % 4));
        if (i % 4 === 0 && i === 0) slider.value = "5";
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        const deadline = performance.now() + 10000;
        while (shown() === before && performance.now() < deadline)
          await new Promise((r) => requestAnimationFrame(r));
        took.push(performance.now() - began);
      }
      return took.sort((a, b) => a - b);
    });
    expect(times.at(-1) < 10000, "a slider did not update the view within 10 s");
    note(
      `a slider updated the view within ${times[10].toFixed(0)} ms (median; worst of 20: ${times.at(-1).toFixed(0)} ms; target: 50)`,
    );
  });

  await check(
    "the last step of a ring holds the sums, and its bytes match the formula",
    async () => {
      await go(page, dashboard.address, "collectives", "ranks=4");
      const player = page.locator('.player input[type="range"]');
      const sums = await page.$$eval(".cells tbody tr", (rows) => {
        const cells = rows.map((r) =>
          [...r.querySelectorAll("td")].map((c) => Number(c.textContent)),
        );
        return cells[0].map((_, c) => cells.reduce((sum, row) => sum + row[c], 0));
      });
      await player.focus();
      await page.keyboard.press("End");
      await until("the end", async () => (await page.$$(".cells td.whole")).length === 16);
      const rows = await page.$$eval(".cells tbody tr", (all) =>
        all.map((r) => [...r.querySelectorAll("td")].map((c) => Number(c.textContent))),
      );
      for (const row of rows)
        row.forEach((v, c) =>
          expect(Math.abs(v - sums[c]) < 0.05, `chunk ${c} is ${v}, expected ${sums[c]}`),
        );
      same(
        await page.textContent('[data-figure="bytes-per-rank"]'),
        "300 MB",
        "sent by each of 4 ranks of 200 MB",
      );
    },
  );

  await check("the command of a collective prints the same numbers for custom links", async () => {
    for (const query of [
      "algorithm=ring&bandwidth=12345678",
      "algorithm=tree&bandwidth=2500000001&latency=0.00001",
      "algorithm=two-level&ranks=16&per_node=4&between_bandwidth=1000000000&bytes=10000",
    ]) {
      await go(page, dashboard.address, "collectives", query);
      const command = await page
        .locator(".head [data-copies^=tessera]")
        .getAttribute("data-copies");
      const printed = json(tessera, ...command.split(" ").slice(1), "--json");
      const sent = await page.textContent('[data-figure="bytes-per-rank"]');
      same(sent, bytes(printed.bytes_per_rank), `${command}: bytes`);
      same(
        await page.locator("tr.on td").nth(1).textContent(),
        String(printed.steps.length),
        `${command}: steps`,
      );
    }
  });

  await check("the pipeline's bubble is (P−1)/(K+P−1)", async () => {
    await go(page, dashboard.address, "pipeline", "pp=8&micros=32&shown=gpipe,1f1b");
    await until(
      "the figure",
      async () => (await page.textContent('[data-figure="bubble-1f1b"]')) === "17.9%",
    );
    same(await page.textContent('[data-figure="bubble-gpipe"]'), "17.9%", "gpipe");
  });

  await check("every view has suggestions and copies its URL and command", async () => {
    for (const view of Object.keys(READY)) {
      await go(page, dashboard.address, view);
      const text = await page.textContent(".tries");
      expect(/^Try.{40,}Observe.{40,}/s.test(text), `${view}: ${text}`);
      const copied = await page.$$eval(".head [data-copies]", (all) =>
        all.map((e) => e.dataset.copies),
      );
      same(copied[0], page.url(), `${view}: URL`);
      if (view === "live" || view === "sync") continue; // may have no run
      expect(copied[1]?.startsWith("tessera "), `${view}: the command is ${copied[1]}`);
    }
  });

  await check("the arrow keys read the values of a chart", async () => {
    await go(page, dashboard.address, "scaling");
    const status = page.locator(".chart + [role=status]").first();
    await page.locator(".chart").first().focus();
    for (const [key, starts] of [
      ["Home", "data parallel 1: ideal "],
      ["ArrowRight", "data parallel 2: ideal "],
      ["Escape", ""],
    ]) {
      await page.keyboard.press(key);
      await until(key, async () => {
        const text = (await status.textContent()).trim();
        return starts ? text.startsWith(starts) && text.includes("simulated ") : text === "";
      });
    }
  });

  await check("the URL holds the visible range of a timeline until a setting changes", async () => {
    await go(page, dashboard.address, "trace");
    const note = page.locator(".lanes >> xpath=.. >> css=.buttons .note");
    const all = await note.textContent();
    await page.locator(".lanes canvas").focus();
    for (const key of ["+", "+", "ArrowRight"]) await page.keyboard.press(key);
    // The URL follows 200 ms after the last change; keys may be further apart on a slow machine.
    let last = "";
    await until("the range in the URL", async () => {
      const before = last;
      last = page.url();
      await page.waitForTimeout(500);
      return /[?&]shown=[0-9.]+-[0-9.]+/.test(last) && last === before;
    });
    const part = await note.textContent();
    expect(part !== all, `zoomed: ${part} of ${all}`);
    const address = page.url();
    await page.reload();
    await until("the same part", async () => (await note.textContent()) === part);
    same(page.url(), address, "the URL after reloading");
    await page.locator(".lanes canvas").focus();
    await page.keyboard.press("0");
    await until("all of it", () => !page.url().includes("shown="));
    same(await note.textContent(), all, "all is shown");
    await page.goto(address);
    await until("the part again", async () => (await note.textContent()) === part);
    await page.locator('[data-field="dp"] input[type="range"]').focus();
    await page.keyboard.press("ArrowRight");
    await until("dp=16 in the URL", () => /dp=16/.test(page.url()));
    expect(!page.url().includes("shown="), page.url());
    // A malformed range shows everything.
    await page.goto(`${dashboard.address}/#/trace?shown=9-1`);
    await until("whole", async () => (await note.textContent()) === all);
  });

  await check("scaling opens at DP 8 and 5%", async () => {
    await go(page, dashboard.address, "scaling");
    same(await page.textContent('[data-figure="law-efficiency"]'), "87.0%", "1/(1 + 0.05·3)");
  });

  await check("a plan opens in the other views", async () => {
    await go(page, dashboard.address, "plan", "model=llama2-7b&gpus=16&global_batch=128");
    const expected = json(
      tessera,
      "plan",
      "--search",
      "--model",
      "llama2-7b",
      "--gpus",
      "16",
      "--hardware",
      "h100",
      "--global-batch",
      "128",
      "--layout",
      "bf16",
      "--top",
      "40",
      "--json",
    ).best[1];
    await page.locator("[data-plans] tbody tr").nth(1).click();
    await until(
      "the row's figures",
      async () =>
        (await page.textContent('[data-figure="plan-memory"]')) === bytes(expected.memory.total),
    );
    await page.locator("thead button", { hasText: "memory" }).first().click();
    const sizes = await page.$$eval("[data-plans] tbody tr td:nth-child(2)", (c) =>
      c.map((e) => parseFloat(e.textContent)),
    );
    expect(
      sizes.every((s, i) => i === 0 || s >= sizes[i - 1] - 1e-9),
      `sorted: ${sizes.join(" ")}`,
    );
    const train = await page.locator('[data-copies*="tessera train"]').first().getAttribute("data-copies");
    expect(train?.includes("--model llama2-7b"), `train: ${train}`);
    await page.locator(".button", { hasText: "Memory" }).click();
    await page.waitForSelector(READY.memory);
    await until(
      "the same total",
      async () =>
        (await valueOf(page, `[data-total="${expected.question.zero}"]`)) === expected.memory.total,
    );
  });

  await check("a search is requested only when the slider stops moving", async () => {
    await go(page, dashboard.address, "plan", "model=gpt2-xl&gpus=1&global_batch=64");
    const searches = [];
    const listen = (r) => {
      if (r.url().endsWith("/api/search")) searches.push(r.postDataJSON().gpus);
    };
    page.on("request", listen);
    await page.evaluate(async () => {
      const slider = document.querySelector('[data-field="gpus"] input[type="range"]');
      for (let stop = 1; stop <= 5; stop++) {
        slider.value = String(stop);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((drawn) => requestAnimationFrame(drawn));
      }
    });
    await until("the search", () => searches.length > 0);
    page.off("request", listen);
    same(searches[0], 32, "GPUs of the first search");
  });

  await check("a view is restored from its URL", async () => {
    await go(page, dashboard.address, "pipeline", "pp=3&micros=5");
    same(await page.locator('[data-field="pp"] .exact').inputValue(), "3", "stages");
    same(await page.locator('[data-field="micros"] .exact').inputValue(), "5", "micro-batches");
  });

  await check("pages fit 375 and 1920 pixels", async () => {
    const all = [];
    for (const view of Object.keys(READY)) {
      await go(page, dashboard.address, view);
      for (const width of [375, 1920]) {
        await page.setViewportSize({ width, height: 800 });
        const over = await page.evaluate(async () => {
          // Charts resize after the next frame.
          for (let i = 0; i < 3; i++) await new Promise((r) => requestAnimationFrame(r));
          return document.documentElement.scrollWidth - innerWidth;
        });
        if (over > 0) all.push(`${view} is ${over} pixels wider than ${width}`);
      }
    }
    await page.setViewportSize({ width: 1280, height: 800 });
    expect(all.length === 0, all.join("\n"));
  });

  await check("every control can be reached with Tab", async () => {
    await go(page, dashboard.address, "memory");
    const expected = await page.$$eval(
      ".controls input:not(:disabled):not([type=radio]), .controls select, .controls input[type=radio]:checked:not(:disabled)",
      (all) => all.length,
    );
    const reached = new Set();
    await page.evaluate(() => document.activeElement?.blur());
    for (let i = 0; i < 80 && reached.size < expected; i++) {
      await page.keyboard.press("Tab");
      const id = await page.evaluate(() => {
        const e = document.activeElement;
        if (!e?.closest(".controls")) return "";
        e.dataset.reached ??= String(Math.random());
        return e.dataset.reached;
      });
      if (id) reached.add(id);
    }
    same(reached.size, expected, "controls");
  });
  await page.context().close();
}
