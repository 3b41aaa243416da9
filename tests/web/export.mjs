// Saved pictures and tables, and printing: what files and the printed page contain.
import fs from "node:fs";
import { check, expect, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

const card = (page, title) =>
  page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });

async function saved(page, title, kind) {
  const box = card(page, title);
  await box.locator(".save > summary").click();
  const [file] = await Promise.all([
    page.waitForEvent("download"),
    box.locator(`[data-save="${kind}"]`).click(),
  ]);
  return { name: file.suggestedFilename(), content: fs.readFileSync(await file.path()) };
}

// Returns the elements of an SVG with their attributes as numbers where they are.
const parsed = (page, svg) =>
  page.evaluate((text) => {
    const root = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    return [...root.children].map((e) => ({
      tag: e.tagName,
      text: e.textContent,
      ...Object.fromEntries(
        [...e.attributes].map((a) => [a.name, isNaN(a.value) ? a.value : Number(a.value)]),
      ),
    }));
  }, svg.toString());

export async function checkExport({ tessera, dashboard, open }) {
  const page = await open({ colorScheme: "dark", reducedMotion: "reduce" });

  await check("a saved picture has the shapes, texts and colors of the card", async () => {
    await go(page, dashboard.address, "memory", "by=model&model=gpt2-xl&dp=16");
    const { name, content } = await saved(page, "Memory of one GPU", "svg");
    same(name, "tessera-memory-Memory-of-one-GPU-by-model-model-gpt2-xl-dp-16.svg", "file name");
    expect(!/NaN|undefined/.test(content), "a coordinate is not a number");
    const shapes = await parsed(page, content);
    const drawn = await page.$$eval(".bars", ([e]) => {
      const from = e.closest(".card").getBoundingClientRect();
      return [...e.querySelectorAll(".column > rect:not(.hit)")].map((r) => {
        const { left, top, width, height } = r.getBoundingClientRect();
        return [left - from.left, top - from.top, width, height, getComputedStyle(r).fill];
      });
    });
    const boxes = shapes.filter((s) => s.tag === "rect");
    const near = (a, b) => Math.abs(a - b) < 0.6;
    for (const [x, y, w, h, fill] of drawn)
      expect(
        boxes.some((b) => near(b.x, x) && near(b.y, y) && near(b.width, w) && near(b.height, h) && b.fill === fill),
        `no box at ${x}, ${y} of ${w}×${h} in ${fill}`,
      );
    const plan = json(tessera, ..."plan --model gpt2-xl --dp 16 --zero 3 --json".split(" "));
    const texts = shapes.filter((s) => s.tag === "text").map((s) => s.text);
    for (const text of ["Memory of one GPU", "ZeRO-3", bytes(plan.memory.total), "parameters"])
      expect(texts.includes(text), `"${text}" is not among ${texts.join(" | ")}`);
    expect(!texts.includes("Save"), "the menu is in the picture");
  });

  await check("a PNG has the pixels of the card at twice its size", async () => {
    const { content } = await saved(page, "Memory of one GPU", "png");
    const [size, pixel, fill, expected] = await page.evaluate(async (data) => {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
      const canvas = new OffscreenCanvas(image.width, image.height);
      const ctx = canvas.getContext("2d");
      ctx.drawImage(image, 0, 0);
      const bar = document.querySelector(".column rect.f-optimizer");
      const from = bar.closest(".card").getBoundingClientRect();
      const box = bar.getBoundingClientRect();
      const at = [box.left + box.width / 2 - from.left, box.top + box.height / 2 - from.top];
      const [r, g, b] = ctx.getImageData(2 * at[0], 2 * at[1], 1, 1).data;
      const exact = [2 * from.width, 2 * from.height].map(Math.ceil);
      return [[image.width, image.height], `rgb(${r}, ${g}, ${b})`, getComputedStyle(bar).fill, exact];
    }, content.toString("base64"));
    same(size.join("×"), expected.join("×"), "pixels");
    same(pixel, fill, "color of a bar");
  });

  await check("a saved chart has its curves, and its table their values", async () => {
    await go(page, dashboard.address, "scaling");
    const words = "simulate --model llama2-7b --hardware h200 --sweep dp=1..4096 --law-cost 0.05 --json";
    const rows = json(tessera, ...words.split(" ")).rows ?? json(tessera, ...words.split(" "));
    const csv = (await saved(page, "Throughput", "csv")).content.toString().trim().split("\n");
    same(csv[0], "data parallel,ideal,simple law,simulated", "heads");
    same(csv.length, 14, "lines");
    const { name, content } = await saved(page, "Throughput", "json");
    same(name, "tessera-scaling-Throughput.json", "file name");
    const { view, tables } = JSON.parse(content);
    same(view, "scaling", "view");
    tables[0].rows.forEach((row, i) => {
      same(row["data parallel"], 2 ** i, `row ${i}`);
      if (Array.isArray(rows)) same(row.simulated, rows[i].tokens_per_s, `tokens/s at dp ${2 ** i}`);
    });
    const shapes = await parsed(page, (await saved(page, "Throughput", "svg")).content);
    const curves = shapes.filter((s) => s.tag === "polyline" && String(s.points).split(" ").length === 13);
    same(curves.length, 3, "curves");
    // Points are equally far apart on the logarithmic axis, and the simulated curve rises.
    const points = curves.at(-1).points.split(" ").map((p) => p.split(",").map(Number));
    points.slice(1).forEach(([x, y], i) => {
      expect(Math.abs(x - points[i][0] - (points[1][0] - points[0][0])) < 1, `step ${i} of x`);
      expect(y < points[i][1], `point ${i + 1} is not above the one before`);
    });
    const texts = shapes.map((s) => s.text);
    for (const text of ["4096", "data parallel", "DP 8"]) expect(texts.includes(text), text);
  });

  await check("a saved timeline and a saved bar chart are complete", async () => {
    await go(page, dashboard.address, "trace");
    const shapes = await parsed(page, (await saved(page, "Timeline", "svg")).content);
    const texts = shapes.map((s) => s.text.trim());
    expect(texts.some((t) => t.startsWith("rank 0")), texts.join(" | "));
    const boxes = shapes.filter((s) => s.tag === "rect" && s.height === 16);
    expect(boxes.length > 50, `${boxes.length} spans`);
    const svg = shapes.find((s) => s.tag === "rect");
    for (const b of boxes) expect(b.x + b.width <= svg.width, `a span ends at ${b.x + b.width}`);
    await go(page, dashboard.address, "collectives");
    const bars = await parsed(page, (await saved(page, "Bytes sent in a training step", "svg")).content);
    expect(bars.some((s) => s.tag === "text" && s.text === "ZeRO-3"), "rows");
    const cells = (await saved(page, "Ring all-reduce", "csv")).content.toString().split("\n");
    same(cells[0], "rank,chunk 0,chunk 1,chunk 2,chunk 3,chunk 4,chunk 5,chunk 6,chunk 7", "heads");
    same(cells.length, 10, "lines of the cells");
  });

  await check("the saved table of plans has the numbers of the command", async () => {
    await go(page, dashboard.address, "plan", "gpus=8&global_batch=64&compare=false");
    const words =
      "plan --search --model llama2-13b --gpus 8 --hardware h100 --global-batch 64 --layout bf16 --top 40 --json";
    const { best } = json(tessera, ...words.split(" "));
    const { name, content } = await saved(page, "Plans", "json");
    same(name, "tessera-plan-Plans-gpus-8-global-batch-64-compare-false.json", "file name");
    const { rows } = JSON.parse(content).tables[0];
    same(rows.length, best.length, "rows");
    best.forEach((p, i) => {
      same(rows[i].memory, p.memory.total, `memory ${i}`);
      same(rows[i]["tokens/s"], p.tokens_per_s, `tokens/s ${i}`);
      same(rows[i].step, p.time.step, `step ${i}`);
      expect(!("select" in rows[i]), "the column of buttons");
    });
    const csv = (await saved(page, "Plans", "csv")).content.toString().split("\n");
    same(csv[0], "parallelism,memory,tokens/s,MFU,step,micro × accum,recompute", "heads");
    expect(csv[1].includes(`,${best[0].memory.total},`), csv[1]);
  });

  await check("a page prints without controls, in light colors, with its charts", async () => {
    for (const [view, drawn] of [["scaling", ".chart"], ["trace", ".lanes"], ["memory", ""]]) {
      await go(page, dashboard.address, view);
      await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
      await page.emulateMedia({ media: "print" });
      const [hidden, ink, paper] = await page.evaluate(() => {
        const visible = [".bar", ".side", ".head .buttons", ".save", "footer"].filter((s) =>
          document.querySelector(s)?.checkVisibility(),
        );
        const style = getComputedStyle(document.querySelector(".stage .card"));
        return [visible, style.color, style.backgroundColor];
      });
      same(hidden.join(), "", `${view}: visible controls`);
      same(`${ink} on ${paper}`, "rgb(29, 33, 39) on rgb(255, 255, 255)", `${view}: colors`);
      if (drawn) {
        const wide = await page.$eval(`${drawn} .printed svg`, (e) => {
          const lines = e.querySelectorAll("polyline, rect").length;
          return [e.getBoundingClientRect().width, lines];
        });
        expect(wide[0] > 300 && wide[1] > 10, `${view}: printed ${wide}`);
      }
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      expect(over <= 0, `${view}: ${over} pixels too wide`);
      await page.emulateMedia({ media: null });
      await page.evaluate(() => dispatchEvent(new Event("afterprint")));
      await until(`${view}: the dark theme again`, () =>
        page.evaluate(() => document.documentElement.dataset.theme === "dark"),
      );
      same(await page.locator(".printed").count(), 0, `${view}: copies`);
    }
  });
  await page.context().close();
}
