// Where a GPU's state is, and how it is drawn: offload, formats of moments, shards of context-parallel
// ranks, labels of bars; and what the views say while they compute.
import { check, expect, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const shows = (page, name, text) =>
  until(`${name} ${text}`, async () => (await figure(page, name).catch(() => "")) === text);
const segment = (page, field, value) =>
  page.locator(`[data-field="${field}"] label`, { has: page.locator(`input[value="${value}"]`) });

export async function checkState({ tessera, dashboard, open }) {
  const page = await open({ reducedMotion: "reduce" });

  await check("optimizer state in files and moments of 8 bits have the numbers of tessera plan", async () => {
    await go(page, dashboard.address, "memory", "by=model&model=llama3-8b&dp=4&zero=2");
    same(await page.locator('[data-figure="on-disk"]').count(), 0, "figures of files without offload");
    for (const [field, value, flags] of [
      ["offload", "optimizer", ["--offload", "optimizer"]],
      ["optimizer_state", "int8", ["--offload", "optimizer", "--optimizer-state", "int8"]],
    ]) {
      await segment(page, field, value).click();
      const { memory } = json(tessera, ..."plan --model llama3-8b --dp 4 --zero 2 --json".split(" "), ...flags);
      await shows(page, "on-disk", bytes(memory.on_disk));
      await shows(page, "total", bytes(memory.total));
      const command = await page.textContent("[data-command]");
      expect(flags.every((flag) => command.includes(flag)), command);
      const formula = await page.textContent(".formula li.on");
      const [, state] = /\(2 \+ 2\/4\) B = ([\d.]+) GB$/.exec(formula) ?? [];
      expect(Math.abs((state * 1e9) / (memory.params + memory.grads) - 1) < 0.005, formula);
      expect((await page.textContent(`[data-field="offload"] .hint`)).includes("on CPUs"), "the hint");
    }
  });

  await check("moments of a layout by bytes are refused beside their control", async () => {
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/memory?layout=2,2,12&optimizer_state=int8`);
    const reason = await page.waitForSelector('[data-field="optimizer_state"] .reason');
    expect((await reason.textContent()).includes("2,2,12"), await reason.textContent());
  });

  await check("offload of an opened plan has a control, and goes on to other views", async () => {
    await go(page, dashboard.address, "memory", "plan=model:llama3-8b;dp:8;zero:1;offload:optimizer");
    expect(await segment(page, "offload", "optimizer").locator("input").isChecked(), "the control");
    same(await page.locator("[data-setting=offload]").count(), 0, "settings without a control");
    await segment(page, "optimizer_state", "bf16").click();
    const trace = page.locator("[data-plan] a", { hasText: "Trace" });
    await until("the link", async () => /optimizer_state:bf16/.test(await trace.getAttribute("href")));
    expect((await trace.getAttribute("href")).includes("offload:optimizer"), "offload in the link");
  });

  await check("shards of context-parallel ranks have distinct names in one line", async () => {
    await go(page, dashboard.address, "memory", "by=model&model=llama3-8b&dp=2&cp=2&zero=3");
    await until("four shards", async () => (await page.locator(".strips > div").count()) === 4);
    const rows = await page.$$eval(".strips > div > span", (all) =>
      all.map((e) => [e.textContent.trim(), e.getClientRects().length, e.getBoundingClientRect().height]),
    );
    same(rows.map(([name]) => name).join(), "dp 0 cp 0,dp 0 cp 1,dp 1 cp 0,dp 1 cp 1", "names");
    for (const [name, , height] of rows) expect(height < 24, `${name} is ${height} pixels high`);
    same(await page.locator('[data-figure="expert-shards"]').count(), 0, "notes without experts");
    await go(page, dashboard.address, "memory", "by=model&model=mixtral-8x7b&dp=8&ep=4&zero=3");
    await page.waitForSelector('[data-figure="expert-shards"]');
  });

  await check("the dashed line of a GPU's memory crosses no total of a bar", async () => {
    for (const query of ["model=mixtral-8x7b&dp=8&cp=2&ep=4", "model=llama2-7b&dp=8", "model=llama2-13b&dp=8", "model=llama2-13b&dp=16"]) {
      await go(page, dashboard.address, "memory", `by=model&${query}`);
      const crossed = await page.evaluate(() => {
        const at = document.querySelector(".bars .limit").getBoundingClientRect().top;
        return [...document.querySelectorAll(".bars [data-total]")]
          .filter((e) => {
            const { top, height } = e.getBoundingClientRect();
            return at > top + 0.2 * height && at < top + 0.8 * height; // the box is taller than the text
          })
          .map((e) => e.textContent);
      });
      same(crossed.join(), "", `${query}: totals that are crossed`);
    }
  });

  await check("the legend of a timeline has the communication that is drawn", async () => {
    const axes = async () =>
      (await page.locator(".legend li", { hasText: "communication" }).allTextContents()).map((t) => t.split(" ")[0]).join();
    await go(page, dashboard.address, "trace", "model=mixtral-8x7b&dp=8&ep=4&pp=2&cp=2");
    same(await axes(), "dp,pp", "axes of a mixture of experts");
    same((await figure(page, "in-passes")).trim(), "Communication of ep, cp is a part of the passes.", "the others");
    await go(page, dashboard.address, "trace", "dp=8");
    same(await axes(), "dp", "axes of data parallelism");
    same(await page.locator('[data-figure="in-passes"]').count(), 0, "notes");
  });

  await check("the plan view says that it searches", async () => {
    const held = [];
    await page.route(/api\/(search|compare)/, (route) => held.push(route));
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/plan?gpus=8&global_batch=64`);
    await until("both texts", async () =>
      (await page.locator("[role=status].empty-note").allTextContents()).join().trim() === "Searching…,Comparing…",
    );
    for (const route of held) await route.continue();
    await page.unroute(/api\/(search|compare)/);
    await page.waitForSelector("[data-plans] tbody tr");
    await page.waitForSelector(".ways .stack");
    same(await page.locator(".empty-note").count(), 0, "texts afterwards");
  });
  await page.context().close();
}
