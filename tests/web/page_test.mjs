// Drives every view of `tessera dashboard` in a real browser.
//   node page_test.mjs --tessera PROGRAM --web DIR [--torch] [--pictures DIR] [--only NAME,NAME]
// --web: folder with the built page; --torch: tessera-torch is built, so the tests start real runs;
// --pictures: folder for a picture of every view, for docs/; --only: files to run, such as plans.
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
    only: { type: "string" },
  },
});
if (!fs.existsSync(path.join(here, "node_modules/playwright-core")))
  skip("playwright-core is not installed: scripts/browser.sh installs it");
const browser = findBrowser();
if (!browser) skip("Chromium is not installed: scripts/browser.sh installs it (Debian: chromium)");
const index = path.join(options.web, "index.html");
if (!fs.existsSync(index) || !fs.readFileSync(index, "utf8").includes("page.js"))
  skip("the page was not built: run scripts/web.sh to see why");

const { chromium } = await import("playwright-core");
const { checkAccess } = await import("./access.mjs");
const { checkCalculators } = await import("./calculators.mjs");
const { checkContext } = await import("./context.mjs");
const { checkEveryView } = await import("./every_view.mjs");
const { checkExperts } = await import("./experts.mjs");
const { checkExport } = await import("./export.mjs");
const { checkLive } = await import("./live.mjs");
const { checkOverfit } = await import("./overfit.mjs");
const { checkPlans } = await import("./plans.mjs");
const { checkRunViews } = await import("./run_views.mjs");
const { checkSettings } = await import("./settings.mjs");
const { checkViews } = await import("./views.mjs");
const { takePictures } = await import("./pictures.mjs");
const { checkState } = await import("./state.mjs");
const { checkStepMemory } = await import("./step_memory.mjs");
const { checkSync } = await import("./sync.mjs");

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
const servers = new Set([dashboard.address]); // that pages may send requests to
async function open(settings = {}) {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 800 }, ...settings });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]).catch(() => undefined);
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  // The tests provoke 4xx responses, which the browser logs as errors.
  page.on("console", (m) => {
    if (
      m.type() === "error" &&
      !/status of 4\d\d|status of 503|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY/.test(m.text())
    )
      problems.push(`console: ${m.text()}`);
  });
  page.on("pageerror", (e) => problems.push(`error: ${e.message}`));
  page.on("request", (r) => {
    if (![...servers, "blob:"].some((server) => r.url().startsWith(server)))
      problems.push(`request to ${r.url()}`);
  });
  return page;
}

const world = { ...options, dashboard, open, runs, servers };
const suites = {
  sources: () => checkSources(options.web),
  views: checkViews,
  plans: checkPlans,
  settings: checkSettings,
  export: checkExport,
  calculators: checkCalculators,
  context: checkContext,
  live: checkLive,  // before the suites that add runs, because it opens the newest one
  experts: checkExperts,
  access: checkAccess,
  every_view: checkEveryView,
  sync: checkSync,
  run_views: checkRunViews,
  overfit: checkOverfit,
  state: checkState,
  step_memory: checkStepMemory,
};
const chosen = options.only?.split(",") ?? Object.keys(suites);
for (const name of chosen) {
  if (!(name in suites)) throw new Error(`--only ${name}: must be one of ${Object.keys(suites).join(", ")}`);
  await suites[name](world);
}
await check("no errors in the console, and no requests to other servers", () =>
  expect(problems.length === 0, problems.join("\n")),
);
if (options.pictures) await takePictures(world);

await chrome.close();
await dashboard.stop();
console.log(notes.map((n) => `note ${n}`).join("\n"));
if (!options.torch)
  console.log(
    "note without tessera-torch: runs were written by the test, gradient synchronization was not tested",
  );
process.exit(failed() ? 1 : 0);
