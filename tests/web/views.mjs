// Every view: loads, answers the keyboard, agrees with the command line, is readable by all.
import fs from "node:fs";
import path from "node:path";
import { check, expect, here, json, note, same, until } from "./harness.mjs";

const axeSource = fs.readFileSync(path.join(here, "node_modules/axe-core/axe.min.js"), "utf8");

// What shows that a view has its answer.
const READY = {
  memory: '[data-total="3"]',
  scaling: ".u-over",
  collectives: ".cells td",
  pipeline: ".gantt .pass",
  plan: "[data-plans] tbody tr",
  live: "main h1",
  sync: "main h1",
  trace: ".lanes canvas",
};

export async function go(page, address, view, query = "") {
  await page.goto("about:blank");
  await page.goto(`${address}/#/${view}${query ? `?${query}` : ""}`);
  await page.waitForSelector(READY[view]);
}

const valueOf = (page, selector) => page.$eval(selector, (e) => Number(e.dataset.value));

// As the page writes bytes.
function bytes(v) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (v >= 999.5 && at < 5) ((v /= 1000), at++);
  return `${Number(v.toFixed(v >= 99.995 ? 1 : 2))} ${units[at]}`;
}

async function findings(page, rules) {
  await page.evaluate(axeSource);
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

// How long the first view takes to be there, and of that what.
async function timeFirstView(page, address, which) {
  const began = performance.now();
  await page.goto(`${address}/`);
  await page.waitForSelector(READY.memory);
  const all = performance.now() - began;
  const [answered, parsed, painted] = await page.evaluate(() => {
    const [way] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    return [way.responseEnd, way.domContentLoadedEventEnd, paint?.startTime ?? NaN];
  });
  note(
    `first view drawn ${all.toFixed(0)} ms after asking for the address, ${which} (wanted: 1000); ` +
      `by the page's own clock answered ${answered.toFixed(0)}, run ${parsed.toFixed(0)}, painted ${painted.toFixed(0)} ms`,
  );
}

export async function checkViews({ tessera, dashboard, open }) {
  const page = await open();

  await check("memory opens at 7B, DP 8, with the planner's numbers", async () => {
    await timeFirstView(page, dashboard.address, "in a new browser");
    const another = await open();
    await timeFirstView(another, dashboard.address, "in one that runs");
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
    "a slider moved with the keyboard gives what tessera plan --json prints",
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
      expect(page.url().includes("dp=64"), `the address has the value: ${page.url()}`);
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

  await check("the same for a model with a shape", async () => {
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

  await check("a refused value shows its reason beside the control", async () => {
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
      expect((await reason.textContent()).length > 10, "a reason");
      await until(`${view}: it once`, async () => (await page.locator(".banner").count()) === 0);
    }
    const exact = page.locator('[data-field="pp"] .exact');
    await exact.fill("4");
    await exact.press("Enter");
    await page.waitForSelector(READY.pipeline);
    await until("the reason to go", async () => (await page.locator(".reason").count()) === 0);
  });

  await check("a slider's answer is drawn", async () => {
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
    expect(times.at(-1) < 10000, "an answer came");
    note(
      `a slider's answer was drawn within ${times[10].toFixed(0)} ms (median; worst of 20: ${times.at(-1).toFixed(0)} ms; wanted: 50)`,
    );
  });

  await check(
    "the ring's last step holds the sums, and its bytes and time are the formula's",
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
          expect(Math.abs(v - sums[c]) < 0.05, `chunk ${c}: ${v}, wanted ${sums[c]}`),
        );
      same(
        await page.textContent('[data-figure="bytes-per-rank"]'),
        "300 MB",
        "sent by each of 4 ranks of 200 MB",
      );
    },
  );

  await check("a collective's command prints its numbers over links of one's own", async () => {
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
      const said = await page.textContent('[data-figure="bytes-per-rank"]');
      same(said, bytes(printed.bytes_per_rank), `${command}: bytes`);
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

  await check("every view says what to try, and copies its address and its command", async () => {
    for (const view of Object.keys(READY)) {
      await go(page, dashboard.address, view);
      const text = await page.textContent(".tries");
      expect(/^Try.{40,}Notice.{40,}/s.test(text), `${view}: ${text}`);
      const copied = await page.$$eval(".head [data-copies]", (all) =>
        all.map((e) => e.dataset.copies),
      );
      same(copied[0], page.url(), `${view}: its address`);
      if (view === "live" || view === "sync") continue; // there may be no run
      expect(copied[1]?.startsWith("tessera "), `${view}: its command: ${copied[1]}`);
    }
  });

  await check("a chart is read with the arrows", async () => {
    await go(page, dashboard.address, "scaling");
    const said = page.locator(".chart + [role=status]").first();
    await page.locator(".chart").first().focus();
    for (const [key, starts] of [
      ["Home", "data parallel 1: ideal "],
      ["ArrowRight", "data parallel 2: ideal "],
      ["Escape", ""],
    ]) {
      await page.keyboard.press(key);
      await until(key, async () => {
        const text = (await said.textContent()).trim();
        return starts ? text.startsWith(starts) && text.includes("simulated ") : text === "";
      });
    }
  });

  await check("what a timeline shows is in its address, until another is asked for", async () => {
    await go(page, dashboard.address, "trace");
    const note = page.locator(".lanes >> xpath=.. >> css=.buttons .note");
    const all = await note.textContent();
    await page.locator(".lanes canvas").focus();
    for (const key of ["+", "+", "ArrowRight"]) await page.keyboard.press(key);
    await until("the address has it", () => /[?&]shown=[0-9.]+-[0-9.]+/.test(page.url()));
    const part = await note.textContent();
    expect(part !== all, `zoomed: ${part} of ${all}`);
    const address = page.url();
    await page.reload();
    await until("the same part", async () => (await note.textContent()) === part);
    same(page.url(), address, "an address that is opened stays");
    await page.locator(".lanes canvas").focus();
    await page.keyboard.press("0");
    await until("all of it", () => !page.url().includes("shown="));
    same(await note.textContent(), all, "all is shown");
    await page.goto(address);
    await until("the part again", async () => (await note.textContent()) === part);
    await page.locator('[data-field="dp"] input[type="range"]').focus();
    await page.keyboard.press("ArrowRight");
    await until("another step, whole", () => /dp=16/.test(page.url()));
    expect(!page.url().includes("shown="), page.url());
    // Nonsense shows all.
    await page.goto(`${dashboard.address}/#/trace?shown=9-1`);
    await until("whole", async () => (await note.textContent()) === all);
  });

  await check("scaling opens at DP 8 and 5%", async () => {
    await go(page, dashboard.address, "scaling");
    same(await page.textContent('[data-figure="law-efficiency"]'), "87.0%", "1/(1 + 0.05·3)");
  });

  await check("a plan is carried to the other views", async () => {
    await go(page, dashboard.address, "plan", "model=llama2-7b&gpus=16&global_batch=128");
    const wanted = json(
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
        (await page.textContent('[data-figure="plan-memory"]')) === bytes(wanted.memory.total),
    );
    await page.locator("thead button", { hasText: "memory" }).first().click();
    const sizes = await page.$$eval("[data-plans] tbody tr td:nth-child(2)", (c) =>
      c.map((e) => parseFloat(e.textContent)),
    );
    expect(
      sizes.every((s, i) => i === 0 || s >= sizes[i - 1] - 1e-9),
      `sorted: ${sizes.join(" ")}`,
    );
    const train = await page.locator('[data-copies^="tessera train"]').getAttribute("data-copies");
    expect(train?.includes("--model llama2-7b"), `train: ${train}`);
    await page.locator(".button", { hasText: "Memory" }).click();
    await page.waitForSelector(READY.memory);
    await until(
      "the same total",
      async () =>
        (await valueOf(page, `[data-total="${wanted.question.zero}"]`)) === wanted.memory.total,
    );
  });

  await check("a search is asked for when the slider rests, not for what it passes", async () => {
    await go(page, dashboard.address, "plan", "model=gpt2-xl&gpus=1&global_batch=64");
    const asked = [];
    const listen = (r) => {
      if (r.url().endsWith("/api/search")) asked.push(r.postDataJSON().gpus);
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
    await until("the search", () => asked.length > 0);
    page.off("request", listen);
    same(asked[0], 32, "GPUs of the first search");
  });

  await check("each view is restored from its address", async () => {
    await go(page, dashboard.address, "pipeline", "pp=3&micros=5");
    same(await page.locator('[data-field="pp"] .exact').inputValue(), "3", "stages");
    same(await page.locator('[data-field="micros"] .exact').inputValue(), "5", "micro-batches");
  });

  // Whatever the colours, the rules beside contrast are the same.
  for (const [scheme, rules] of [
    ["light", undefined],
    ["dark", ["color-contrast"]],
  ]) {
    await check(
      `every view, ${scheme}: no serious findings of axe, 375 and 1920 pixels`,
      async () => {
        const seen = await open({ colorScheme: scheme, reducedMotion: "reduce" });
        const all = [];
        for (const view of Object.keys(READY)) {
          await seen.setViewportSize({ width: 1280, height: 800 });
          await go(seen, dashboard.address, view);
          for (const f of await findings(seen, rules)) all.push(`${view}: ${f}`);
          for (const width of scheme === "light" ? [375, 1920] : []) {
            await seen.setViewportSize({ width, height: 800 });
            const over = await seen.evaluate(async () => {
              // Charts take their width from their card after the next frame.
              for (let i = 0; i < 3; i++) await new Promise((r) => requestAnimationFrame(r));
              return document.documentElement.scrollWidth - innerWidth;
            });
            if (over > 0) all.push(`${view} is ${over} pixels wider than ${width}`);
          }
        }
        await seen.context().close();
        expect(all.length === 0, all.join("\n"));
      },
    );
  }

  await check("every control can be reached with Tab", async () => {
    await go(page, dashboard.address, "memory");
    const wanted = await page.$$eval(
      ".controls input:not(:disabled):not([type=radio]), .controls select, .controls input[type=radio]:checked:not(:disabled)",
      (all) => all.length,
    );
    const reached = new Set();
    await page.evaluate(() => document.activeElement?.blur());
    for (let i = 0; i < 80 && reached.size < wanted; i++) {
      await page.keyboard.press("Tab");
      const id = await page.evaluate(() => {
        const e = document.activeElement;
        if (!e?.closest(".controls")) return "";
        e.dataset.reached ??= String(Math.random());
        return e.dataset.reached;
      });
      if (id) reached.add(id);
    }
    same(reached.size, wanted, "controls");
  });
  await page.context().close();
}
