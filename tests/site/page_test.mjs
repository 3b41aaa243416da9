// Opens the static site in Chromium, served from a sub-path by a server of files only.
//   node page_test.mjs --site build/site
// Exits with 77 (skipped) if the site or the browser is missing.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { check, expect, failed, findBrowser, note, notes, root, same, skip, until } from "../web/harness.mjs";

const { values: options } = parseArgs({ options: { site: { type: "string" } } });
const calculators = path.join(options.site, "calculators");
if (!fs.existsSync(path.join(calculators, "planner.wasm")))
  skip("the static site was not built: make site builds it, with emscripten");
const playwright = path.join(root, "tests/web/node_modules/playwright-core/index.mjs");
if (!fs.existsSync(playwright)) skip("playwright-core is not installed: scripts/browser.sh installs it");
const browser = findBrowser();
if (!browser) skip("Chromium is not installed: scripts/browser.sh installs it (Debian: chromium)");

const PREFIX = "/some/path/";
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", wasm: "application/wasm" };
const problems = [];
const server = http.createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  let file = path.join(options.site, decodeURIComponent(pathname.slice(PREFIX.length)));
  if (pathname.endsWith("/")) file = path.join(file, "index.html");
  if (!pathname.startsWith(PREFIX) || !fs.existsSync(file)) {
    // Browsers ask for it by themselves.
    if (pathname !== "/favicon.ico") problems.push(`the site has no ${pathname}`);
    response.writeHead(404).end();
    return;
  }
  response.writeHead(200, { "Content-Type": TYPES[file.split(".").at(-1)] ?? "application/octet-stream" });
  response.end(fs.readFileSync(file));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const site = `http://127.0.0.1:${server.address().port}${PREFIX}`;

const { chromium } = await import(pathToFileURL(playwright).href);
const chrome = await chromium.launch({
  executablePath: browser,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
});
const page = await (await chrome.newContext()).newPage();
page.setDefaultTimeout(60000);
page.on("console", (m) => m.type() === "error" && problems.push(`console: ${m.text()}`));
page.on("pageerror", (e) => problems.push(`error: ${e.message}`));
page.on("request", (r) => {
  if (!r.url().startsWith(site) && !r.url().endsWith("/favicon.ico")) problems.push(`request to ${r.url()}`);
});
// Records the progress that the worker reports.
await page.addInitScript(() => {
  window.reported = [];
  const Real = window.Worker;
  window.Worker = class extends Real {
    constructor(...args) {
      super(...args);
      this.addEventListener("message", ({ data }) => "total" in data && window.reported.push(data));
    }
  };
});

// Selectors of elements that appear when a view has its answer.
const READY = {
  memory: '[data-total="3"]',
  scaling: ".u-over",
  collectives: ".cells td",
  pipeline: ".gantt .pass",
  context: "[data-owner]",
  plan: "[data-plans] tbody tr",
  trace: ".lanes canvas",
};
const go = async (address, selector) => {
  await page.goto("about:blank");
  await page.goto(`${site}${address}`);
  await page.waitForSelector(selector);
};

await check("every calculator answers", async () => {
  for (const [view, selector] of Object.entries(READY)) {
    const began = performance.now();
    await go(`calculators/#/${view}`, selector);
    note(`${view}: first answer ${Math.round(performance.now() - began)} ms after the navigation`);
    same(await page.locator("[role=alert]").count(), 0, `errors in ${view}`);
  }
});

await check("a pasted config.json is planned like the model of that name", async () => {
  const total = () => page.textContent('[data-figure="total"]');
  const config = {
    model_type: "llama",
    num_hidden_layers: 32,
    hidden_size: 4096,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    intermediate_size: 14336,
    vocab_size: 128256,
    max_position_embeddings: 8192,
    tie_word_embeddings: false,
  };
  const experts = { model_type: "mixtral", vocab_size: 32000, num_local_experts: 8, num_experts_per_tok: 2 };
  const area = page.locator('[data-field="config"] textarea');
  for (const [name, settings, pasted] of [
    ["llama3-8b", "", config],
    ["mixtral-8x7b", "&seq=4096&ep=4", { ...config, ...experts }],
  ]) {
    await go(`calculators/#/memory?by=model&model=${name}${settings}`, '[data-figure="total"]');
    const named = await total();
    await go(`calculators/#/memory?by=config${settings}`, '[data-field="config"] textarea');
    await area.fill(JSON.stringify(pasted));
    await area.blur();
    await until(`the numbers of ${name}`, async () => (await total().catch(() => "")) === named);
    same(await page.locator(".reason").count(), 0, `messages of ${name}`);
  }
  await area.fill('{"model_type": "opt"}');
  await area.blur();
  await until("the reason", async () =>
    (await page.textContent('[data-field="config"] .reason').catch(() => "")).includes("must be one of gpt2, llama"),
  );
});

await check("a setting out of range gives the message of the program", async () => {
  await go("calculators/#/memory?dp=0", "[data-field] .reason");
});

await check("views of real runs name the command that shows them", async () => {
  for (const view of ["live", "sync"]) {
    await go(`calculators/#/${view}`, "[data-needs]");
    expect((await page.textContent("[data-needs]")).includes("tessera dashboard"), view);
  }
});

await check("a search over 1,024 GPUs reports progress and does not block the page", async () => {
  await page.goto("about:blank");
  await page.goto(`${site}calculators/#/plan?model=gpt3-175b&gpus=1024&global_batch=1536`);
  await page.evaluate(() => {
    window.longest = 0;
    window.bar = false;
    let last = performance.now();
    const tick = () => {
      const now = performance.now();
      window.longest = Math.max(window.longest, now - last);
      window.bar ||= !!document.querySelector("progress[value]");
      last = now;
      setTimeout(tick, 5);
    };
    tick();
  });
  const began = performance.now();
  await page.waitForSelector(READY.plan);
  const [reported, longest, bar] = await page.evaluate(() => [
    window.reported.map((p) => p.done / p.total),
    window.longest,
    window.bar,
  ]);
  expect(reported.length > 5, `progress was reported ${reported.length} times`);
  const ascending = reported.every((value, i) => i === 0 || value > reported[i - 1] || reported[i - 1] === 1);
  expect(ascending, `progress is not ascending: ${reported}`);
  note(
    `search over 1,024 GPUs: ${Math.round(performance.now() - began)} ms, ` +
      `longest pause of the page ${Math.round(longest)} ms, progress bar ${bar ? "shown" : "not needed"}`,
  );
});

await check("links of the documentation open calculators with their values", async () => {
  let count = 0;
  for (const name of ["strategy", "memory-math", "ring-and-bubble", "planner"]) {
    await go(`${name}/`, "h1");
    const links = page.locator('a[href*="calculators/#/"]');
    const hrefs = await links.evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    expect(hrefs.length > 0, `${name} has no link to a calculator`);
    for (const [i, href] of hrefs.entries()) {
      if (i === 0) await links.first().click();
      else await go(`${name}/${href}`, "main");
      await page.waitForURL(`${site}calculators/**`);
      const view = /#\/(\w+)/.exec(href)[1];
      await page.waitForSelector(READY[view]);
      same(await page.locator("[role=alert], .reason").count(), 0, `errors after ${href}`);
      const command = await page.textContent("[data-command]").catch(() => "");
      const model = /[?&]model=([\w.-]+)/.exec(href)?.[1];
      if (model) expect(command.includes(model), `${href} gives ${command}`);
      count++;
    }
  }
  note(`${count} links of the documentation lead to calculators`);
});

await check("the documentation opens, and the calculators link to it", async () => {
  await go("calculators/", READY.memory);
  await page.click("text=Documentation");
  await page.waitForURL(`${site}index.html`);
  await page.waitForSelector("text=Which strategy?");
});

await check("no request leaves the folder, and no file is missing", () =>
  until("the last requests", () => true).then(() => expect(problems.length === 0, problems.join("\n"))),
);
await chrome.close();
server.close();
console.log(notes.map((n) => `note ${n}`).join("\n"));
process.exit(failed() ? 1 : 0);
