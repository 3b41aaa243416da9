// Timeline of spans in lanes, on a canvas because there can be thousands of spans. Zooms with the
// buttons, + and −, or Ctrl and the mouse wheel; moves by dragging or with the arrow keys.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Span } from "../responses";
import { seconds } from "../format";
import { color, theme } from "../theme";
import { axisColor } from "./axes";
import { drawnBy, Recorder } from "./drawing";
import { useWidth } from "./frame";
import { useValues } from "./save";

const ROW = 20;
const GAP = 8;
const AXIS = 22;

const STEP = /^step \d+$/; // span around the passes and the update of a step

// Axes of the first word of a lane. In traces of runs, "experts" are ranks that reduce the gradients
// of the same experts, "tied" those with a tied embedding, and "model" those of several axes.
const AXES: Record<string, string> = {
  data: "dp",
  experts: "dp",
  tensor: "tp",
  pipeline: "pp",
  tied: "pp",
  model: "accent",
};

export function kind(lane: string, what: string): string {
  if (STEP.test(what)) return "faint";
  if (/^data of step/.test(what)) return "rest";
  const [first = ""] = lane.split(/[\s_]/);
  if (first in AXES) return AXES[first] ?? "";
  if (/^[a-z]p$/.test(first)) return axisColor(first);
  if (/^(comm|mess|send|receive)/.test(lane)) return lane.startsWith("comm") ? "dp" : "pp";
  if (/wait|bubble|idle/.test(what)) return "faint";
  if (/^(send|receive)_/.test(what)) return "pp";
  if (/weight/.test(what)) return "weight";
  if (/backward/.test(what)) return "backward";
  if (/forward|recompute/.test(what)) return "forward";
  return "step";
}

interface Props {
  spans: Span[];
  label: string;
  end?: number;
  until?: number; // end of the time scale, if several timelines share it
  shown?: string; // visible range as passed to onShown, from the URL
  onShown?: (shown: string) => void; // "" if everything is visible
}

type Range = readonly [number, number];

// Visible range in seconds, as in "0.012-0.034", with enough digits for the closest zoom.
function rangeText(range: Range, whole: Range): string {
  if (range[0] <= whole[0] && range[1] >= whole[1]) return "";
  return range.map((t) => Number(t.toPrecision(9)).toFixed(12).replace(/\.?0+$/, "")).join("-");
}
function rangeOf(text: string, whole: Range): Range {
  const [from = NaN, to = NaN] = text.split("-").map(Number);
  const begin = Math.max(whole[0], from);
  const end = Math.min(whole[1], to);
  return text !== "" && begin < end ? [begin, end] : whole; // the URL may be malformed
}

export function Lanes({ spans, label, until, shown = "", onShown }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [tip, setTip] = useState<{ x: number; y: number; text: string }>();
  const tone = theme.value;
  const rows = useMemo(() => lanesOf(spans), [spans]);
  const whole = useMemo(() => {
    const from = spans.reduce((t, s) => Math.min(t, s.begin), until === undefined ? Infinity : 0);
    const to = until ?? spans.reduce((t, s) => Math.max(t, s.end), 0);
    return [Number.isFinite(from) ? from : 0, to] as const;
  }, [spans, until]);
  const [range, setRange] = useState<Range>(() => rangeOf(shown, whole));
  useEffect(() => setRange(rangeOf(shown, whole)), [shown, whole]);
  // Reported once it stops changing: browsers limit the rate of URL changes.
  const report = useRef(onShown);
  report.current = onShown;
  const text = rangeText(range, whole);
  useEffect(() => {
    if (text === shown) return;
    const timer = setTimeout(() => report.current?.(text), 200);
    return () => clearTimeout(timer);
  }, [text]);
  const left = width < 520 ? 62 : 92;
  const tall = AXIS + rows.reduce((sum, r) => sum + (r.first ? GAP : 0) + ROW, 0);
  const scale = Math.max(1, width - left) / Math.max(1e-12, range[1] - range[0]);

  const zoom = (factor: number, at = (range[0] + range[1]) / 2) => {
    const size = whole[1] - whole[0];
    const span = Math.min(size, Math.max(size / 1e5, (range[1] - range[0]) * factor));
    move(at - ((at - range[0]) / (range[1] - range[0] || 1)) * span, span);
  };
  const move = (from: number, span = range[1] - range[0]) => {
    const begin = Math.min(Math.max(from, whole[0]), Math.max(whole[0], whole[1] - span));
    setRange([begin, begin + span]);
  };

  const paint = (ctx: CanvasRenderingContext2D | Recorder) => {
    ctx.font = "11px 'Inter Variable', sans-serif";
    ctx.textBaseline = "middle";
    drawAxis(ctx, range, left, width, tall);
    let y = AXIS;
    for (const row of rows) {
      if (row.first) y += GAP;
      ctx.fillStyle = color("soft");
      const fits = ctx.measureText(row.name).width <= left - 6;
      ctx.fillText(fits ? row.name : row.short, 0, y + ROW / 2, left - 6);
      ctx.fillStyle = color("faint");
      ctx.globalAlpha = 0.6;
      ctx.fillRect(left, y + 1, width - left, ROW - 2);
      ctx.globalAlpha = 1;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, y, width - left, ROW);
      ctx.clip();
      const drawn: number[] = []; // end of the last span, by depth
      for (const s of row.spans) {
        if (s.end < range[0] || s.begin > range[1]) continue;
        const x = left + (s.begin - range[0]) * scale;
        const end = left + (s.end - range[0]) * scale;
        if (end - (drawn[s.depth] ?? -Infinity) < 0.4) continue; // within a pixel already painted
        drawn[s.depth] = end;
        const wide = Math.max(0.8, end - x - (end - x > 3 ? 0.6 : 0));
        const what = kind(row.lane, s.what);
        ctx.fillStyle = what === "faint" ? color("rule") : color(what);
        ctx.fillRect(x, y + 2, wide, ROW - 4);
        // Labels that do not fit before the first nested span are omitted; the tooltip has them.
        const from = Math.max(x, left);
        const room = Math.min(left + (s.free - range[0]) * scale, width) - from;
        if (room > 20 && ctx.measureText(s.what).width < room - 6) {
          ctx.fillStyle = what === "faint" ? color("soft") : color("on-mark");
          ctx.fillText(s.what, from + 4, y + ROW / 2 + 0.5);
        }
      }
      ctx.restore();
      y += ROW;
    }
  };
  useEffect(() => {
    const c = canvas.current;
    const ctx = c?.getContext("2d");
    if (!c || !ctx || width === 0) return;
    c.width = width * devicePixelRatio;
    c.height = tall * devicePixelRatio;
    ctx.scale(devicePixelRatio, devicePixelRatio);
    paint(ctx);
    drawnBy(c, () => {
      const pen = new Recorder();
      paint(pen);
      return { width, height: tall, shapes: pen.shapes };
    });
  }, [rows, range, width, tone]);

  useValues(box, () => ({
    label,
    heads: ["rank", "lane", "what", "begin", "end"],
    rows: spans.map((s) => [s.rank, s.lane, s.what, s.begin, s.end]),
  }));

  const at = (event: { offsetX: number; offsetY: number }): Span | undefined => {
    let y = AXIS;
    for (const row of rows) {
      if (row.first) y += GAP;
      if (event.offsetY >= y && event.offsetY < y + ROW) {
        const t = range[0] + (event.offsetX - left) / scale;
        const near = 1.5 / scale;
        return row.spans.findLast((s) => s.begin - near <= t && t <= s.end + near);
      }
      y += ROW;
    }
    return undefined;
  };
  const drag = useRef<{ x: number; from: number } | undefined>(undefined);
  useEffect(() => {
    const c = canvas.current;
    if (!c) return;
    const wheel = (e: WheelEvent) => {
      if (!e.ctrlKey && !e.metaKey) return; // plain scrolling moves the page
      e.preventDefault();
      zoom(e.deltaY > 0 ? 1.25 : 0.8, range[0] + (e.offsetX - left) / scale);
    };
    c.addEventListener("wheel", wheel, { passive: false });
    return () => c.removeEventListener("wheel", wheel);
  });
  const keys = (e: KeyboardEvent) => {
    const span = range[1] - range[0];
    const done: Record<string, () => void> = {
      "+": () => zoom(0.7),
      "=": () => zoom(0.7),
      "-": () => zoom(1.4),
      ArrowLeft: () => move(range[0] - span * 0.15),
      ArrowRight: () => move(range[0] + span * 0.15),
      "0": () => setRange(whole),
    };
    const act = done[e.key];
    if (!act) return;
    e.preventDefault();
    act();
  };
  return (
    <div>
      <div class="buttons" role="group" aria-label="Zoom">
        <button type="button" class="small" onClick={() => zoom(0.6)} aria-label={`Zoom in: ${label}`}>
          +
        </button>
        <button type="button" class="small" onClick={() => zoom(1.7)} aria-label={`Zoom out: ${label}`}>
          −
        </button>
        <button
          type="button"
          class="small"
          onClick={() => setRange(whole)}
          aria-label={`All: ${label}`}
        >
          All
        </button>
        <span class="note">{seconds(range[1] - range[0])} shown</span>
      </div>
      <div ref={box} class="lanes">
        {/* role=application: the canvas handles its own keys. */}
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-roledescription="timeline"
          aria-label={`${label}. Plus and minus zoom, arrow keys move, 0 shows everything.`}
          style={{ height: `${tall}px` }}
          onKeyDown={keys}
          onPointerDown={(e) => {
            drag.current = { x: e.offsetX, from: range[0] };
            e.currentTarget.setPointerCapture(e.pointerId);
          }}
          onPointerUp={() => (drag.current = undefined)}
          onPointerLeave={() => setTip(undefined)}
          onPointerMove={(e) => {
            if (drag.current) {
              move(drag.current.from - (e.offsetX - drag.current.x) / scale);
              return;
            }
            const span = at(e);
            setTip(
              span && {
                x: Math.min(e.offsetX + 12, width - 200),
                y: e.offsetY + 14,
                text: `${span.what} · ${seconds(span.end - span.begin)} from ${seconds(span.begin)}`,
              },
            );
          }}
        />
        {tip && (
          <div class="tip" style={{ left: `${Math.max(0, tip.x)}px`, top: `${tip.y}px` }}>
            {tip.text}
          </div>
        )}
      </div>
    </div>
  );
}

// Span with its nesting depth, and the time up to which no nested span covers it.
interface Nested extends Span {
  depth: number;
  free: number;
}
function nested(spans: Span[]): Nested[] {
  const open: Nested[] = [];
  return [...spans]
    .sort((a, b) => a.begin - b.begin || b.end - a.end)
    .map((span) => {
      while (open.length > 0 && (open.at(-1)?.end ?? 0) <= span.begin) open.pop();
      const around = open.at(-1);
      if (around) around.free = Math.min(around.free, span.begin);
      const made = { ...span, depth: open.length, free: span.end };
      open.push(made);
      return made;
    });
}

interface Row {
  name: string;
  short: string; // used if the name does not fit
  lane: string;
  first: boolean;
  spans: Nested[];
}
function lanesOf(spans: Span[]): Row[] {
  const found = new Map<string, { rank: number; lane: string; spans: Span[] }>();
  for (const s of spans) {
    const lane = STEP.test(s.what) ? "step" : s.lane; // in its own row, above its parts
    const key = `${s.rank}/${lane}`;
    const row = found.get(key) ?? { rank: s.rank, lane, spans: [] };
    row.spans.push(s);
    found.set(key, row);
  }
  const order = (lane: string) => (lane === "step" ? 0 : lane.startsWith("comp") ? 1 : 2);
  const rows = [...found.values()].sort(
    (a, b) => a.rank - b.rank || order(a.lane) - order(b.lane) || a.lane.localeCompare(b.lane),
  );
  let last = -1;
  return rows.map((r) => {
    const first = r.rank !== last;
    last = r.rank;
    return {
      name: first ? `rank ${r.rank} · ${r.lane}` : `        ${r.lane}`,
      short: first ? `rank ${r.rank}` : `   ${r.lane.split(" ")[0]}`,
      lane: r.lane,
      first,
      spans: nested(r.spans),
    };
  });
}

function drawAxis(
  ctx: CanvasRenderingContext2D | Recorder,
  range: Range,
  left: number,
  width: number,
  tall: number,
): void {
  const span = range[1] - range[0];
  if (!(span > 0)) return;
  const rough = span / Math.max(2, (width - left) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? rough;
  ctx.strokeStyle = color("rule");
  ctx.fillStyle = color("soft");
  for (let i = Math.ceil(range[0] / step); i * step <= range[1]; i += 1) {
    const x = Math.round(left + ((i * step - range[0]) / span) * (width - left)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, AXIS - 6);
    ctx.lineTo(x, tall);
    ctx.stroke();
    const text = seconds(i * step);
    const wide = ctx.measureText(text).width;
    ctx.fillText(text, x + 3 + wide > width ? x - 3 - wide : x + 3, 8);
  }
}
