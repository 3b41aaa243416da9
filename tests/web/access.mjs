// Accessibility: names, keyboard, targets, phones, and axe in both themes at three widths.
import { check, expect, same, until } from "./harness.mjs";
import { findings, go, READY } from "./views.mjs";

const WIDTHS = [1280, 820, 360];
// Rules that depend on the theme or the width; the widest page is checked with all rules.
const VARYING = ["color-contrast", "scrollable-region-focusable", "target-size"];

const drawn = (page) =>
  page.evaluate(async () => {
    for (let i = 0; i < 3; i++) await new Promise((r) => requestAnimationFrame(r));
  });

// Returns names of buttons and links that are empty or not unique.
const ambiguous = (page) =>
  page.$$eval("button, [role=button], main a", (all) => {
    const names = all.map((e) => (e.getAttribute("aria-label") ?? e.textContent).trim());
    return names.filter((n, i) => n === "" || names.indexOf(n) !== i);
  });

// Returns controls that are smaller than 24 pixels. The label of a checkbox belongs to its target.
const tiny = (page) =>
  page.$$eval("button, [role=button], input, select, summary, nav a", (all) =>
    all.flatMap((e) => {
      if (e.hidden) return [];
      const labeled = ["checkbox", "radio"].includes(e.type);
      const target = labeled ? (e.closest("label") ?? e.labels[0]) : e;
      const { width, height } = target.getBoundingClientRect();
      const name = e.getAttribute("aria-label") ?? e.closest("[data-field]")?.dataset.field;
      return width < 24 || height < 24 ? [`${name ?? e.textContent} ${width}×${height}`] : [];
    }),
  );

export async function checkAccess({ dashboard, open }) {
  const page = await open({ colorScheme: "light", reducedMotion: "reduce" });
  const found = { axe: [], names: [], targets: [] };
  await check(`every view opens in both themes at ${WIDTHS.join(", ")} pixels`, async () => {
    for (const view of Object.keys(READY)) {
      await page.setViewportSize({ width: WIDTHS[0], height: 844 });
      await go(page, dashboard.address, view, view === "plan" ? "top=10" : "");
      // The theme changes with every page, so that all views together have each width in both.
      for (const width of WIDTHS) {
        await page.setViewportSize({ width, height: 844 });
        await drawn(page);
        const theme = await page.evaluate(() => document.documentElement.dataset.theme);
        const rules = width === WIDTHS[0] ? undefined : VARYING;
        for (const f of await findings(page, rules))
          found.axe.push(`${view} at ${width}, ${theme}: ${f}`);
        await page.locator("button.theme").click();
      }
      for (const name of await ambiguous(page)) found.names.push(`${view}: "${name}"`);
      for (const target of await tiny(page)) found.targets.push(`${view}: ${target}`);
    }
  });
  await check("axe finds nothing", () => same(found.axe.join("\n"), "", "findings"));
  await check("buttons and links have distinct names", () =>
    same(found.names.join(", "), "", "repeated or empty names"),
  );
  await check("targets have at least 24 pixels at 360", () =>
    same(found.targets.join(", "), "", "smaller ones"),
  );

  await page.setViewportSize({ width: 360, height: 740 });
  await check("memory bars are reached with Tab and named with their values", async () => {
    await go(page, dashboard.address, "memory", "by=model");
    await page.locator('[data-total="0"]').waitFor();
    const first = page.locator(".bars [role=button]").first();
    await first.focus();
    for (const stage of ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]) {
      const [name, total, outlined] = await page.evaluate(() => {
        const e = document.activeElement;
        const total = e.querySelector("[data-total]").textContent;
        const { stroke } = getComputedStyle(e.querySelector(".hit"));
        return [e.getAttribute("aria-label"), total, stroke !== "none"];
      });
      expect(name.startsWith(`${stage}: ${total}, `), name);
      for (const part of ["parameters", "gradients", "optimizer state", "activations", "temporary"])
        expect(new RegExp(`${part} \\d[^,]*B`).test(name), name);
      expect(outlined, `${stage} is not outlined`);
      await page.keyboard.press("Enter");
      await until(stage, () => page.evaluate(() => document.activeElement.ariaPressed === "true"));
      await page.keyboard.press("Tab");
    }
    // The horizontal bars of the comparison of strategies.
    await go(page, dashboard.address, "plan");
    const bars = page.locator(".ways .stack");
    await bars.first().waitFor();
    expect(/parameters \d.*B/.test(await bars.first().getAttribute("aria-label")), "bar of a strategy");
    same(await bars.first().getAttribute("tabindex"), "0", "bar of a strategy");
  });

  await check("on a phone the chart stays visible while a control is dragged", async () => {
    await page.setViewportSize({ width: 360, height: 640 });
    for (const [view, chart, field] of [
      ["memory", ".bars svg", "pp"],
      ["scaling", ".uplot", "jitter"],
      ["collectives", '[data-figure="bytes-per-rank"]', "latency"],
      ["pipeline", ".gantt svg", "hop"],
      ["context", '[data-figure="tokens"]', "micro_batch"],
      ["plan", ".scatter svg", "global_batch"],
      ["trace", ".lanes canvas", "jitter"],
    ]) {
      await go(page, dashboard.address, view);
      await page.waitForSelector(chart);
      await page.waitForSelector("html.pins");
      await until(`${view}: the chart is above the controls`, () =>
        page.evaluate(() => {
          const bottom = document.querySelector(".pinned").getBoundingClientRect().bottom;
          return bottom <= document.querySelector(".controls").getBoundingClientRect().top;
        }),
      );
      const slider = page.locator(`[data-field="${field}"] input[type="range"]`).first();
      await slider.focus(); // scrolls as touching it does
      await page.keyboard.press("ArrowRight");
      const [top, bottom, thumb, covered] = await page.evaluate(
        async ([selector, name]) => {
          for (let i = 0; i < 3; i++) await new Promise((r) => requestAnimationFrame(r));
          const box = document.querySelector(selector).getBoundingClientRect();
          const range = document.querySelector(`[data-field="${name}"] input[type="range"]`);
          const at = range.getBoundingClientRect();
          const x = at.x + at.width / 2;
          const y = at.y + at.height / 2;
          const hit = document.elementFromPoint(x, y);
          return [box.top, box.bottom, y, hit === range ? "" : (hit?.outerHTML ?? "nothing")];
        },
        [chart, field],
      );
      expect(top >= 0 && bottom <= 640, `${view}: the chart is at ${top} to ${bottom}`);
      expect(thumb > 0 && thumb < 640 && covered === "", `${view}: the control is at ${thumb}; ${covered}`);
    }
  });
  await page.context().close();
}
