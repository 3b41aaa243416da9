// Checks of every view: refused values, the keyboard, texts that cover each other, saved cards and
// printing.
import fs from "node:fs";
import { check, expect, same, until } from "./harness.mjs";
import { go, READY } from "./views.mjs";

// Views with settings that show all of their controls and cards.
const SHOWN = {
  ...Object.fromEntries(Object.keys(READY).map((view) => [view, ""])),
  memory: "by=model&model=mixtral-8x7b",
  plan: "top=10&gpus=8&global_batch=64",
};
const drawn = (page) =>
  page.evaluate(async () => {
    for (let i = 0; i < 3; i++) await new Promise((r) => requestAnimationFrame(r));
  });
const settled = (page) => until("the answers", async () => (await page.locator(".stage.busy").count()) === 0);

// Returns texts of an SVG that cover each other.
const covered = (page) =>
  page.$$eval("main svg:not(.printed *)", (all) =>
    all.flatMap((svg) => {
      const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim() && t.checkVisibility());
      const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect()]);
      return boxes.flatMap(([a, x], i) =>
        boxes.slice(i + 1).flatMap(([b, y]) => {
          const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
          // The box of a text is taller than its letters.
          const tall = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top) - 0.4 * Math.min(x.height, y.height);
          return wide > 1 && tall > 0 ? [`"${a}" and "${b}"`] : [];
        }),
      );
    }),
  );

// Returns buttons that reach over the padding of their card.
const outside = (page) =>
  page.$$eval(".card button, .card summary, .card input, .card select", (all) =>
    all.flatMap((e) => {
      const card = e.closest(".card").getBoundingClientRect();
      const { left, right, width } = e.getBoundingClientRect();
      const scrolls = e.closest(".scroll, .lanes");
      return width > 0 && !scrolls && (left < card.left + 4 || right > card.right - 4)
        ? [`${e.textContent || e.closest("[data-field]")?.dataset.field} at ${left} to ${right} of ${card.left} to ${card.right}`]
        : [];
    }),
  );

// Moves through the page with Tab and returns the elements that were not reached, and those without
// a visible outline.
async function notReached(page) {
  await page.evaluate(() => {
    document.activeElement?.blur();
    for (const e of document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")) {
      const group = e.type === "radio" && [...document.querySelectorAll(`input[name="${e.name}"]`)];
      const first = group && (group.find((r) => r.checked) ?? group[0]); // the one that Tab reaches
      if (e.checkVisibility() && !e.disabled && (!group || first === e)) e.dataset.expected = "";
    }
  });
  const plain = new Set();
  const count = await page.locator("[data-expected]").count();
  for (let i = 0; i < count + 20; i++) {
    await page.keyboard.press("Tab");
    const bare = await page.evaluate(() => {
      const e = document.activeElement;
      if (!e || e === document.body) return "";
      delete e.dataset.expected;
      const target = e.matches("[type=radio], [type=checkbox]") ? e.closest("label") ?? e : e;
      const styles = [e, target, e.querySelector(".hit") ?? e].map((at) => getComputedStyle(at));
      const seen = styles.some((s) => (s.outlineStyle !== "none" && s.outlineWidth !== "0px") || s.boxShadow !== "none" || (s.stroke && s.stroke !== "none"));
      return seen ? "" : e.outerHTML.slice(0, 100);
    });
    if (bare) plain.add(bare);
    if ((await page.locator("[data-expected]").count()) === 0) break;
  }
  const missed = await page.$$eval("[data-expected]", (all) => all.map((e) => e.outerHTML.slice(0, 100)));
  return [...missed.map((e) => `not reached: ${e}`), ...[...plain].map((e) => `no outline: ${e}`)];
}

// Enters a text that is not a value into every field. Each must refuse it beside itself and accept its
// own text again. Returns the number of fields.
async function refuseTexts(page, view) {
  const dims = view !== "live" && view !== "questions";
  const stateOf = ([field, dimmed]) => {
    const control = document.querySelector(`[data-field="${field}"]`);
    const reason = control.querySelector(".reason")?.textContent;
    const exact = control.querySelector(".exact");
    if (!reason || (dimmed && !document.querySelector(".stale"))) return undefined;
    return { reason, text: exact.value, invalid: exact.getAttribute("aria-invalid") };
  };
  const accepted = (field) =>
    !document.querySelector(".reason") && { text: document.querySelector(`[data-field="${field}"] .exact`).value };
  for (const summary of await page.locator("details.further:not([open]) > summary").all()) await summary.click();
  const fields = await page.$$eval("[data-field] .exact:not(:disabled)", (all) =>
    all.map((e) => [e.closest("[data-field]").dataset.field, e.value]),
  );
  for (const [field, before] of fields) {
    const at = `${view}, ${field}`;
    const exact = page.locator(`[data-field="${field}"] .exact`);
    await exact.fill("12 apples");
    await exact.press("Enter");
    const refused = await page
      .waitForFunction(stateOf, [field, dims])
      .then((state) => state.jsonValue())
      .catch((error) => expect(false, `${at}: no message, or nothing is dimmed: ${error.message}`));
    expect(refused.reason.length > 10, `${at}: ${refused.reason}`);
    same(refused.text, "12 apples", `${at}: the refused text`);
    same(refused.invalid, "true", `${at}: aria-invalid`);
    await exact.fill(before);
    await exact.press("Enter");
    const after = await page
      .waitForFunction(accepted, field)
      .then((state) => state.jsonValue())
      .catch((error) => expect(false, `${at}: the message stays: ${error.message}`));
    same(after.text, before, `${at}: the text before`);
  }
  return fields.length;
}

// Returns texts of pictures that cover each other, controls outside of their cards, and the overflow of
// the page, at two widths.
async function layoutFaults(page) {
  const all = [];
  for (const width of [1280, 360]) {
    await page.setViewportSize({ width, height: 800 });
    await drawn(page);
    for (const fault of [...(await covered(page)), ...(await outside(page))]) all.push(`at ${width}: ${fault}`);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (over > 0) all.push(`${over} pixels wider than ${width}`);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  return all;
}

// Saves every card in every format. Returns the number of cards and of tables.
async function saveCards(page, view) {
  let [cards, tables] = [0, 0];
  const missing = await page.$$eval(".stage .card:has(svg:not(.icon), canvas, table)", (all) =>
    all.filter((c) => !c.querySelector(".save")).map((c) => c.textContent.slice(0, 60)),
  );
  same(missing.join(), "", `${view}: cards with a picture or a table that cannot be saved`);
  for (const card of await page.locator(".card:has(> header > .save)").all()) {
    const title = (await card.locator(".save > summary").getAttribute("aria-label")).replace("Save: ", "");
    const at = `${view}, ${title}`;
    for (const kind of ["svg", "png", "csv", "json"]) {
      await card.locator(".save > summary").click();
      await drawn(page); // after the event that offers the kinds
      const button = card.locator(`[data-save="${kind}"]`);
      if (!(await button.isVisible())) {
        same(await card.locator("table:not(.u-legend), .figures, [data-values]").count(), 0, `${at}: values without ${kind}`);
        await card.locator(".save > summary").click();
        continue;
      }
      const [file] = await Promise.all([page.waitForEvent("download"), button.click()]);
      const content = fs.readFileSync(await file.path());
      expect(file.suggestedFilename().endsWith(`.${kind}`), `${at}: ${file.suggestedFilename()}`);
      if (kind === "svg") {
        const text = content.toString();
        expect(!/NaN|undefined|Infinity/.test(text), `${at}: a coordinate is not a number`);
        const broken = await page.evaluate(
          (svg) => new DOMParser().parseFromString(svg, "image/svg+xml").querySelector("parsererror")?.textContent,
          text,
        );
        same(broken, undefined, `${at}: SVG`);
      }
      if (kind === "png") same(content.subarray(1, 4).toString(), "PNG", at);
      if (kind === "json") {
        const { view: of, tables: saved } = JSON.parse(content.toString());
        same(of, view, at);
        expect(saved.length > 0 && saved.every((t) => t.rows.length > 0), `${at}: no rows`);
        tables += saved.length;
      }
      if (kind === "csv") expect(content.toString().trim().split("\n").length > 1, `${at}: no lines`);
    }
    cards++;
  }
  return [cards, tables];
}

async function checkPrint(page) {
  await page.setViewportSize({ width: 720, height: 1000 }); // A4 at 96 pixels per inch, with margins
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await page.emulateMedia({ media: "print" });
  const [over, controls, ink] = await page.evaluate(() => [
    document.documentElement.scrollWidth - innerWidth,
    // Heads of columns and the questions to answer stay.
    [...document.querySelectorAll("button:not(th *), input:not(.question *), select")].filter((e) => e.checkVisibility()).map((e) => e.outerHTML.slice(0, 90)),
    getComputedStyle(document.querySelector(".card")).color,
  ]);
  same(over, 0, "pixels that do not fit");
  same(controls.join("\n"), "", "controls");
  same(ink, "rgb(29, 33, 39)", "ink");
  await page.emulateMedia({ media: null });
  await page.evaluate(() => dispatchEvent(new Event("afterprint")));
  await page.setViewportSize({ width: 1280, height: 800 });
}

// A view is opened once for all checks, because opening some views runs a search or a training step.
export async function checkEveryView({ dashboard, open, torch }) {
  const page = await open({ reducedMotion: "reduce" });
  let [fields, cards, tables] = [0, 0, 0];
  for (const view of Object.keys(SHOWN).filter((name) => name !== "sync" || torch)) {
    await go(page, dashboard.address, view, SHOWN[view]);
    if (view === "sync") await page.waitForSelector("main canvas", { timeout: 90000 });
    await settled(page);
    await drawn(page);
    await check(`${view}: no text of a picture covers another, and controls stay in their cards`, async () =>
      same((await layoutFaults(page)).join("\n"), "", "findings"),
    );
    await check(`${view}: everything is reached with Tab, with a visible outline`, async () =>
      same((await notReached(page)).join("\n"), "", "findings"),
    );
    await check(`${view}: every card is saved as SVG and PNG, and its values as CSV and JSON`, async () => {
      const [saved, values] = await saveCards(page, view);
      cards += saved;
      tables += values;
    });
    await check(`${view}: prints within the page, without controls`, () => checkPrint(page));
    await check(`${view}: every field refuses a text that is not a value, beside itself`, async () => {
      fields += await refuseTexts(page, view);
    });
  }
  await check("the views have fields, cards and tables to check", () => {
    expect(fields > 60, `${fields} fields`);
    expect(cards > 25 && tables > 15, `${cards} cards, ${tables} tables`);
  });
  await page.context().close();
}
