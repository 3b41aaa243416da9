// Input fields, rejected settings, and the numbers of the memory and pipeline views.
import { check, expect, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

async function enter(page, field, text) {
  const exact = page.locator(`[data-field="${field}"] .exact`);
  await exact.fill(text);
  await exact.press("Enter");
}

export async function checkSettings({ tessera, dashboard, open }) {
  const page = await open();

  await check("a field accepts the texts that it prints", async () => {
    for (const [view, query, field, text, key, value, printed = text] of [
      ["collectives", "", "bytes", "500 MB", "bytes", "500000000"],
      ["collectives", "", "bytes", "1.5GiB", "bytes", "1610612736", "1.61 GB"],
      ["collectives", "", "bandwidth", "12.5 GB/s", "bandwidth", "12500000000"],
      ["collectives", "", "bandwidth", "100 Gb/s", "bandwidth", "12500000000", "12.5 GB/s"],
      ["collectives", "", "latency", "7 µs", "latency", "0.000007"],
      ["collectives", "", "latency", "0.5 ms", "latency", "0.0005", "500 µs"],
      ["scaling", "", "overhead", "10%", "overhead", "0.1"],
      ["scaling", "", "jitter", "7 %", "jitter", "0.07", "7%"],
      ["scaling", "", "bandwidth", "500 MB/s", "bandwidth", "0.5"],
      ["scaling", "bandwidth=5", "bandwidth", "hardware default", "bandwidth", null],
      ["scaling", "price_per_hour=3", "price_per_hour", "$9 (default)", "price_per_hour", null, "$2 (default)"],
      ["memory", "", "params", "350M", "params", "350000000"],
      ["memory", "", "params", "1,300,000,000", "params", "1300000000", "1.3B"],
      ["memory", "by=model&model=gpt2-xl&seq=512", "seq", "", "seq", null, "1024 (default)"],
    ]) {
      if (query || !page.url().includes(`/#/${view}`)) await go(page, dashboard.address, view, query);
      await enter(page, field, text);
      const at = `${view}, ${field}, "${text}"`;
      await until(`${at}: the printed text`, async () => {
        const exact = page.locator(`[data-field="${field}"] .exact`);
        return (await exact.inputValue()) === printed;
      });
      same(new URLSearchParams(page.url().split("?")[1]).get(key), value, at);
      same(await page.locator(".reason, .banner").count(), 0, `${at}: messages`);
    }
  });

  await check("the position of a slider follows a typed value", async () => {
    await go(page, dashboard.address, "memory");
    await enter(page, "params", "70B");
    const slider = page.locator('[data-field="params"] input[type="range"]');
    await until("70B", async () => (await slider.inputValue()) === "20");
    same(await slider.getAttribute("aria-valuetext"), "70B", "text of the slider");
  });

  await check("a rejected value is explained, and the old chart is dimmed", async () => {
    const opacity = (selector) =>
      page.$eval(selector, (e) => {
        let value = 1;
        for (let at = e; at; at = at.parentElement) value *= Number(getComputedStyle(at).opacity);
        return value;
      });
    for (const [view, field, text, chart, message, good] of [
      ["collectives", "bytes", "500 apples", ".ring", /"500 apples".*example: 500 MB/s, "1 MB"],
      ["scaling", "jitter", "300%", ".chart", /got 3; must be a number from 0 to 2/, "5%"],
      ["scaling", "dp", "0x10", ".chart", /0x10/, "16"],
      ["scaling", "dp", "0.5", ".chart", /got 0.5/, "16"],
      ["scaling", "bandwidth", "1e999", ".chart", /1e999/, "5 GB/s"],
      ["scaling", "bandwidth", "0", ".chart", /got 0/, "5 GB/s"],
      ["memory", "dp", "1e999", ".bars", /1e999/, "4"],
      ["pipeline", "chunks", "2000", ".card:has-text('Interleaved') .gantt", /got 2000/, "3"],
    ]) {
      await go(page, dashboard.address, view);
      await page.waitForSelector(chart);
      same(await opacity(chart), 1, `${view}: opacity before`);
      await enter(page, field, text);
      const reason = await page.waitForSelector(`[data-field="${field}"] .reason`);
      expect(message.test(await reason.textContent()), await reason.textContent());
      await until(`${view}: dimmed`, async () => (await opacity(chart)) < 0.6);
      if (view === "pipeline") same(await opacity(".gantt"), 1, "other schedules are up to date");
      await enter(page, field, good);
      await until(`${view}: restored`, async () => (await opacity(chart)) === 1);
      same(await page.locator(".reason").count(), 0, `${view}: messages`);
    }
    await page.goto(`${dashboard.address}/#/memory?zero=7`);
    await page.waitForSelector('[data-field="zero"] .reason');
  });

  await check("a choice that does not exist is refused beside its control", async () => {
    await go(page, dashboard.address, "memory", "by=name");
    const reason = page.locator('[data-field="by"] .reason');
    same(await reason.textContent(), "got name; must be one of size, model, shape, config", "reason");
    await go(page, dashboard.address, "live", "log=maybe");
    same(await page.textContent('[data-field="log"] .reason'), "got maybe; must be true or false", "switch");
    await go(page, dashboard.address, "plan", "pick=40&compare=false");
    const message = "pick: got 40; must be from 0 to 39, a row of the plans";
    await until("the message", async () => (await page.textContent(".banner")) === message);
    await go(page, dashboard.address, "plan", "sort=size&compare=false");
    expect((await page.textContent(".banner")).startsWith("sort: got size; must be one of "), "order of rows");
  });

  await check("the trace states how many ranks it draws, if it draws fewer", async () => {
    const note = page.locator(".card.pinned > header .note");
    await go(page, dashboard.address, "trace", "trace_ranks=4");
    same(await note.textContent(), "one rank: the others do the same", "equal ranks");
    await go(page, dashboard.address, "trace", "trace_ranks=4&jitter=0.1");
    same(await note.count(), 0, "notes if ranks differ");
    await go(page, dashboard.address, "trace", "trace_ranks=4&dp=1&zero=0");
    same(await note.count(), 0, "notes of a single rank");
  });

  await check("an axis that the server adds has a control in every view with a model", async () => {
    const other = await open({ reducedMotion: "reduce" });
    await other.route("**/api/about", async (route) => {
      const about = await (await route.fetch()).json();
      const setting = { name: "xp", group: "Parallelism", type: "INT", default: "1", help: "a new axis", choices: [], least: 1 };
      await route.fulfill({ json: { ...about, axes: [...about.axes, "xp"], settings: [...about.settings, setting] } });
    });
    for (const [view, query] of [["memory", "by=model"], ["scaling", ""], ["context", ""], ["plan", "top=10"], ["trace", ""], ["questions", ""]]) {
      await go(other, dashboard.address, view, query);
      const sent = other.waitForRequest((r) => r.method() === "POST" && r.postDataJSON()?.xp === 1);
      await other.locator('[data-field="xp"] input[type="range"]').press("ArrowRight");
      await sent;
      const reason = await other.waitForSelector('[data-field="xp"] .reason'); // no planner has it
      expect((await reason.textContent()).includes("xp"), `${view}: ${await reason.textContent()}`);
      same(await other.locator('details [data-field="xp"]').count(), 0, `${view}: among the experts`);
    }
    await other.context().close();
  });

  await check("labels of an axis are whole", async () => {
    await page.addInitScript(() => {
      window.labels = [];
      const original = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        const wide = this.measureText(text).width;
        const left = { left: 0, start: 0, center: wide / 2, right: wide, end: wide }[this.textAlign];
        if (this.getTransform().b === 0) window.labels.push([text, x - left, x - left + wide, this.canvas.width]);
        return original.call(this, text, x, y, ...rest);
      };
    });
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/scaling`);
    await until("the curves of the cost", () =>
      page.evaluate(() => window.labels.some(([text]) => text.endsWith(" days"))),
    );
    const cut = await page.evaluate(() => window.labels.filter(([, from, to, wide]) => from < 0 || to > wide));
    same(JSON.stringify(cut), "[]", "labels outside the canvas");
  });

  await check("memory bars of pipelines share a scale, in micro-batches", async () => {
    await go(page, dashboard.address, "pipeline");
    await page.waitForSelector(".card:has-text('Interleaved') .gantt");
    const bars = await page.$$eval(".gantt", (charts) =>
      charts.flatMap((c) =>
        [...c.querySelectorAll("[data-held]")].map((b) => [
          Number(b.dataset.held),
          b.getBoundingClientRect().width,
          b.nextElementSibling.textContent,
        ]),
      ),
    );
    same(bars.length, 16, "bars of 4 schedules on 4 GPUs");
    const [[most, widest]] = bars; // GPipe holds all 8 micro-batches
    same(most, 8, "GPipe");
    for (const [held, width, text] of bars) {
      expect(Math.abs(width / widest - held / most) < 0.02, `${held}: ${width} of ${widest}`);
      same(Number(text), held, "printed");
    }
    same(bars.slice(8, 12).map(([held]) => held).join(" "), "5.5 4.5 3.5 2.5", "interleaved");
  });

  await check("chunks of a pipeline do not look like weight gradients", async () => {
    await go(page, dashboard.address, "pipeline", "shown=interleaved,zb-h1");
    const passes = await page.$$eval(".gantt .pass", (all) =>
      all.map((e) => {
        const { fill, fillOpacity } = getComputedStyle(e);
        const marked = e.nextElementSibling?.classList.contains("chunk") ?? false;
        return [e.classList[1], Number(e.dataset.chunk), `${fill} ${fillOpacity}`, marked];
      }),
    );
    const colors = (kind) => new Set(passes.filter(([k]) => k === kind).map(([, , c]) => c));
    for (const kind of ["f-forward", "f-backward", "f-weight"])
      same(colors(kind).size, 1, `colors of ${kind}`);
    expect([...colors("f-backward")][0] !== [...colors("f-weight")][0], "backward and weights");
    for (const [kind, chunk, , marked] of passes) same(marked, chunk > 0, `${kind} of chunk ${chunk}`);
  });

  await check("memory and traffic are complete", async () => {
    await go(page, dashboard.address, "memory", "by=model&model=llama2-7b&tp=2&pp=2&zero=2");
    const words = "plan --model llama2-7b --dp 8 --tp 2 --pp 2 --zero 2 --json";
    const plan = json(tessera, ...words.split(" "));
    const figure = (key) => page.textContent(`[data-figure="${key}"]`);
    for (const [key, value] of [
      ["buffers", plan.memory.buffers],
      ["temporary", plan.memory.temporary],
      ["total", plan.memory.total],
      ["sent", plan.traffic.total],
    ])
      same(await figure(key), bytes(value), key);
    const note = await page.textContent('[data-figure="sent"] + .note');
    for (const axis of ["dp", "tp", "pp"])
      expect(note.includes(`${axis} ${bytes(plan.traffic[axis])}`), `${axis}: ${note}`);
    same(
      await page.locator('[data-field="seq"] .exact').inputValue(),
      "4096 (default)",
      "sequence length",
    );
    // By size: the estimate is in the bar, in the total and in "fits".
    await go(page, dashboard.address, "memory", "zero=1&tp=2");
    const sized = json(tessera, ..."explain zero --params 7B --dp 8 --tp 2 --json".split(" "));
    const stage = sized.stages[1];
    same(await figure("total"), bytes(stage.needed), "total by size");
    same(await figure("temporary"), bytes(stage.assumed.temporary), "temporaries by size");
    const needed = await page.$$eval("[data-needed]", (all) => all.map((e) => e.textContent));
    same(needed[1], `≈ ${bytes(stage.needed)}`, "label of the bar");
    const unknown = await page.textContent('[data-figure="sent"] + .note');
    expect(unknown.includes("tp unknown"), unknown);
  });

  await check("texts use the terms of the field", async () => {
    for (const [view, query, text] of [
      ["scaling", "overhead=0", /Diminishing returns(beyond DP \d+|none up to DP 4096)/],
      ["scaling", "", /Where the curves diverge/],
      ["scaling", "", /Inter-node bandwidth/],
      ["memory", "", /usable on h100: 82\.61 of 85\.52 GB/],
      ["memory", "", /Highlight stage/],
    ]) {
      await go(page, dashboard.address, view, query);
      const shown = await page.textContent("main");
      expect(text.test(shown), `${view}: ${text} is not in: ${shown}`);
    }
  });
  await page.context().close();
}
