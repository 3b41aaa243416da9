// A timeline of spans in lanes, on a canvas: thousands of them stay smooth. Zoom with the buttons,
// + and −, or Ctrl and the wheel; move by dragging or with the arrows.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Span } from "../answers";
import { seconds } from "../format";
import { colour, theme } from "../theme";
import { useWidth } from "./frame";

const ROW = 20;
const GAP = 8;
const AXIS = 22;

export function kind(lane: string, what: string): string {
  for (const [axis, word] of [
    ["dp", "data"],
    ["tp", "tensor"],
    ["pp", "pipeline"],
  ] as const) {
    if (lane.startsWith(axis) || lane.startsWith(word)) return axis;
  }
  if (/^(comm|mess|send|receive)/.test(lane)) return lane.startsWith("comm") ? "dp" : "pp";
  if (/wait|bubble|idle/.test(what)) return "faint";
  if (/weight/.test(what)) return "weight";
  if (/backward/.test(what)) return "backward";
  if (/forward|recompute/.test(what)) return "forward";
  return "step";
}

interface Props {
  spans: Span[];
  label: string;
  end?: number;
  until?: number; // share one time scale among several
  shown?: string; // the part to show, as onShown said it: of an address
  onShown?: (shown: string) => void; // "" where all is shown
}

type Range = readonly [number, number];

// "0.012-0.034", in seconds: what of the whole is shown. Digits enough for the closest zoom.
function rangeText(range: Range, whole: Range): string {
  if (range[0] <= whole[0] && range[1] >= whole[1]) return "";
  return range.map((t) => Number(t.toPrecision(9)).toFixed(12).replace(/\.?0+$/, "")).join("-");
}
function rangeOf(text: string, whole: Range): Range {
  const [from = NaN, to = NaN] = text.split("-").map(Number);
  const begin = Math.max(whole[0], from);
  const end = Math.min(whole[1], to);
  return text !== "" && begin < end ? [begin, end] : whole; // an address may say anything
}

export function Lanes({ spans, label, until, shown = "", onShown }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [tip, setTip] = useState<{ x: number; y: number; text: string }>();
  const tone = theme.value;
  const rows = useMemo(() => lanesOf(spans), [spans]);
  const whole = useMemo(() => {
    const from = Math.min(...spans.map((s) => s.begin), until === undefined ? Infinity : 0);
    const to = until ?? Math.max(...spans.map((s) => s.end), 0);
    return [Number.isFinite(from) ? from : 0, to] as const;
  }, [spans, until]);
  const [range, setRange] = useState<Range>(() => rangeOf(shown, whole));
  useEffect(() => setRange(rangeOf(shown, whole)), [shown, whole]);
  // Told when it rests: browsers take few changes of an address in a second.
  const tell = useRef(onShown);
  tell.current = onShown;
  const text = rangeText(range, whole);
  useEffect(() => {
    if (text === shown) return;
    const timer = setTimeout(() => tell.current?.(text), 200);
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

  useEffect(() => {
    const c = canvas.current;
    const ctx = c?.getContext("2d");
    if (!c || !ctx || width === 0) return;
    c.width = width * devicePixelRatio;
    c.height = tall * devicePixelRatio;
    ctx.scale(devicePixelRatio, devicePixelRatio);
    ctx.font = "11px 'Inter Variable', sans-serif";
    ctx.textBaseline = "middle";
    drawAxis(ctx, range, left, width, tall);
    let y = AXIS;
    for (const row of rows) {
      if (row.first) y += GAP;
      ctx.fillStyle = colour("soft");
      const fits = ctx.measureText(row.name).width <= left - 6;
      ctx.fillText(fits ? row.name : row.short, 0, y + ROW / 2, left - 6);
      ctx.fillStyle = colour("faint");
      ctx.globalAlpha = 0.6;
      ctx.fillRect(left, y + 1, width - left, ROW - 2);
      ctx.globalAlpha = 1;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, y, width - left, ROW);
      ctx.clip();
      let drawn = -Infinity;
      for (const s of row.spans) {
        if (s.end < range[0] || s.begin > range[1]) continue;
        const x = left + (s.begin - range[0]) * scale;
        const end = left + (s.end - range[0]) * scale;
        if (end - drawn < 0.4) continue; // within a pixel that is painted
        drawn = end;
        const wide = Math.max(0.8, end - x - (end - x > 3 ? 0.6 : 0));
        const what = kind(row.lane, s.what);
        ctx.fillStyle = what === "faint" ? colour("rule") : colour(what);
        ctx.fillRect(x, y + 2, wide, ROW - 4);
        // Whole or not at all: the colour says what it is, and the pointer the rest.
        if (wide > 20 && ctx.measureText(s.what).width < wide - 6) {
          ctx.fillStyle = what === "faint" ? colour("soft") : colour("on-mark");
          ctx.fillText(s.what, Math.max(x, left) + 4, y + ROW / 2 + 0.5);
        }
      }
      ctx.restore();
      y += ROW;
    }
  }, [rows, range, width, tone]);

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
      if (!e.ctrlKey && !e.metaKey) return; // the page scrolls otherwise
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
        <button type="button" class="small" onClick={() => zoom(0.6)} aria-label="Zoom in">
          +
        </button>
        <button type="button" class="small" onClick={() => zoom(1.7)} aria-label="Zoom out">
          −
        </button>
        <button type="button" class="small" onClick={() => setRange(whole)}>
          All
        </button>
        <span class="note">{seconds(range[1] - range[0])} shown</span>
      </div>
      <div ref={box} class="lanes">
        {/* A picture that can be moved with the keyboard. */}
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-roledescription="timeline"
          aria-label={`${label}. Plus and minus zoom, arrows move, 0 shows all.`}
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

interface Row {
  name: string;
  short: string; // where there is no room for the name
  lane: string;
  first: boolean;
  spans: Span[];
}
function lanesOf(spans: Span[]): Row[] {
  const found = new Map<string, { rank: number; lane: string; spans: Span[] }>();
  for (const s of spans) {
    const key = `${s.rank}/${s.lane}`;
    const row = found.get(key) ?? { rank: s.rank, lane: s.lane, spans: [] };
    row.spans.push(s);
    found.set(key, row);
  }
  const order = (lane: string) => (lane.startsWith("comp") ? 0 : 1);
  const rows = [...found.values()].sort(
    (a, b) => a.rank - b.rank || order(a.lane) - order(b.lane) || a.lane.localeCompare(b.lane),
  );
  let last = -1;
  return rows.map((r) => {
    const first = r.rank !== last;
    last = r.rank;
    r.spans.sort((a, b) => a.begin - b.begin || b.end - a.end);
    return {
      name: first ? `rank ${r.rank} · ${r.lane}` : `        ${r.lane}`,
      short: first ? `rank ${r.rank}` : `   ${r.lane.split(" ")[0]}`,
      lane: r.lane,
      first,
      spans: r.spans,
    };
  });
}

function drawAxis(
  ctx: CanvasRenderingContext2D,
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
  ctx.strokeStyle = colour("rule");
  ctx.fillStyle = colour("soft");
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
