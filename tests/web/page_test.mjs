// Drives every view of `tessera dashboard` in a real browser.
//   node page_test.mjs --tessera PROGRAM --web DIR [--torch] [--pictures DIR]
// --web: the folder with the built page; --torch: tessera-torch is there, so runs can be real;
// --pictures: write a picture of every view there, for docs/.
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import {
  check,
  Dashboard,
  expect,
  failed,
  findBrowser,
  folder,
  here,
  notes,
  skip,
} from "./harness.mjs";
import { checkSources } from "./sources.mjs";

const { values: options } = parseArgs({
  options: {
    tessera: { type: "string" },
    web: { type: "string" },
    pictures: { type: "string" },
    torch: { type: "boolean" },
  },
});
if (!fs.existsSync(path.join(here, "node_modules/playwright-core")))
  skip("playwright-core is not installed: scripts/browser.sh installs it");
const browser = findBrowser();
if (!browser) skip("there is no Chromium: scripts/browser.sh installs it (Debian: chromium)");
const index = path.join(options.web, "index.html");
if (!fs.existsSync(index) || !fs.readFileSync(index, "utf8").includes("page.js"))
  skip("the page was not built: scripts/web.sh says why");

const { chromium } = await import("playwright-core");
const { checkLive } = await import("./live.mjs");
const { checkViews } = await import("./views.mjs");
const { takePictures } = await import("./pictures.mjs");

await checkSources(options.web);

const runs = folder();
const dashboard = new Dashboard(options.tessera, ["--runs", runs]);
await dashboard.start();
const chrome = await chromium.launch({
  executablePath: browser,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
  ],
});
const problems = [];
async function open(settings = {}) {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 800 }, ...settings });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]).catch(() => undefined);
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  // Refusals are meant: the browser logs each 4xx of its own accord.
  page.on("console", (m) => {
    if (
      m.type() === "error" &&
      !/status of 4\d\d|status of 503|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY/.test(m.text())
    )
      problems.push(`console: ${m.text()}`);
  });
  page.on("pageerror", (e) => problems.push(`error: ${e.message}`));
  page.on("request", (r) => {
    if (!r.url().startsWith(dashboard.address) && !r.url().startsWith("blob:"))
      problems.push(`asks ${r.url()}`);
  });
  return page;
}

const world = { ...options, dashboard, open, runs };
await checkViews(world);
await checkLive(world);
await check("no errors in the console, and nobody else was asked", () =>
  expect(problems.length === 0, problems.join("\n")),
);
if (options.pictures) await takePictures(world);

await chrome.close();
await dashboard.stop();
console.log(notes.map((n) => `note ${n}`).join("\n"));
if (!options.torch)
  console.log(
    "note without tessera-torch: runs were written by hand, gradient synchronisation was not looked at",
  );
process.exit(failed() ? 1 : 0);
