// Pictures of every view for docs/: small files in the light theme, one in the dark theme.
import fs from "node:fs";
import path from "node:path";
import { check, expect, until } from "./harness.mjs";
import { idOf, SLOWED, writeSlowRun } from "./live.mjs";
import { go } from "./views.mjs";

const SHOTS = [
  ["memory", "memory", "by=model&model=llama2-7b&zero=2", "light"],
  ["memory-dark", "memory", "", "dark"],
  ["scaling", "scaling", "", "light"],
  ["collectives", "collectives", "step=5", "light"],
  ["pipeline", "pipeline", "shown=1f1b,interleaved,zb-h1", "light"],
  ["context", "context", "cp=8&step=2", "light"],
  ["plan", "plan", "", "light"],
  ["live", "live", "", "light"],
  ["experts", "live", "layer=blocks.0.experts", "light"],
  ["sync", "sync", "", "light"],
  ["trace", "trace", "pp=4&dp=8&grad_accum=8&trace_ranks=4&zero=1&micro_batch=4", "light"],
];

const WIDTH = 1280;

export async function takePictures({ pictures, dashboard, open, torch, runs }) {
  fs.mkdirSync(pictures, { recursive: true });
  // With tessera-torch, an earlier test has left a real run.
  if (!torch) writeSlowRun(path.join(runs, `${SLOWED}.jsonl`));
  const slowed = await until("the run with a slow rank", () => idOf(dashboard, SLOWED));
  const mixed = await idOf(dashboard, torch ? "experts-real" : "experts-written"); // of the suite experts
  for (const [name, view, query, colorScheme] of SHOTS) {
    if (view === "sync" && !torch) continue; // this view needs a real step
    if (name === "experts" && !mixed) continue;
    const run = name === "experts" ? mixed : slowed;
    await check(`picture of ${name}`, async () => {
      const page = await open({
        viewport: { width: WIDTH, height: 800 },
        colorScheme,
        reducedMotion: "reduce",
      });
      await go(page, dashboard.address, view, view === "live" ? `runs=${run}${query && `&${query}`}` : query);
      if (view === "sync") await page.waitForSelector(".values .same", { timeout: 90000 });
      if (view === "live") await page.waitForSelector(".u-over");
      // The last card to show, if it is below the visible area.
      const last = { live: "Phases of each rank", experts: "Tokens of each expert", sync: "ZeRO-2: reduce-scatter, then gather" }[name];
      const card = page.locator(".card", { has: page.getByRole("heading", { name: last ?? "" }) });
      if (last) {
        const end = await card.evaluate((e) => e.getBoundingClientRect().bottom + scrollY);
        await page.setViewportSize({ width: WIDTH, height: Math.ceil(end) + 8 });
      }
      await page.evaluate(() => new Promise((r) => setTimeout(r, 400))); // wait for the charts to resize
      await page.evaluate(() => document.fonts.ready);
      const file = path.join(pictures, `${name}.webp`);
      const clip = name === "experts" && { ...(await card.boundingBox()), scale: 1 }; // one card
      const session = await page.context().newCDPSession(page);
      const shot = await session.send("Page.captureScreenshot", { format: "webp", quality: 90, ...(clip && { clip }) });
      fs.writeFileSync(file, Buffer.from(shot.data, "base64"));
      await page.context().close();
      expect(fs.statSync(file).size <= 150_000, `${file} has ${fs.statSync(file).size} bytes; the limit is 150000`);
    });
  }
}
