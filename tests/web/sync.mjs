// Gradient synchronization: a real step, on one clock, with the bucket size of the slider.
import { check, expect, same } from "./harness.mjs";
import { go } from "./views.mjs";

const TITLES = {
  "per-parameter": "One all-reduce per parameter",
  bucketed: "Buckets, all-reduced after backward",
  overlapped: "Buckets, all-reduced during backward",
  "zero-2": "ZeRO-2: reduce-scatter, then gather",
  "zero-3": "ZeRO-3: gather, reduce-scatter",
};

// Runs `act` and returns the response that it leads to, once it is drawn.
async function answerOf(page, act) {
  const response = page.waitForResponse((r) => r.url().endsWith("/api/sync"), { timeout: 90000 });
  await act();
  const answer = await (await response).json();
  const shown = page.locator('[data-figure="comparison"]', { hasText: answer.comparison });
  await shown.waitFor();
  await page.evaluate(() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))));
  return { ...answer, way: (name) => answer.ways.find((w) => w.name === name) };
}

const cardOf = (page, name) =>
  page.locator(".card", { has: page.getByRole("heading", { name: TITLES[name], exact: true }) });

// Returns the rectangles of a color on the canvas: for each lane, its [begin, end) in pixels.
const drawn = (page, name, color) =>
  cardOf(page, name)
    .locator("canvas")
    .evaluate((canvas, color) => {
      const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${color}`).trim();
      const wanted = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      const { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      const matches = (x, y) => wanted.every((v, i) => data[(y * width + x) * 4 + i] === v);
      const rows = [];
      let inside = false;
      for (let y = 0; y < height; y++) {
        const runs = [];
        let begin = -1;
        for (let x = 0; x <= width; x++) {
          const on = x < width && matches(x, y);
          if (on && begin < 0) begin = x;
          if (!on && begin >= 0) (runs.push([begin, x]), (begin = -1));
        }
        if (runs.length > 0 && !inside) rows.push(runs); // the top of the lane, above its labels
        inside = runs.length > 0;
      }
      return { rows, width };
    }, color);

// Compares the lanes of a way with its spans. Returns the number of collectives found.
async function checkLanes(page, answer, name) {
  const end = Math.max(...answer.ways.flatMap((w) => w.spans.map((s) => s.end)));
  // A rank begins with forward at time 0, the left edge. All ways share the scale.
  const { rows: forward, width } = await drawn(page, "overlapped", "forward");
  const left = Math.min(...forward.flat().map(([x]) => x));
  const at = (t) => left + (t / end) * (width - left);
  const { rows } = await drawn(page, name, "dp");
  same(rows.length, answer.ranks, `number of communication lanes of ${name}`);
  let found = 0;
  for (const [rank, runs] of rows.entries()) {
    const spans = answer.way(name).spans.filter((s) => s.rank === rank && s.lane === "comm");
    const near = (s, [x0, x1]) => Math.abs(at(s.begin) - x0) < 2.5 && Math.abs(at(s.end) - x1) < 2.5;
    for (const s of spans.filter((s) => at(s.end) - at(s.begin) > 3)) {
      expect(
        runs.some((run) => near(s, run)),
        `${name}, rank ${rank}: ${s.what} must be at ${at(s.begin)} to ${at(s.end)}, drawn are ${JSON.stringify(runs)}`,
      );
      found++;
    }
    for (const [x0, x1] of runs)
      expect(
        spans.some((s) => at(s.begin) - 2.5 < x0 && x1 < at(s.end) + 2.5),
        `${name}, rank ${rank}: nothing communicates at ${x0} to ${x1}`,
      );
  }
  return found;
}

export async function checkSync({ dashboard, open, torch }) {
  if (!torch) return;
  const page = await open();

  await check("sync: lanes of all ranks have one clock, and the times are those of the lanes", async () => {
    const first = await answerOf(page, () => go(page, dashboard.address, "sync"));
    expect(first.buckets.length >= 3, `the defaults have ${first.buckets.length} buckets`);
    for (const name of Object.keys(TITLES)) {
      const { seconds, spans } = first.way(name);
      const last = Math.max(...spans.map((s) => s.end));
      expect(Math.abs(last - seconds) < 1e-9, `${name}: ${seconds} s, but its lanes end at ${last} s`);
      const text = await page.textContent(`[data-figure="way-${name}"]`);
      const [value, unit] = text.split(" ");
      const shown = Number(value) * { s: 1, ms: 1e-3, µs: 1e-6 }[unit];
      expect(Math.abs(shown / seconds - 1) < 0.01, `${name}: ${text} for ${seconds} s`);
      const calls = spans.filter((s) => s.lane === "comm");
      for (const what of new Set(calls.map((s) => s.what))) {
        const all = calls.filter((s) => s.what === what);
        const begin = Math.max(...all.map((s) => s.begin));
        const end = Math.min(...all.map((s) => s.end));
        expect(begin <= end, `${what} of ${name} ends on a rank before it begins on another`);
      }
    }
    // At the defaults buckets are reduced while backward continues, and only with overlap.
    for (const name of ["bucketed", "overlapped"])
      for (let rank = 0; rank < first.ranks; rank++) {
        const own = first.way(name).spans.filter((s) => s.rank === rank);
        const ends = Math.max(...own.filter((s) => s.what === "backward").map((s) => s.end));
        const early = own.filter((s) => s.lane === "comm" && s.begin < ends).length;
        expect(early > 0 === (name === "overlapped"), `${name}, rank ${rank}: ${early} collectives begin before backward ends at ${ends}`);
      }
    let found = 0;
    for (const name of Object.keys(TITLES)) found += await checkLanes(page, first, name);
    expect(found > 0, "no collective is wide enough to check");
  });

  await check("sync: the slider's bucket size changes the lanes and the table", async () => {
    const slider = page.getByRole("slider", { name: "Bucket size", exact: true });
    const one = await answerOf(page, () => slider.press("End"));
    same(one.buckets.length, 1, "number of buckets of 16 MB");
    expect((await checkLanes(page, one, "bucketed")) > 0, "no collective is wide enough to check");
    const { rows } = await drawn(page, "overlapped", "dp");
    for (const runs of rows) same(runs.length, 1, "collectives drawn for one bucket");
    same(await page.getByRole("region", { name: "Buckets", exact: true }).locator("tbody tr").count(), 1, "rows of the table");
  });

  await check("sync: the texts name the collectives of each method and compare the times", async () => {
    const small = await answerOf(page, () => go(page, dashboard.address, "sync", "layers=4&bucket_size=10000&width=256"));
    const sent = (name) => page.textContent(`[data-figure="sent-${name}"]`);
    // The bias is smaller than 10 kB, so a bucket has a layer.
    expect((await sent("per-parameter")).startsWith("8 × all-reduce · "), await sent("per-parameter"));
    expect((await sent("overlapped")).startsWith("4 × all-reduce · 1.05 MB sent"), await sent("overlapped"));
    expect((await sent("zero-2")).startsWith("4 × reduce-scatter · 4 × all-gather · 1.05 MB"), await sent("zero-2"));
    const third = await sent("zero-3");
    expect(third.includes("8 × all-gather") && third.includes("4 × reduce-scatter") && third.includes("1.58 MB"), third);
    const plain = small.way("per-parameter").seconds;
    const best = Math.min(small.way("bucketed").seconds, small.way("overlapped").seconds);
    const text = await page.textContent('[data-figure="comparison"]');
    const begins = plain < best ? "One all-reduce per parameter was faster" : "Buckets reduced ";
    expect(text.startsWith(begins) && / instead of /.test(text), text);
  });
  await page.context().close();
}
