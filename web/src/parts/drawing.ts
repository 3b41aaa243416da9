// Drawings as lists of shapes, which are written as SVG or painted on a canvas. A card is read from
// the page: its boxes, texts and inline SVGs. Canvases register a function that returns their
// shapes, because their pixels cannot be read back as shapes.
type Point = readonly [x: number, y: number];
interface Ink {
  fill?: string;
  stroke?: string;
  width?: number; // of the stroke
  dash?: number[];
  opacity?: number;
}
export type Shape = Ink &
  (
    | { kind: "box"; x: number; y: number; w: number; h: number; r?: number }
    | { kind: "line"; points: Point[] }
    | { kind: "text"; x: number; y: number; text: string; font: Font; anchor?: CanvasTextAlign; w?: number }
  );
interface Font {
  size: number;
  weight: string;
  family: string;
}
export interface Drawing {
  width: number;
  height: number;
  shapes: Shape[];
}

// Functions that draw the content of an element again, with its top left corner at 0, 0.
const sources = new WeakMap<Element, () => Drawing>();
// `selector` finds the elements that have one.
export const DRAWN = "[data-drawn]";
export function drawnBy(element: HTMLElement, draw: () => Drawing): void {
  element.dataset.drawn = "";
  sources.set(element, draw);
}
export const drawingOf = (element: Element): Drawing | undefined => sources.get(element)?.();

// The part of a canvas context that pictures use. Records shapes.
export class Recorder {
  readonly shapes: Shape[] = [];
  fillStyle = "";
  strokeStyle = "";
  lineWidth = 1;
  globalAlpha = 1;
  font = "12px sans-serif";
  textAlign: CanvasTextAlign = "left";
  textBaseline: CanvasTextBaseline = "alphabetic";
  private points: Point[] = [];
  private dash: number[] = [];
  private bounds: readonly [number, number] = [-Infinity, Infinity]; // clipped range of x
  private saved: (readonly [number, number])[] = [];
  private readonly ruler = document.createElement("canvas").getContext("2d");

  save() {
    this.saved.push(this.bounds);
  }
  restore() {
    this.bounds = this.saved.pop() ?? this.bounds;
  }
  beginPath() {
    this.points = [];
  }
  moveTo(x: number, y: number) {
    this.points = [[x, y]];
  }
  lineTo(x: number, y: number) {
    this.points.push([x, y]);
  }
  rect(x: number, _y: number, w: number, _h: number) {
    this.points = [[x, 0], [x + w, 0]];
  }
  clip() {
    this.bounds = [this.points[0]?.[0] ?? -Infinity, this.points[1]?.[0] ?? Infinity];
  }
  setLineDash(dash: number[]) {
    this.dash = dash;
  }
  stroke() {
    this.shapes.push({
      kind: "line",
      points: this.points,
      stroke: this.strokeStyle,
      width: this.lineWidth,
      dash: this.dash,
      opacity: this.globalAlpha,
    });
  }
  fillRect(x: number, y: number, w: number, h: number) {
    const from = Math.max(x, this.bounds[0]);
    const to = Math.min(x + w, this.bounds[1]);
    if (to <= from) return;
    const opacity = this.globalAlpha;
    this.shapes.push({ kind: "box", x: from, y, w: to - from, h, fill: this.fillStyle, opacity });
  }
  measureText(text: string): { width: number } {
    if (!this.ruler) return { width: 0 };
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }
  fillText(text: string, x: number, y: number) {
    const size = parseFloat(/([\d.]+)px/.exec(this.font)?.[1] ?? "12");
    const family = this.font.replace(/^.*px\s*/, "");
    const base = this.textBaseline === "middle" ? 0.35 * size : 0;
    const font = { size, weight: "400", family };
    const anchor = this.textAlign;
    this.shapes.push({ kind: "text", x, y: y + base, text, font, anchor, fill: this.fillStyle });
  }
}

// color-mix() is computed as color(srgb …), which few other programs read.
function plainColor(color: string): string {
  const [, parts] = /^color\(srgb ([^)]*)\)$/.exec(color) ?? [];
  if (parts === undefined) return color;
  const [r = 0, g = 0, b = 0, a = 1] = parts.split(/[\s/]+/).map(Number);
  return `rgb(${[r, g, b].map((v) => Math.round(255 * v)).join(" ")} / ${a})`;
}
const painted = (color: string): string | undefined =>
  color === "none" || /^rgba\(.*, 0\)$|^transparent$|\/ 0\)$/.test(color)
    ? undefined
    : plainColor(color);

const fontOf = (style: CSSStyleDeclaration, scale = 1): Font => ({
  size: parseFloat(style.fontSize) * scale,
  weight: style.fontWeight,
  family: style.fontFamily,
});

function readSvg(element: SVGGraphicsElement, left: number, top: number, into: Shape[]): void {
  const matrix = element.getScreenCTM();
  if (!matrix) return;
  const style = getComputedStyle(element);
  const number = (name: string) => Number(element.getAttribute(name) ?? 0);
  const place = (x: number, y: number): Point => [
    matrix.a * x + matrix.c * y + matrix.e - left,
    matrix.b * x + matrix.d * y + matrix.f - top,
  ];
  const stroke = painted(style.stroke);
  const dash = style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(/[\s,]+/);
  const ink: Ink = {
    fill: painted(style.fill),
    opacity: Number(style.fillOpacity) * Number(style.opacity),
    ...(stroke
      ? { stroke, width: parseFloat(style.strokeWidth), dash: dash.map(parseFloat) }
      : {}),
  };
  if (element.tagName === "line") {
    const points = [place(number("x1"), number("y1")), place(number("x2"), number("y2"))];
    into.push({ ...ink, kind: "line", points });
  } else if (element.tagName === "polyline" || element.tagName === "polygon") {
    const list = [...(element as SVGPolygonElement).points].map((p) => place(p.x, p.y));
    into.push({ ...ink, kind: "line", points: list });
  } else if (element.tagName === "rect" || element.tagName === "circle") {
    const r = number("r");
    const round = element.tagName === "circle";
    const [w, h] = round ? [2 * r, 2 * r] : [number("width"), number("height")];
    const [x, y] = round
      ? place(number("cx") - r, number("cy") - r)
      : place(number("x"), number("y"));
    const radius = (round ? r : number("rx")) * matrix.a;
    into.push({ ...ink, kind: "box", x, y, w: w * matrix.a, h: h * matrix.d, r: radius });
  } else if (element.tagName === "text") {
    const [x, y] = place(number("x"), number("y"));
    const text = element.textContent ?? "";
    const anchors: Record<string, CanvasTextAlign> = { middle: "center", end: "right" };
    const anchor = anchors[style.textAnchor] ?? "left";
    into.push({ ...ink, kind: "text", x, y, text, anchor, font: fontOf(style, matrix.a) });
  }
}

// Texts of one node, a shape for each line.
function readText(node: Text, left: number, top: number, into: Shape[]): void {
  const parent = node.parentElement;
  if (!parent) return;
  const style = getComputedStyle(parent);
  const fill = painted(style.color) ?? "";
  const font = fontOf(style);
  const range = document.createRange();
  let line: { bottom: number; left: number; shape: Shape & { kind: "text" } } | undefined;
  for (const word of node.data.matchAll(/\S+/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const box = range.getBoundingClientRect();
    if (box.width === 0) continue;
    if (line && Math.abs(line.bottom - box.bottom) < 2) {
      line.shape.text += ` ${word[0]}`;
      line.shape.w = box.right - line.left;
      continue;
    }
    const y = box.bottom - top - 0.24 * box.height; // baseline of common fonts
    const x = box.left - left;
    line = {
      bottom: box.bottom,
      left: box.left,
      shape: { kind: "text", x, y, text: word[0], font, fill, w: box.width },
    };
    into.push(line.shape);
  }
}

const SKIPPED = ".save, .buttons, .player, .controls, .unseen, .tip, title, button.small";

// Returns the visible content of an element.
export function readDrawing(root: Element): Drawing {
  const { left, top, width, height } = root.getBoundingClientRect();
  const shapes: Shape[] = [];
  const read = (element: Element) => {
    if (element.matches(SKIPPED) || !element.checkVisibility()) return;
    const own = drawingOf(element);
    const box = element.getBoundingClientRect();
    const [x, y] = [box.left - left, box.top - top];
    if (own) {
      shapes.push(...own.shapes.map((shape) => moved(shape, x, y)));
      return;
    }
    if (element instanceof SVGGraphicsElement) {
      if (!(element instanceof SVGSVGElement)) readSvg(element, left, top, shapes);
    } else {
      const style = getComputedStyle(element);
      const fill = painted(style.backgroundColor);
      const r = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
      if (fill && box.width > 0)
        shapes.push({ kind: "box", x, y, w: box.width, h: box.height, r, fill });
      const width = parseFloat(style.borderBottomWidth);
      const stroke = width > 0 ? painted(style.borderBottomColor) : undefined;
      if (stroke && element !== root) {
        const end = y + box.height;
        shapes.push({ kind: "line", points: [[x, end], [x + box.width, end]], stroke, width });
      }
    }
    for (const child of element.childNodes) {
      if (child instanceof Element) read(child);
      else if (child instanceof Text && !(element instanceof SVGElement))
        readText(child, left, top, shapes);
    }
  };
  read(root);
  // Tables may be wider than the card, which scrolls.
  const right = shapes.map((s) => (s.kind === "box" ? s.x + s.w : 0));
  return { width: Math.max(width, ...right), height, shapes };
}

function moved(shape: Shape, dx: number, dy: number): Shape {
  return shape.kind === "line"
    ? { ...shape, points: shape.points.map(([x, y]) => [x + dx, y + dy] as const) }
    : { ...shape, x: shape.x + dx, y: shape.y + dy };
}

const escaped = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const short = (v: number): string => String(Math.round(v * 100) / 100);

export function svgText({ width, height, shapes }: Drawing): string {
  const element = (s: Shape): string => {
    const attributes: Record<string, string | undefined> = {
      fill: s.kind === "line" ? "none" : (s.fill ?? "none"),
      stroke: s.stroke,
      "stroke-width": s.stroke && short(s.width ?? 1),
      "stroke-dasharray": s.dash?.length ? s.dash.map(short).join(" ") : undefined,
      opacity: s.opacity != null && s.opacity < 1 ? short(s.opacity) : undefined,
    };
    let [name, content] = ["rect", ""];
    if (s.kind === "line") {
      name = "polyline";
      attributes.points = s.points.map((p) => p.map(short).join(",")).join(" ");
      if (s.fill) attributes.fill = s.fill;
    } else {
      Object.assign(attributes, { x: short(s.x), y: short(s.y) });
    }
    if (s.kind === "box")
      Object.assign(attributes, {
        width: short(Math.max(0, s.w)),
        height: short(Math.max(0, s.h)),
        rx: s.r ? short(s.r) : undefined,
      });
    if (s.kind === "text") {
      [name, content] = ["text", escaped(s.text)];
      attributes["font-family"] = s.font.family;
      attributes["font-size"] = short(s.font.size);
      attributes["font-weight"] = s.font.weight;
      if (s.anchor && s.anchor !== "left")
        attributes["text-anchor"] = s.anchor === "center" ? "middle" : "end";
      if (s.stroke) attributes["paint-order"] = "stroke";
      // Other programs may lack the font: the text keeps its width.
      if (s.w)
        Object.assign(attributes, { textLength: short(s.w), lengthAdjust: "spacingAndGlyphs" });
    }
    const list = Object.entries(attributes).filter((a): a is [string, string] => !!a[1]);
    const text = list.map(([key, value]) => ` ${key}="${escaped(value)}"`).join("");
    return `<${name}${text}>${content}</${name}>`;
  };
  const size = `width="${short(width)}" height="${short(height)}"`;
  const box = `viewBox="0 0 ${short(width)} ${short(height)}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${box}>\n${shapes.map(element).join("\n")}\n</svg>\n`;
}

// Paints a drawing at twice its size.
export function pngOf({ width, height, shapes }: Drawing): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  const scale = 2;
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  const ctx = canvas.getContext("2d");
  if (!ctx) return Promise.resolve(null);
  ctx.scale(scale, scale);
  for (const s of shapes) {
    ctx.globalAlpha = s.opacity ?? 1;
    ctx.fillStyle = s.fill ?? "transparent";
    ctx.strokeStyle = s.stroke ?? "transparent";
    ctx.lineWidth = s.width ?? 1;
    ctx.lineJoin = "round";
    ctx.setLineDash(s.dash ?? []);
    if (s.kind === "text") {
      ctx.font = `${s.font.weight} ${s.font.size}px ${s.font.family}`;
      ctx.textAlign = s.anchor ?? "left";
      if (s.stroke) ctx.strokeText(s.text, s.x, s.y);
      ctx.fillText(s.text, s.x, s.y);
      continue;
    }
    ctx.beginPath();
    if (s.kind === "box") ctx.roundRect(s.x, s.y, Math.max(0, s.w), Math.max(0, s.h), s.r ?? 0);
    else s.points.forEach(([x, y], i) => (i === 0 ? ctx.moveTo(x, y) : ctx.lineTo(x, y)));
    if (s.fill) ctx.fill();
    if (s.stroke) ctx.stroke();
  }
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
