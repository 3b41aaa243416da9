// The view of context parallelism: its shapes, their positions, and its numbers, which must equal
// those of the command line.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import { check, expect, json, same, until } from "./harness.mjs";
import { bytes, go } from "./views.mjs";

const figure = (page, name) => page.textContent(`[data-figure="${name}"]`);
const shows = (page, name, text) =>
  until(`${name} ${text}`, async () => (await figure(page, name)) === text).catch(async () =>
    same(await figure(page, name), text, name),
  );
const near = (a, b, by = 1) => Math.abs(a - b) <= by;

// Rows of the table of `tessera explain context`: rank, chunks, keys and work of each step, total.
function explained(tessera, ...words) {
  const text = execFileSync(tessera, ["explain", "context", ...words], { encoding: "utf8" });
  const rows = [...text.matchAll(/^ +(\d+) +(\d+), (\d+) +(.*?) +(\d+)$/gm)].map(
    ([, rank, front, back, steps, total]) => ({
      rank: Number(rank),
      chunks: `${front}, ${back}`,
      steps: steps.split(/ {2,}/).map((s) => s.split(": ")),
      total: Number(total),
    }),
  );
  return { text, rows };
}

// Cells of the grid of ranks × steps, with what is painted.
const cellsOf = (page) =>
  page.$$eval("[data-owner]", (all) =>
    all.map((e) => {
      const box = e.querySelector("rect").getBoundingClientRect();
      return {
        ...Object.fromEntries(Object.entries(e.dataset).map(([k, v]) => [k, Number(v)])),
        texts: [...e.querySelectorAll("text")].map((t) => t.textContent),
        fill: getComputedStyle(e.querySelector("rect")).fill,
        opacity: Number(getComputedStyle(e.querySelector("rect")).fillOpacity),
        x: box.left,
        y: box.top,
        right: box.right,
        bottom: box.bottom,
      };
    }),
  );
// Ranks of the ring, with the center of each circle.
const ringOf = (page) =>
  page.$$eval("[data-ring-rank]", (all) =>
    all.map((e) => {
      const box = e.querySelector("circle.keys").getBoundingClientRect();
      return {
        rank: Number(e.dataset.ringRank),
        owner: Number(e.dataset.keysOf),
        text: e.querySelector("text").textContent,
        fill: getComputedStyle(e.querySelector("circle.keys")).fill,
        x: box.left + box.width / 2,
        y: box.top + box.height / 2,
      };
    }),
  );
const barsOf = (page, order) =>
  page.$$eval(`[data-order="${order}"] [data-row]`, (rows) =>
    rows.map((r) => ({
      widths: [...r.querySelectorAll(".stack i")].map((i) => i.getBoundingClientRect().width),
      scale: r.querySelector(".stack").getBoundingClientRect().width,
      value: Number(r.querySelector("[data-value]").dataset.value),
      text: r.querySelector(".value").textContent,
    })),
  );

export async function checkContext({ tessera, dashboard, open }) {
  const page = await open({ reducedMotion: "reduce" });
  const slider = (name) => page.locator(`[data-field="${name}"] input[type="range"]`);

  await check("context: the grid has the owners of keys and the work of tessera explain context", async () => {
    await go(page, dashboard.address, "context", "step=2");
    const { rows } = explained(tessera, "--model", "llama3-8b", "--cp", "4", "--seq", "32768");
    same(rows.length, 4, "rows of the command");
    const cells = await cellsOf(page);
    same(cells.length, 16, "cells");
    const colors = new Map();
    for (const cell of cells) {
      const [keys, work] = rows[cell.rank].steps[cell.step];
      same(cell.texts.join(), `${keys},work ${work}`, `rank ${cell.rank}, step ${cell.step}`);
      same(cell.work, Number(work), "work");
      // One color for each owner; the columns are steps and the rows are ranks.
      if (!colors.has(cell.owner)) colors.set(cell.owner, cell.fill);
      same(cell.fill, colors.get(cell.owner), `color of the keys of ${cell.owner}`);
      const first = cells.find((c) => c.rank === cell.rank && c.step === 0);
      const top = cells.find((c) => c.rank === 0 && c.step === cell.step);
      expect(near(cell.y, first.y) && near(cell.x, top.x), `cell ${cell.rank}, ${cell.step}`);
      expect(cell.step === 0 || cell.x > cells.find((c) => c.rank === cell.rank && c.step === cell.step - 1).right, "columns overlap");
      expect(cell.rank === 0 || cell.y > cells.find((c) => c.rank === cell.rank - 1 && c.step === cell.step).bottom, "rows overlap");
    }
    same(new Set(colors.values()).size, 4, "colors");
    const shown = await page.$$eval(".key-grid svg text", (all) => all.map((t) => t.textContent));
    for (const { chunks } of rows) expect(shown.includes(chunks), `chunks ${chunks} among ${shown}`);
    // The outline is around the cells of the current step.
    const now = await page.$eval(".key-grid .now", (e) => e.getBoundingClientRect().toJSON());
    for (const c of cells) {
      const inside = c.x >= now.left && c.right <= now.right && c.y >= now.top && c.bottom <= now.bottom;
      same(inside, c.step === 2, `rank ${c.rank}, step ${c.step} is inside the outline`);
    }
  });

  await check("context: keys move around the ring, from rank to rank + 1", async () => {
    const cells = await cellsOf(page);
    const fills = new Map(cells.map((c) => [c.owner, c.fill]));
    for (let step = 2; step <= 3; step++) {
      same(await figure(page, "ring-step"), `step ${step} of 3`, "note");
      const ranks = await ringOf(page);
      same(ranks.map((r) => r.text).join(), [0, 1, 2, 3].map((r) => `of ${(r - step + 4) % 4}`).join(), "texts");
      const [cx, cy] = ["x", "y"].map((k) => ranks.reduce((sum, r) => sum + r[k], 0) / 4);
      // On a circle, clockwise from the top.
      const [top, right, bottom, left] = ranks;
      expect(near(top.x, cx) && near(bottom.x, cx) && near(right.y, cy) && near(left.y, cy), "a cross");
      expect(top.y < cy && bottom.y > cy && left.x < cx && right.x > cx, "clockwise from the top");
      expect(near(cy - top.y, right.x - cx) && near(bottom.y - cy, cx - left.x), "one radius");
      for (const r of ranks) same(r.fill, fills.get(r.owner), `color of rank ${r.rank}`);
      // Arrows begin at one rank and end at the next one.
      const arrows = await page.$$eval(".ring g.sends line", (all) =>
        all.map((e) => [e.x1, e.y1, e.x2, e.y2].map((v) => v.baseVal.value)),
      );
      same(arrows.length, 4, "arrows");
      const [x1, y1, x2, y2] = arrows[0];
      expect(x2 > x1 && y2 > y1, `from the top to the right: ${arrows[0]}`);
      if (step === 2) {
        await page.locator(".player button", { hasText: "▸" }).click();
        await until("step 3", () => page.url().includes("step=3"));
      }
    }
    await page.locator('.player input[type="range"]').focus();
    await page.keyboard.press("Home");
    await until("the start", async () => (await figure(page, "ring-step")) === "step 0 of 3");
    same((await ringOf(page)).map((r) => r.text).join(), "own,own,own,own", "start");
    same(await page.locator(".ring g.sends").count(), 0, "arrows of messages at the start");
    // Plays to the end by itself.
    await page.locator(".player button", { hasText: "Play" }).click();
    await until("the end", async () => (await figure(page, "ring-step")) === "step 3 of 3");
  });

  await check("context: bars compare the causal work in order and in zig-zag", async () => {
    await go(page, dashboard.address, "context");
    const { text, rows } = explained(tessera, "--model", "llama3-8b", "--cp", "4", "--seq", "32768");
    const [, longest] = /the last rank would have (\d+)/.exec(text.replace(/\s+/g, " "));
    const zigzag = await barsOf(page, "zigzag");
    const inOrder = await barsOf(page, "in_order");
    same(zigzag.map((b) => b.value).join(), rows.map((r) => r.total).join(), "zig-zag");
    same(inOrder.at(-1).value, Number(longest), "the last rank in order");
    const all = (bars) => bars.reduce((sum, b) => sum + b.value, 0);
    same(all(inOrder), all(zigzag), "work of all ranks");
    for (const [bars, most] of [[zigzag, 8], [inOrder, 14]])
      for (const b of bars) {
        same(b.text, String(b.value), "text");
        expect(near(b.widths[0] / b.scale, b.value / Number(longest), 0.01), `${b.value}: ${b.widths[0]} of ${b.scale}`);
        expect(near((b.widths[0] + b.widths[1]) / b.scale, most / Number(longest), 0.01), "with waiting");
      }
    const [, times] = /([\d.]+) times as long/.exec(text);
    same(await figure(page, "slowdown"), `${times}×`, "without zig-zag");
  });

  await check("context: in order, ranks without earlier keys are idle", async () => {
    await page.locator('[data-field="order"] label', { hasText: "in order" }).click();
    await until("idle cells", async () => (await page.locator(".key-grid .idle").count()) === 6);
    for (const c of await cellsOf(page)) {
      same(c.work, c.step === 0 ? 2 : c.owner < c.rank ? 4 : 0, `rank ${c.rank}, step ${c.step}`);
      same(c.opacity < 0.5, c.work === 0, "faded");
      same(c.texts[1], c.work === 0 ? "idle" : `work ${c.work}`, "text");
    }
    expect(page.url().includes("order=in_order"), page.url());
  });

  await check("context: bytes and memory are those of the commands, for any cp, length and kind", async () => {
    await go(page, dashboard.address, "context");
    await slider("cp").focus();
    for (let i = 0; i < 4; i++) await page.keyboard.press("ArrowRight"); // 5, 6, 7, 8
    await slider("seq").focus();
    await page.keyboard.press("ArrowRight");
    const run = "--model llama3-8b --dp 2 --cp 8 --seq 65536 --zero 3 --layout bf16 --hardware h100";
    for (const kind of ["ring", "ulysses"]) {
      await page.locator('[data-field="cp_kind"] label', { hasText: kind }).click();
      const words = [...run.split(" "), "--cp-kind", kind];
      const plan = json(tessera, "plan", ...words, "--json");
      await shows(page, "sent-per-step", bytes(plan.traffic.cp));
      await shows(page, "memory", bytes(plan.memory.total));
      same(await page.textContent(`[data-memory="${kind}"]`), bytes(plan.memory.total), kind);
      const [value] = /^\S+/.exec(await figure(page, "waiting"));
      const exposed = plan.time.comm_exposed_by_axis.cp * 1000;
      expect(near(Number(value), exposed, 0.01 + exposed / 100), `waiting ${value} ms, expected ${exposed}`);
      const { text } = explained(tessera, ...words);
      const part = text.slice(text.indexOf(`\n${kind}: `));
      const [, f, fu, b, bu] = /forward ([\d.]+) (\wB), backward ([\d.]+) (\wB)/.exec(part);
      const scale = { kB: 1e3, MB: 1e6, GB: 1e9 };
      const total = f * scale[fu] + b * scale[bu];
      const shown = await page.textContent(`[data-sent-kind="${kind}"]`);
      const [size, unit] = shown.split(" ");
      expect(near(size * scale[unit], total, total / 100), `${kind} sends ${shown}, expected ${total}`);
      const [formula] = /B·T·.*? = [\d. ·]+ B/.exec(part);
      expect((await page.textContent(`[data-formula="${kind}"]`)).includes(formula), formula);
    }
    const whole = json(tessera, "plan", ...run.replace("--cp 8 ", "").split(" "), "--json");
    same(await page.textContent('[data-memory="cp 1"]'), bytes(whole.memory.total), "cp 1");
    same(await page.locator('[data-row="cp 1"].bad').count(), 1, "cp 1 does not fit");
    for (const part of ["cp=8", "seq=65536", "cp_kind=ulysses"])
      expect(page.url().includes(part), `${part} in ${page.url()}`);
    // The command of the view is the one whose numbers are shown.
    const command = await page.locator(".head [data-copies^=tessera]").getAttribute("data-copies");
    const printed = execFileSync(tessera, command.split(" ").slice(1), { encoding: "utf8" });
    expect(printed.includes("cut into 16 chunks of 4,096"), printed);
    await shows(page, "tokens", "8,192");
    await page.reload();
    await page.waitForSelector("[data-owner]");
    same(await page.locator("[data-plan]").count(), 0, "notes of an opened plan");
    await shows(page, "tokens", "8,192");
  });

  await check("context: ulysses gives a rank all tokens of its heads", async () => {
    const held = (id) =>
      page.$$eval(`[data-square="${id}"] [data-held-by]`, (all) =>
        all.map((e) => {
          const box = e.querySelector("rect").getBoundingClientRect();
          return [Number(e.dataset.heldBy), Math.round(box.left), Math.round(box.top), getComputedStyle(e.querySelector("rect")).fill];
        }),
      );
    const distinct = (cells, at) => new Set(cells.map((c) => c[at])).size;
    for (const [id, across, along] of [["tokens", 1, 2], ["heads", 2, 1]]) {
      const cells = await held(id);
      same(cells.length, 64, "cells");
      for (let rank = 0; rank < 8; rank++) {
        const own = cells.filter(([by]) => by === rank);
        same(`${distinct(own, across)} ${distinct(own, along)} ${distinct(own, 3)}`, "1 8 1", `${id} of rank ${rank}`);
      }
    }
    const text = await page.textContent('[data-square="heads"]');
    expect(text.includes("all tokens of 4 heads"), text); // 32 heads over 8 ranks
  });

  await check("context: what is not possible is explained", async () => {
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/context?cp=3&cp_kind=ulysses`);
    const reason = await page.waitForSelector('[data-field="cp_kind"] .reason');
    expect((await reason.textContent()).includes("must divide the 32 heads"), await reason.textContent());
    await page.locator('[data-field="cp_kind"] label', { hasText: "auto" }).click();
    await page.waitForSelector("[data-owner]");
    same(await page.textContent('[data-sent-kind="ulysses"]'), "–", "ulysses");
    expect((await page.textContent('[data-formula="ulysses"]')).includes("must divide the 32 heads"), "why");
    same(await page.locator("[data-square]").count(), 0, "drawing of ulysses");
    await page.goto("about:blank");
    await page.goto(`${dashboard.address}/#/context?cp=65`);
    const limit = await page.waitForSelector('[data-field="cp"] .reason');
    expect((await limit.textContent()).includes("at most 64 on this page"), await limit.textContent());
    for (const cp of [1, 64]) {
      await go(page, dashboard.address, "context", `cp=${cp}&step=99`);
      same(await page.locator("[data-owner]").count(), cp * cp, `cells at cp ${cp}`);
      same(await figure(page, "ring-step"), `step ${cp - 1} of ${cp - 1}`, "a step beyond the end");
      same(await page.locator("[role=alert]").count(), 0, "messages");
    }
  });

  await check("context: a plan is opened as one value of the URL, and its changes are kept", async () => {
    const plan = "model:llama2-13b;dp:2;cp:2;tp:2;zero:1;seq:16384;grad_accum:4;hardware:h200;layout:bf16";
    await go(page, dashboard.address, "context", `plan=${plan}`);
    const words = "plan --model llama2-13b --dp 2 --cp 2 --tp 2 --zero 1 --seq 16384 --grad-accum 4 --hardware h200 --layout bf16 --json";
    const expected = json(tessera, ...words.split(" "));
    await shows(page, "memory", bytes(expected.memory.total));
    await shows(page, "sent-per-step", bytes(expected.traffic.cp));
    same(await page.textContent('[data-setting="grad_accum"]'), "grad accum 4 ×", "setting without a control");
    await slider("cp").focus();
    await page.keyboard.press("ArrowRight"); // 3
    await page.keyboard.press("ArrowRight"); // 4
    await until("cp 4", () => page.url().includes("cp=4"));
    await page.locator("[data-plan] .button", { hasText: "Memory" }).click();
    await page.waitForSelector('[data-total="1"]');
    expect(page.url().includes("cp:4"), page.url());
    const four = json(tessera, ...words.replace("--cp 2", "--cp 4").split(" "));
    await shows(page, "total", bytes(four.memory.total));
    await page.locator("[data-plan] .button", { hasText: "Context" }).click();
    await page.waitForSelector("[data-owner]");
    same(await page.locator("[data-owner]").count(), 16, "cells");
  });

  await check("context: saved values are those that are drawn", async () => {
    await go(page, dashboard.address, "context", "cp=3");
    const card = page.locator(".card", { has: page.getByRole("heading", { name: "Ring: keys and values of each rank" }) });
    const save = async (kind) => {
      await card.locator(".save > summary").click();
      const [file] = await Promise.all([page.waitForEvent("download"), card.locator(`[data-save="${kind}"]`).click()]);
      return fs.readFileSync(await file.path(), "utf8");
    };
    const lines = (await save("csv")).trim().split("\n");
    same(lines[0], "rank,chunks,step 0: keys of,step 0: work,step 1: keys of,step 1: work,step 2: keys of,step 2: work", "heads");
    same(lines.slice(1).join("|"), "0,0 5,0,2,2,2,1,2|1,1 4,1,2,0,2,2,2|2,2 3,2,2,1,2,0,2", "rows");
    const svg = await save("svg");
    expect(!/NaN|undefined|oklab|color-mix/.test(svg), "values of the picture");
    same([...svg.matchAll(/>own</g)].length, 6, "own keys in the ring and in the grid");
  });
  await page.context().close();
}
