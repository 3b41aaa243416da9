// Numbers as people read them. Nothing is computed here but digits and prefixes.
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

// For fields: a number by its format, anything else as it was typed.
export const typed =
  (show: (v: number) => string) =>
  (text: string): string =>
    text !== "" && Number.isFinite(Number(text)) ? show(Number(text)) : text;

// A round number that holds the whole picture, and how far its lines are apart.
export function ticks(most: number): number[] {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10;
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, i) => i * step);
}
