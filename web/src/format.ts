// Formats numbers with units and SI prefixes. GB = 10⁹ bytes.
function scaled(value: number, unit: string, steps: string[]): string {
  let rest = Math.abs(value);
  let at = 0;
  while (rest >= 999.5 && at + 1 < steps.length) {
    rest /= 1000;
    at += 1;
  }
  const digits = rest >= 99.995 ? 1 : 2;
  const text = String(Number(rest.toFixed(digits)));
  return `${value < 0 ? "−" : ""}${text} ${steps[at]}${unit}`.trimEnd();
}

export const bytes = (v: number | null | undefined): string =>
  v == null ? "–" : scaled(v, "B", ["", "k", "M", "G", "T", "P"]);
// A part of a whole in one unit: "82.61 of 85.52 GB".
export function bytesOf(part: number | null, whole: number | null): string {
  const [text, all] = [bytes(part), bytes(whole)];
  const unit = all.slice(all.indexOf(" "));
  return `${text.endsWith(unit) ? text.slice(0, -unit.length) : text} of ${all}`;
}
export const rate = (v: number | null | undefined): string => (v == null ? "–" : `${bytes(v)}/s`);
export const count = (v: number | null | undefined): string =>
  v == null ? "–" : scaled(v, "", ["", "k", "M", "B", "T"]).replace(/ (?=[kMBT]$)/, "");
export const share = (v: number | null | undefined, digits = 1): string =>
  v == null ? "–" : `${(v * 100).toFixed(digits)}%`;
export const whole = (v: number | null | undefined): string =>
  v == null ? "–" : Math.round(v).toLocaleString("en-US");
export const plain = (v: number | null | undefined): string =>
  v == null ? "–" : String(Number(v.toPrecision(4)));

export function seconds(v: number | null | undefined): string {
  if (v == null) return "–";
  const size = Math.abs(v);
  if (size === 0) return "0 s";
  if (size < 1e-3) return scaled(v * 1e6, "", [""]) + " µs";
  if (size < 1) return scaled(v * 1e3, "", [""]) + " ms";
  if (size < 120) return scaled(v, "", [""]) + " s";
  return size < 7200 ? scaled(v / 60, "", [""]) + " min" : scaled(v / 3600, "", [""]) + " h";
}

// As seconds(), with days from two on.
export const duration = (v: number): string =>
  v < 172800 ? seconds(v) : `${Number((v / 86400).toPrecision(3)).toLocaleString("en-US")} days`;
export const kilowattHours = (v: number): string =>
  `${v < 100 ? plain(v) : Math.round(v).toLocaleString("en-US")} kWh`;
export const money = (v: number): string =>
  v < 1000 ? `$${Number(v.toFixed(2))}` : `$${count(v)}`;

// Text of an input field: `show` prints a value, `read` turns typed text into a value. Both return
// text of another form unchanged, and the server rejects it.
export interface Unit {
  show: (value: string) => string;
  read: (text: string) => string;
  example: string; // shown with the error message
}

// `sizes` maps the accepted units to their size. The empty unit is a number without one.
function unit(show: (v: number) => string, sizes: Record<string, number>, example: string): Unit {
  return {
    show: (value) =>
      value !== "" && Number.isFinite(Number(value)) ? show(Number(value)) : value,
    read: (text) => {
      const [, sign, digits = "", name = ""] =
        /^([-−]?)\$?([\d.,]+(?:e[+-]?\d+)?)\s*(\S*)$/i.exec(text) ?? [];
      // Commas only between groups of three digits, as the command line reads them.
      const number = /^\d{1,3}(,\d{3})+(\.|$)/.test(digits) ? digits.replaceAll(",", "") : digits;
      const size = sizes[name];
      const value = Number(number) * (size ?? NaN);
      // 15 digits hide the rounding of the product: 7 µs is 0.000007.
      return digits !== "" && Number.isFinite(value)
        ? String(Number(((sign ? -1 : 1) * value).toPrecision(15)))
        : text;
    },
    example,
  };
}

const powers = (names: string[], base: number, suffix: string): Record<string, number> =>
  Object.fromEntries(names.map((name, i) => [name + suffix, base ** (i + 1)]));
const BYTE_SIZES = (per: string): Record<string, number> => ({
  "": 1,
  ["B" + per]: 1,
  ["KB" + per]: 1000,
  ...powers(["k", "M", "G", "T", "P"], 1000, "B" + per),
  ...powers(["Ki", "Mi", "Gi", "Ti", "Pi"], 1024, "B" + per),
});
export const BYTES = unit(bytes, BYTE_SIZES(""), "500 MB");
// Bytes per second. A lowercase b is a bit, as on the command line.
const RATE_SIZES = {
  ...BYTE_SIZES("/s"),
  "Mb/s": 1.25e5,
  "Gb/s": 1.25e8,
  "Tb/s": 1.25e11,
};
export const RATE = unit(rate, RATE_SIZES, "25 GB/s");
// The value is in GB/s.
export const GIGABYTE_RATE = unit(
  (v) => rate(v * 1e9),
  Object.fromEntries(Object.entries(RATE_SIZES).map(([u, size]) => [u, u ? size / 1e9 : 1])),
  "25 GB/s",
);
export const COUNT = unit(
  count,
  { "": 1, K: 1e3, ...powers(["k", "M", "B", "T"], 1000, "") },
  "1.5B",
);
export const TIME = unit(
  seconds,
  { "": 1, ns: 1e-9, us: 1e-6, "µs": 1e-6, "μs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 },
  "5 µs",
);
export const MONEY = unit(money, { "": 1 }, "2.5");
export const POWER = unit((v) => `${v} W`, { "": 1, W: 1, kW: 1000 }, "700 W");
// Adds the empty value, printed as `text`. A default that was printed for other settings is read too.
export const withDefault = (unit: Unit, text: string): Unit => ({
  ...unit,
  show: (value) => (value === "" ? text : unit.show(value)),
  read: (typed) => (["", text].includes(typed) || /\bdefault\)?$/.test(typed) ? "" : unit.read(typed)),
});
export const INTEGER = unit(String, { "": 1 }, "2048");
export const NUMBER = unit(String, { "": 1 }, "1.25");
// Fraction, printed and typed as a percentage, with or without the sign.
export const PERCENT = unit((v) => `${plain(v * 100)}%`, { "": 0.01, "%": 0.01 }, "10%");

// Returns evenly spaced round numbers from 0 to at least `most`.
export function ticks(most: number): number[] {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10;
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, i) => i * step);
}
