// Saves a card: its picture as SVG or PNG, its tables and curves as CSV or JSON. The names of the
// files have the view, the card and the settings that differ from the defaults.
import { useEffect, useRef } from "preact/hooks";
import { route } from "../route";
import { DRAWN, drawingOf, pngOf, readDrawing, svgText } from "./drawing";

type Cell = string | number | null;
export interface Rows {
  label: string;
  heads: string[];
  rows: Cell[][];
}
// Values of elements that draw them, such as charts.
const values = new WeakMap<Element, () => Rows>();
export function valuesBy(element: HTMLElement, read: () => Rows): void {
  element.dataset.values = "";
  values.set(element, read);
}

// As valuesBy(), for the element of a component.
export function useValues(ref: { current: HTMLElement | null }, read: () => Rows): void {
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    if (ref.current) valuesBy(ref.current, () => latest.current());
  }, []);
}

const textOf = (element: Element): string =>
  (element.textContent ?? "").replace(/[▾\s]+/g, " ").trim();

// Number behind a cell (data-value), or its text. A bar has its values in its label.
function cell(element: Element): Cell {
  const raw = (element as HTMLElement).dataset.value;
  if (raw !== undefined) return raw === "" ? null : Number.isFinite(Number(raw)) ? Number(raw) : raw;
  return textOf(element) || (element.querySelector("[aria-label]")?.getAttribute("aria-label") ?? "");
}

function tableOf(table: Element): Rows {
  const cells = (row: Element) =>
    [...row.children].filter((c) => !c.matches("[data-control]")).map(cell);
  return {
    label: table.closest("[aria-label]")?.getAttribute("aria-label") ?? "table",
    heads: [...table.querySelectorAll("thead th:not([data-control])")].map(textOf),
    rows: [...table.querySelectorAll("tbody tr")].map(cells),
  };
}
function figuresOf(list: Element): Rows {
  return {
    label: "figures",
    heads: ["name", "value", "note"],
    rows: [...list.children].map((row) => {
      const [name = "", value = "", note = ""] = [...row.children].map(textOf);
      return [name, value, note];
    }),
  };
}

export function rowsOf(card: Element): Rows[] {
  const found = card.querySelectorAll("table:not(.u-legend, .loads), dl.figures, [data-values]");
  return [...found]
    .map((e) =>
      e.matches("table") ? tableOf(e) : e.matches("dl") ? figuresOf(e) : values.get(e)?.(),
    )
    .filter((t): t is Rows => !!t && t.rows.length > 0);
}

const quoted = (value: Cell): string => {
  const text = value == null ? "" : String(value);
  return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csv = (tables: Rows[]): string =>
  tables
    .map((t) => [t.heads, ...t.rows].map((row) => `${row.map(quoted).join(",")}\n`).join(""))
    .join("\n");

function json(title: string, tables: Rows[]): string {
  const { view, query } = route.value;
  const named = (t: Rows) =>
    t.rows.map((row) =>
      Object.fromEntries(row.map((v, i) => [t.heads[i] || `column ${i + 1}`, v])),
    );
  const list = tables.map((t) => ({ label: t.label, rows: named(t) }));
  return `${JSON.stringify({ view, title, settings: query, link: location.href, tables: list }, null, 1)}\n`;
}

// For example "tessera-memory-shards-of-each-rank-by-model-dp-16.svg".
function fileName(title: string, kind: string): string {
  const { view, query } = route.value;
  const settings = Object.entries(query).flatMap(([key, value]) => (value ? [key, value] : []));
  const words = ["tessera", view, title, ...settings].join("-");
  return `${words.replace(/[^A-Za-z0-9.]+/g, "-").slice(0, 150).replace(/-+$/, "")}.${kind}`;
}

function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const TYPES = { svg: "image/svg+xml", csv: "text/csv", json: "application/json" };

export function Save({ title }: { title: string }) {
  const menu = useRef<HTMLDetailsElement>(null);
  const save = async (kind: string) => {
    const card = menu.current?.closest(".card");
    if (!card) return;
    menu.current?.removeAttribute("open");
    const text: Record<keyof typeof TYPES, () => string> = {
      svg: () => svgText(readDrawing(card)),
      csv: () => csv(rowsOf(card)),
      json: () => json(title, rowsOf(card)),
    };
    const content =
      kind === "png"
        ? await pngOf(readDrawing(card))
        : new Blob([text[kind as keyof typeof TYPES]()], { type: TYPES[kind as keyof typeof TYPES] });
    if (content) download(content, fileName(title, kind));
  };
  return (
    <details
      ref={menu}
      class="save"
      onToggle={(e) => {
        const card = e.currentTarget.closest(".card");
        for (const button of e.currentTarget.querySelectorAll<HTMLElement>("[data-rows]"))
          button.hidden = !card || rowsOf(card).length === 0;
      }}
      onKeyDown={(e) => {
        if (e.key === "Escape") e.currentTarget.removeAttribute("open");
      }}
    >
      <summary aria-label={`Save: ${title}`}>Save</summary>
      <span class="choices">
        {["svg", "png", "csv", "json"].map((kind) => (
          <button
            key={kind}
            type="button"
            class="small"
            data-save={kind}
            data-rows={kind === "csv" || kind === "json" ? "" : undefined}
            hidden={kind === "csv" || kind === "json"}
            aria-label={`${kind.toUpperCase()}: ${title}`}
            onClick={() => void save(kind)}
          >
            {kind.toUpperCase()}
          </button>
        ))}
      </span>
    </details>
  );
}

// Canvases are printed as SVG, in the colors of the light theme.
export function printDrawings(): void {
  const page = document.documentElement;
  let theme: string | undefined;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
    for (const element of document.querySelectorAll(DRAWN)) {
      const drawing = drawingOf(element);
      if (!drawing) continue;
      const copy = document.createElement("div");
      copy.className = "printed";
      copy.innerHTML = svgText(drawing);
      element.after(copy);
    }
  });
  addEventListener("afterprint", () => {
    if (theme !== undefined) page.dataset.theme = theme;
    for (const copy of document.querySelectorAll(".printed")) copy.remove();
  });
}
