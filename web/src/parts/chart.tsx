// Line chart drawn by uPlot. Values can be read with the pointer or the arrow keys.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { color, theme } from "../theme";
import { type Drawing, drawnBy, Recorder } from "./drawing";
import { useWidth } from "./frame";
import { valuesBy } from "./save";

export interface Series {
  label: string;
  color: string; // a palette name or a CSS color
  values: (number | null | undefined)[];
  dash?: number[];
  width?: number;
  points?: boolean;
  faint?: boolean; // translucent
}
export interface Mark {
  x: number;
  label: string;
  color: string;
  weight?: number; // of marks whose labels would overlap, only the heaviest has one
}
interface Props {
  x: number[];
  xLabel: string;
  series: Series[];
  show: (v: number | null) => string;
  showX?: (v: number) => string;
  height?: number;
  logX?: 2 | 10;
  logY?: boolean;
  zero?: boolean;
  top?: number;
  marks?: Mark[];
  label: string;
  rest?: number; // index shown in the legend when nothing is hovered; default: the last
}

const FONT = "12px 'Inter Variable', sans-serif"; // of the axes

const painted = (name: string) => (/^[a-z]+$/.test(name) ? color(name) : name);

type Pen = CanvasRenderingContext2D | Recorder;
// `pixel` is the size of a CSS pixel.
function drawMarks(u: uPlot, ctx: Pen, pixel: number, marks: Mark[]): void {
  const of = (v: number) => (v * pixel) / devicePixelRatio;
  const bbox = { left: of(u.bbox.left), top: of(u.bbox.top), width: of(u.bbox.width), height: of(u.bbox.height) };
  const right = bbox.left + bbox.width;
  ctx.save();
  ctx.font = `${11 * pixel}px 'Inter Variable', sans-serif`;
  ctx.textAlign = "left";
  const taken: [number, number][] = []; // ranges of the labels
  for (const mark of [...marks].sort((a, b) => (b.weight ?? 0) - (a.weight ?? 0))) {
    const x = Math.round(of(u.valToPos(mark.x, "x", true)));
    if (x < bbox.left || x > right) continue; // outside the zoomed range
    ctx.strokeStyle = ctx.fillStyle = painted(mark.color);
    ctx.lineWidth = pixel;
    ctx.setLineDash([4 * pixel, 4 * pixel]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    // Labels are above the plot, and shifted left near its right edge.
    const wide = ctx.measureText(mark.label).width;
    const from = Math.max(bbox.left, Math.min(x - 2 * pixel, right - wide));
    const to = from + wide + 6 * pixel;
    if (mark.label && taken.every(([begin, end]) => to <= begin || end <= from)) {
      ctx.fillText(mark.label, from, bbox.top - 5 * pixel);
      taken.push([from, to]);
    }
  }
  ctx.restore();
}

export function Chart(props: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | undefined>(undefined);
  const marks = useRef<Mark[]>([]);
  marks.current = props.marks ?? [];
  const zoom = useRef<{ min: number; max: number; of: string } | undefined>(undefined);
  const rest = useRef<number | undefined>(props.rest);
  rest.current = props.rest;
  const latest = useRef(props);
  latest.current = props;
  const { height = 260 } = props;
  const tone = theme.value;
  // Changed options need a new plot; changed data only updates it.
  const form = JSON.stringify([
    props.series.map((s) => [s.label, s.color, s.dash, s.width, s.points, s.faint]),
    props.logX,
    props.logY,
    props.zero,
    props.top,
    props.xLabel,
    height,
    tone,
    width > 0,
  ]);
  const data = [props.x, ...props.series.map((s) => s.values)] as uPlot.AlignedData;

  useEffect(() => {
    if (!box.current || width === 0) return;
    const axis: uPlot.Axis = {
      stroke: color("soft"),
      font: FONT,
      grid: { stroke: color("rule"), width: 1 },
      ticks: { stroke: color("rule"), width: 1, size: 5 },
    };
    const { show, showX = String, logX, logY, zero, top } = props;
    const made = new uPlot(
      {
        width,
        height,
        cursor: { drag: { x: true, y: false }, points: { size: 7 } },
        legend: { live: true },
        scales: {
          x: { time: false, ...(logX ? { distr: 3, log: logX } : {}) },
          y: logY
            ? { distr: 3, range: (_u, low, high) => logBounds(low, high) }
            : { range: (_u, low, high) => bounds(low, high, zero ?? false, top) },
        },
        axes: [
          {
            ...axis,
            label: props.xLabel,
            size: 34,
            labelSize: 18,
            labelGap: 0,
            labelFont: FONT,
            values: (_u, at) => at.map((v) => (v == null ? "" : showX(v))),
          },
          {
            ...axis,
            size: (_u, texts) => Math.max(66, 14 + widest(texts ?? [])),
            ...(logY
              ? { splits: (_u: uPlot, _i: number, low: number, high: number) => logTicks(low, high) }
              : {}),
            values: (_u, at) => at.map((v) => (v == null ? "" : show(v))),
          },
        ],
        series: [
          { label: props.xLabel, value: (_u, v) => (v == null ? "–" : showX(v)) },
          ...props.series.map((s) => ({
            label: s.label,
            stroke: s.faint ? `${painted(s.color)}55` : painted(s.color),
            width: s.width ?? 2,
            spanGaps: true,
            points: { show: s.points ?? false, size: 5 },
            ...(s.dash ? { dash: s.dash } : {}),
            value: (_u: uPlot, v: number | null) => show(v),
          })),
        ],
        hooks: {
          draw: [(u) => drawMarks(u, u.ctx, devicePixelRatio, marks.current)],
          ready: [(u) => restLegend(u, rest.current)],
          setData: [(u) => restLegend(u, rest.current)],
          setSelect: [
            (u) => {
              const { left, width: wide } = u.select;
              if (wide <= 0) return;
              const [min, max] = [u.posToVal(left, "x"), u.posToVal(left + wide, "x")];
              zoom.current = { min, max, of: props.xLabel };
            },
          ],
          setCursor: [(u) => u.cursor.idx == null && restLegend(u, rest.current)],
        },
      },
      data,
      box.current,
    );
    plot.current = made;
    const wrap = made.over.parentElement;
    if (wrap) drawnBy(wrap, () => drawPlot(made, latest.current, marks.current));
    made.over.addEventListener("dblclick", () => (zoom.current = undefined));
    if (zoom.current?.of !== props.xLabel) zoom.current = undefined;
    if (zoom.current) made.setScale("x", zoom.current);
    return () => {
      plot.current = undefined;
      made.destroy();
    };
  }, [form]);
  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);
  useEffect(() => {
    const u = plot.current;
    u?.batch(() => {
      u.setData(data);
      if (zoom.current) u.setScale("x", zoom.current);
    });
  }, [JSON.stringify(data), JSON.stringify(props.marks), props.rest]);
  useEffect(() => {
    if (!box.current) return;
    valuesBy(box.current, () => {
      const { label, x, xLabel, series } = latest.current;
      return {
        label,
        heads: [xLabel, ...series.map((s) => s.label)],
        rows: x.map((at, i) => [at, ...series.map((s) => s.values[i] ?? null)]),
      };
    });
  }, []);
  const at = useRef<number | undefined>(undefined); // index reached with the arrow keys
  const [announcement, setAnnouncement] = useState("");
  const readAt = (index: number | undefined) => {
    const u = plot.current;
    const x = index === undefined ? undefined : props.x[index];
    at.current = x === undefined ? undefined : index;
    if (!u || index === undefined || x === undefined) {
      u?.setCursor({ left: -10, top: -10 });
      setAnnouncement("");
      return;
    }
    u.setCursor({ left: u.valToPos(x, "x"), top: u.over.clientHeight / 2 });
    const values = props.series.map((s) => `${s.label} ${props.show(s.values[index] ?? null)}`);
    setAnnouncement(`${props.xLabel} ${(props.showX ?? String)(x)}: ${values.join(", ")}`);
  };
  const keys = (e: KeyboardEvent) => {
    const last = props.x.length - 1;
    const from = at.current ?? Math.min(props.rest ?? last, last);
    const far = e.shiftKey ? 10 : 1;
    const moves: Record<string, number> = {
      ArrowLeft: Math.max(0, from - far),
      ArrowRight: Math.min(last, from + far),
      Home: 0,
      End: last,
    };
    const to = moves[e.key];
    if (to === undefined && (e.key !== "Escape" || at.current === undefined)) return;
    e.preventDefault();
    readAt(to);
  };
  return (
    <>
      <div
        ref={box}
        class="chart"
        tabIndex={0}
        role="application"
        aria-roledescription="chart"
        aria-label={`${props.label}. Use the arrow keys to read values.`}
        onKeyDown={keys}
        onBlur={() => at.current !== undefined && readAt(undefined)}
      />
      <span class="unseen" role="status">
        {announcement}
      </span>
    </>
  );
}

// Returns the width of the widest text of an axis, in pixels.
function widest(texts: string[]): number {
  const pen = document.createElement("canvas").getContext("2d");
  if (!pen) return 0;
  pen.font = FONT;
  return Math.ceil(Math.max(0, ...texts.map((text) => pen.measureText(text ?? "").width)));
}

// Draws the visible part of a plot as shapes.
function drawPlot(u: uPlot, props: Props, marks: Mark[]): Drawing {
  const pen = new Recorder();
  const { left, top, width, height } = u.bbox;
  const [x0, y0, x1, y1] = [left, top, left + width, top + height].map((v) => v / devicePixelRatio);
  const x = (v: number) => (x0 ?? 0) + u.valToPos(v, "x");
  const y = (v: number) => (y0 ?? 0) + u.valToPos(v, "y");
  const line = (...points: [number, number][]) => {
    pen.beginPath();
    points.forEach(([px, py], i) => (i === 0 ? pen.moveTo(px, py) : pen.lineTo(px, py)));
    pen.stroke();
  };
  pen.font = "12px 'Inter Variable', sans-serif";
  pen.strokeStyle = color("rule");
  pen.fillStyle = color("soft");
  const { showX = String, show } = props;
  pen.textAlign = "center";
  for (const [v, text] of ticksOf(u, 0, showX)) {
    line([x(v), y0 ?? 0], [x(v), y1 ?? 0]);
    pen.fillText(text, x(v), (y1 ?? 0) + 17);
  }
  pen.fillText(props.xLabel, ((x0 ?? 0) + (x1 ?? 0)) / 2, (y1 ?? 0) + 34);
  pen.textAlign = "right";
  for (const [v, text] of ticksOf(u, 1, show)) {
    line([x0 ?? 0, y(v)], [x1 ?? 0, y(v)]);
    pen.fillText(text, (x0 ?? 0) - 9, y(v) + 4);
  }
  const { min = -Infinity, max = Infinity } = u.scales.x ?? {};
  for (const s of props.series) {
    pen.strokeStyle = pen.fillStyle = painted(s.color);
    pen.lineWidth = s.width ?? 2;
    pen.globalAlpha = s.faint ? 1 / 3 : 1;
    pen.setLineDash(s.dash ?? []);
    const points = props.x.flatMap((at, i): [number, number][] => {
      const v = s.values[i];
      const visible = v != null && at >= (min ?? at) && at <= (max ?? at);
      return visible ? [[x(at), y(v)]] : [];
    });
    line(...points);
    pen.setLineDash([]);
    if (s.points) for (const [px, py] of points) pen.fillRect(px - 2.5, py - 2.5, 5, 5);
  }
  pen.globalAlpha = 1;
  pen.textAlign = "left";
  drawMarks(u, pen, 1, marks);
  const all = u.root.querySelector(".u-wrap")?.getBoundingClientRect();
  return { width: all?.width ?? u.width, height: all?.height ?? u.height, shapes: pen.shapes };
}

// Values of the lines of an axis and their texts, which are empty where there is no room.
function ticksOf(u: uPlot, axis: 0 | 1, show: (v: number) => string): [number, string][] {
  const { _splits: splits = [], _values: texts } = (u.axes[axis] ?? {}) as {
    _splits?: (number | null)[];
    _values?: (string | null)[];
  };
  return splits.flatMap((v, i): [number, string][] =>
    v == null ? [] : [[v, texts?.[i] ?? show(v)]],
  );
}

function restLegend(u: uPlot, index: number | undefined): void {
  const last = u.data[0].length - 1;
  if (last >= 0) u.setLegend({ idx: index ?? last }, false);
}

function logBounds(low: number | null, high: number | null): [number, number] {
  const least = low ?? 1;
  const most = high ?? 10;
  // Powers of ten around several decades, a margin around less.
  if (most / least >= 100) return [10 ** Math.floor(Math.log10(least)), 10 ** Math.ceil(Math.log10(most))];
  const margin = (most / least) ** 0.06 || 1;
  return [least / Math.max(margin, 1.02), most * Math.max(margin, 1.02)];
}
// Returns powers of ten if there are at least three, otherwise round numbers in between.
function logTicks(low: number, high: number): number[] {
  const first = Math.floor(Math.log10(low) - 1e-9);
  const decades = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, i) => first + i);
  const inside = (values: number[]) => values.filter((v) => v >= low && v <= high * 1.000001);
  for (const factors of [[1], [1, 2, 5]]) {
    const found = inside(decades.flatMap((p) => factors.map((f) => f * 10 ** p)));
    if (found.length >= 3) return found;
  }
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= rough) ?? rough;
  const from = Math.ceil(low / step);
  return inside(Array.from({ length: 12 }, (_, i) => (from + i) * step));
}

function bounds(
  low: number | null,
  high: number | null,
  zero: boolean,
  top?: number,
): [number, number] {
  const least = zero ? 0 : (low ?? 0);
  const most = top ?? high ?? 1;
  const margin = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
  return [zero ? 0 : least - margin, top ?? most + margin];
}
