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

export async function checkEveryView({ dashboard, open, torch }) {
  const page = await open({ reducedMotion: "reduce" });
  const views = Object.keys(SHOWN).filter((view) => view !== "sync" || torch);
  const openView = async (view) => {
    await go(page, dashboard.address, view, SHOWN[view]);
    if (view === "sync") await page.waitForSelector("main canvas", { timeout: 90000 });
    await settled(page);
    await drawn(page);
  };

  await check("every field of every view refuses a text that is not a value, beside itself", async () => {
    let fields = 0;
    for (const view of views) {
      await openView(view);
      for (const summary of await page.locator("details.further:not([open]) > summary").all()) await summary.click();
      const names = await page.$$eval("[data-field] .exact:not(:disabled)", (all) =>
        all.map((e) => e.closest("[data-field]").dataset.field),
      );
      for (const name of names) {
        const exact = page.locator(`[data-field="${name}"] .exact`);
        const before = await exact.inputValue();
        await exact.fill("12 apples");
        await exact.press("Enter");
        const reason = page.locator(`[data-field="${name}"] .reason`);
        await reason.waitFor();
        expect((await reason.textContent()).length > 10, `${view}, ${name}: ${await reason.textContent()}`);
        same(await exact.inputValue(), "12 apples", `${view}, ${name}: the refused text`);
        same(await exact.getAttribute("aria-invalid"), "true", `${view}, ${name}: aria-invalid`);
        if (view !== "live" && view !== "questions")
          await until(`${view}, ${name}: dimmed charts`, async () => (await page.locator(".stale").count()) > 0);
        await exact.fill(before);
        await exact.press("Enter");
        await until(`${view}, ${name}: no message`, async () => (await page.locator(".reason").count()) === 0);
        same(await exact.inputValue(), before, `${view}, ${name}: the text before`);
        fields++;
      }
    }
    expect(fields > 60, `${fields} fields`);
  });

  await check("everything in every view is reached with Tab, with a visible outline", async () => {
    const all = [];
    for (const view of views) {
      await openView(view);
      for (const found of await notReached(page)) all.push(`${view}: ${found}`);
    }
    same(all.join("\n"), "", "findings");
  });

  await check("no text of a picture covers another, and controls stay in their cards, at 360 and 1280 pixels", async () => {
    const all = [];
    for (const view of views) {
      await page.setViewportSize({ width: 1280, height: 800 });
      await openView(view);
      for (const width of [1280, 360]) {
        await page.setViewportSize({ width, height: 800 });
        await drawn(page);
        for (const pair of await covered(page)) all.push(`${view} at ${width}: ${pair}`);
        for (const control of await outside(page)) all.push(`${view} at ${width}: ${control}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (over > 0) all.push(`${view} is ${over} pixels wider than ${width}`);
      }
    }
    await page.setViewportSize({ width: 1280, height: 800 });
    same(all.join("\n"), "", "findings");
  });

  await check("every card of every view is saved as SVG and PNG, and its values as CSV and JSON", async () => {
    let [cards, tables] = [0, 0];
    for (const view of views) {
      await openView(view);
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
    }
    expect(cards > 25 && tables > 15, `${cards} cards, ${tables} tables`);
  });

  await check("every view prints within the page, without controls", async () => {
    for (const view of views) {
      await openView(view);
      await page.setViewportSize({ width: 720, height: 1000 }); // A4 at 96 pixels per inch, with margins
      await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
      await page.emulateMedia({ media: "print" });
      const [over, controls, ink] = await page.evaluate(() => [
        document.documentElement.scrollWidth - innerWidth,
        // Heads of columns and the questions to answer stay.
        [...document.querySelectorAll("button:not(th *), input:not(.question *), select")].filter((e) => e.checkVisibility()).map((e) => e.outerHTML.slice(0, 90)),
        getComputedStyle(document.querySelector(".card")).color,
      ]);
      same(over, 0, `${view}: pixels that do not fit`);
      same(controls.join("\n"), "", `${view}: controls`);
      same(ink, "rgb(29, 33, 39)", `${view}: ink`);
      await page.emulateMedia({ media: null });
      await page.evaluate(() => dispatchEvent(new Event("afterprint")));
      await page.setViewportSize({ width: 1280, height: 800 });
    }
  });
  await page.context().close();
}
