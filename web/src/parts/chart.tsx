// Series over steps or sizes, by uPlot. Its values are read with the pointer, or with the arrows.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { colour, theme } from "../theme";
import { useWidth } from "./frame";

export interface Series {
  label: string;
  colour: string; // a name of the palette, or a colour
  values: (number | null | undefined)[];
  dash?: number[];
  width?: number;
  points?: boolean;
}
export interface Mark {
  x: number;
  label: string;
  colour: string;
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
  rest?: number; // what the legend shows while no pointer is there; left out: the last
}

const painted = (name: string) => (/^[a-z]+$/.test(name) ? colour(name) : name);

function drawMarks(u: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = u;
  const right = bbox.left + bbox.width;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px 'Inter Variable', sans-serif`;
  ctx.textAlign = "left";
  let lastEnd = -Infinity;
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark.x, "x", true));
    if (x < bbox.left || x > right) continue; // out of what is zoomed into
    ctx.strokeStyle = ctx.fillStyle = painted(mark.colour);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    // Above the curves, which they would lie on, and to the left where the right is too near.
    const wide = ctx.measureText(mark.label).width;
    const from = Math.max(bbox.left, Math.min(x - 2 * devicePixelRatio, right - wide));
    if (mark.label && from > lastEnd) {
      ctx.fillText(mark.label, from, bbox.top - 5 * devicePixelRatio);
      lastEnd = from + wide + 6 * devicePixelRatio;
    }
  }
  ctx.restore();
}

export function Chart(props: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | undefined>(undefined);
  const marks = useRef<Mark[]>([]);
  marks.current = props.marks ?? [];
  const rest = useRef<number | undefined>(props.rest);
  rest.current = props.rest;
  const { height = 260 } = props;
  const tone = theme.value;
  // A new plot when its form changes; new numbers only go into it.
  const form = JSON.stringify([
    props.series.map((s) => [s.label, s.colour, s.dash, s.width, s.points]),
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
      stroke: colour("soft"),
      font: "12px 'Inter Variable', sans-serif",
      grid: { stroke: colour("rule"), width: 1 },
      ticks: { stroke: colour("rule"), width: 1, size: 5 },
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
            ? { distr: 3 }
            : { range: (_u, low, high) => bounds(low, high, zero ?? false, top) },
        },
        axes: [
          {
            ...axis,
            label: props.xLabel,
            size: 34,
            labelSize: 18,
            labelGap: 0,
            labelFont: "12px 'Inter Variable', sans-serif",
            values: (_u, at) => at.map((v) => (v == null ? "" : showX(v))),
          },
          {
            ...axis,
            size: 66,
            ...(logY
              ? { splits: (_u: uPlot, _i: number, low: number, high: number) => tens(low, high) }
              : {}),
            values: (_u, at) => at.map((v) => (v == null ? "" : show(v))),
          },
        ],
        series: [
          { label: props.xLabel, value: (_u, v) => (v == null ? "–" : showX(v)) },
          ...props.series.map((s) => ({
            label: s.label,
            stroke: painted(s.colour),
            width: s.width ?? 2,
            spanGaps: true,
            points: { show: s.points ?? false, size: 5 },
            ...(s.dash ? { dash: s.dash } : {}),
            value: (_u: uPlot, v: number | null) => show(v),
          })),
        ],
        hooks: {
          draw: [(u) => drawMarks(u, marks.current)],
          ready: [(u) => restLegend(u, rest.current)],
          setData: [(u) => restLegend(u, rest.current)],
          setCursor: [(u) => u.cursor.idx == null && restLegend(u, rest.current)],
        },
      },
      data,
      box.current,
    );
    plot.current = made;
    return () => {
      plot.current = undefined;
      made.destroy();
    };
  }, [form]);
  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [JSON.stringify(data), JSON.stringify(props.marks), props.rest]);
  const at = useRef<number | undefined>(undefined); // where the arrows have gone
  const [said, setSaid] = useState("");
  const look = (index: number | undefined) => {
    const u = plot.current;
    const x = index === undefined ? undefined : props.x[index];
    at.current = x === undefined ? undefined : index;
    if (!u || index === undefined || x === undefined) {
      u?.setCursor({ left: -10, top: -10 });
      setSaid("");
      return;
    }
    u.setCursor({ left: u.valToPos(x, "x"), top: u.over.clientHeight / 2 });
    const values = props.series.map((s) => `${s.label} ${props.show(s.values[index] ?? null)}`);
    setSaid(`${props.xLabel} ${(props.showX ?? String)(x)}: ${values.join(", ")}`);
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
    look(to);
  };
  return (
    <>
      <div
        ref={box}
        class="chart"
        tabIndex={0}
        role="application"
        aria-roledescription="chart"
        aria-label={`${props.label}. Arrows read its values.`}
        onKeyDown={keys}
        onBlur={() => at.current !== undefined && look(undefined)}
      />
      <span class="unseen" role="status">
        {said}
      </span>
    </>
  );
}

function restLegend(u: uPlot, index: number | undefined): void {
  const last = u.data[0].length - 1;
  if (last >= 0) u.setLegend({ idx: index ?? last }, false);
}

function tens(low: number, high: number): number[] {
  const out: number[] = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); 10 ** p <= high * 1.000001; p += 1)
    out.push(10 ** p);
  return out;
}

function bounds(
  low: number | null,
  high: number | null,
  zero: boolean,
  top?: number,
): [number, number] {
  const least = zero ? 0 : (low ?? 0);
  const most = top ?? high ?? 1;
  const room = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
  return [zero ? 0 : least - room, top ?? most + room];
}
