// Use of the experts of a run: a heat map of experts × steps, on a canvas because there can be tens
// of thousands of cells, the same numbers as a table, and curves of the router.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ExpertLoads, RunSeries } from "../responses";
import { plain, share, whole } from "../format";
import { color, theme } from "../theme";
import { Chart } from "./chart";
import { drawnBy, Recorder } from "./drawing";
import { Card, useWidth } from "./frame";
import { valuesBy } from "./save";
import { Scroll } from "./table";

const LEFT = 44;
const BOTTOM = 36;
const TALL = 288; // of the cells, unless there are many experts
const TABLE = 16; // most columns of the table

// Color of an expert with `ratio` times the mean: the mean is in the middle of the scale, and every
// ratio has a place on it.
export const shade = (ratio: number): number => ratio / (1 + ratio);
const SCALE = [0, 0.25, 0.5, 1, 2, 4];

const rgb = (hex: string): number[] => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function mixer(): (part: number) => string {
  const [none, all] = [rgb(color("faint")), rgb(color("ep"))];
  return (part) =>
    `rgb(${none.map((v, i) => Math.round(v + ((all[i] ?? 0) - v) * part)).join(", ")})`;
}

const stepsOf = (d: ExpertLoads, c: number): string =>
  d.from[c] === d.to[c] ? `step ${whole(d.to[c])}` : `steps ${whole(d.from[c])} to ${whole(d.to[c])}`;
const nameOf = (layer: string): string => (layer === "" ? "all layers" : layer);

// Returns the sums of neighboring columns, at most `most`.
function merged(d: ExpertLoads, most: number): ExpertLoads {
  const per = Math.ceil(d.to.length / most);
  if (per <= 1) return d;
  const starts = d.to.flatMap((_, c) => (c % per === 0 ? [c] : []));
  const sums = (row: number[]) =>
    starts.map((c) => row.slice(c, c + per).reduce((a, b) => a + b, 0));
  return {
    ...d,
    from: starts.map((c) => d.from[c] ?? 0),
    to: starts.map((c) => d.to[Math.min(c + per, d.to.length) - 1] ?? 0),
    tokens: d.tokens.map(sums),
    mean: sums(d.mean),
  };
}

interface Pen {
  ctx: CanvasRenderingContext2D | Recorder;
  width: number;
  row: number;
}

function paint(d: ExpertLoads, { ctx, width, row }: Pen): void {
  const mix = mixer();
  const tall = row * d.tokens.length;
  const x = edges(d, width);
  d.tokens.forEach((tokens, e) =>
    tokens.forEach((n, c) => {
      const [from = 0, to = 0] = [x[c], x[c + 1]];
      const mean = d.mean[c] ?? 0;
      ctx.fillStyle = mix(shade(mean > 0 ? n / mean : 0));
      ctx.fillRect(from, e * row, to - from, row);
    }),
  );
  ctx.font = "11px 'Inter Variable', sans-serif";
  ctx.textBaseline = "middle";
  ctx.fillStyle = color("soft");
  ctx.textAlign = "right";
  const each = [1, 2, 4, 8, 16, 32, 64, 128].find((n) => n * row >= 14) ?? 256;
  for (let e = 0; e < d.tokens.length; e += each) ctx.fillText(String(e), LEFT - 6, (e + 0.5) * row);
  // Steps at which columns end, where there is room.
  ctx.textAlign = "center";
  let free = LEFT - 20;
  d.to.forEach((step, c) => {
    const at = ((x[c] ?? 0) + (x[c + 1] ?? 0)) / 2;
    const text = whole(step);
    const half = ctx.measureText(text).width / 2;
    if (at - half < free || at + half > width) return;
    ctx.fillText(text, at, tall + 10);
    free = at + half + 24;
  });
  ctx.fillText("step", (LEFT + width) / 2, tall + 27);
}

// Borders of the columns, in whole pixels so that no gaps are seen. A column begins where the
// previous one ends.
function edges(d: ExpertLoads, width: number): number[] {
  const first = (d.from[0] ?? 1) - 1;
  const span = Math.max(1, (d.to.at(-1) ?? 1) - first);
  const at = (step: number) => Math.round(LEFT + ((step - first) / span) * (width - LEFT));
  return [LEFT, ...d.to.map(at)];
}

function HeatMap({ loads: d }: { loads: ExpertLoads }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const tone = theme.value;
  const experts = d.tokens.length;
  const row = Math.max(1, Math.min(24, Math.floor(TALL / Math.max(1, experts))));
  const tall = row * experts + BOTTOM;
  const [cell, setCell] = useState<readonly [number, number]>(); // expert, column
  const [tip, setTip] = useState<{ x: number; y: number }>();
  useEffect(() => {
    const c = canvas.current;
    const ctx = c?.getContext("2d");
    if (!c || !ctx || width === 0) return;
    c.width = width * devicePixelRatio;
    c.height = tall * devicePixelRatio;
    ctx.scale(devicePixelRatio, devicePixelRatio);
    paint(d, { ctx, width, row });
    drawnBy(c, () => {
      const pen = new Recorder();
      paint(d, { ctx: pen, width, row });
      return { width, height: tall, shapes: pen.shapes };
    });
  }, [d, width, tone]);
  const text = (at: readonly [number, number]): string => {
    const tokens = d.tokens[at[0]]?.[at[1]] ?? 0;
    const mean = d.mean[at[1]] ?? 0;
    const times = mean > 0 ? `, ${plain(Number((tokens / mean).toFixed(3)))} times the mean` : "";
    return `expert ${at[0]}, ${stepsOf(d, at[1])}: ${whole(tokens)} tokens${times}`;
  };
  const last = d.to.length - 1;
  const keys = (e: KeyboardEvent) => {
    const [expert, column] = cell ?? [0, last];
    const far = e.shiftKey ? 10 : 1;
    const clamp = (v: number, most: number) => Math.max(0, Math.min(most, v));
    const moves: Record<string, readonly [number, number]> = {
      ArrowUp: [expert - far, column],
      ArrowDown: [expert + far, column],
      ArrowLeft: [expert, column - far],
      ArrowRight: [expert, column + far],
      Home: [expert, 0],
      End: [expert, last],
    };
    const to = moves[e.key];
    if (!to) return;
    e.preventDefault();
    // The first key selects a cell, the next ones move.
    const next = cell ? ([clamp(to[0], experts - 1), clamp(to[1], last)] as const) : ([0, last] as const);
    setCell(next);
    const x = edges(d, width);
    setTip({ x: x[next[1]] ?? 0, y: (next[0] + 1) * row });
  };
  const leave = () => {
    setCell(undefined);
    setTip(undefined);
  };
  const shown = cell && cell[0] < experts && cell[1] <= last ? cell : undefined;
  return (
    <div ref={box} class="lanes heat">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-roledescription="heat map"
        aria-label={`Tokens of ${experts} experts of ${nameOf(d.layer)}, ${stepsOf({ ...d, to: [d.to.at(-1) ?? 0] }, 0)}. Use the arrow keys to read values.`}
        style={{ height: `${tall}px` }}
        onKeyDown={keys}
        onBlur={leave}
        onPointerLeave={leave}
        onPointerMove={(e) => {
          const x = edges(d, width);
          const column = x.findLastIndex((from) => from <= e.offsetX);
          const expert = Math.floor(e.offsetY / row);
          if (e.offsetX < LEFT || column > last || expert >= experts) return leave();
          setCell([expert, column]);
          setTip({ x: e.offsetX, y: e.offsetY });
        }}
      />
      {shown && tip && (
        <div class="tip" style={{ left: `${Math.max(0, Math.min(tip.x + 12, width - 200))}px`, top: `${tip.y + 14}px` }}>
          {text(shown)}
        </div>
      )}
      <span class="unseen" role="status">
        {shown ? text(shown) : ""}
      </span>
    </div>
  );
}

function LoadTable({ loads }: { loads: ExpertLoads }) {
  const d = merged(loads, TABLE);
  return (
    <Scroll label="Tokens of each expert">
      <table class="loads">
        <thead>
          <tr>
            <th scope="col">expert</th>
            {d.to.map((_, c) => (
              <th scope="col" key={c}>
                {stepsOf(d, c)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {d.tokens.map((tokens, e) => (
            <tr key={e}>
              <th scope="row">{e}</th>
              {tokens.map((n, c) => (
                <td key={c} data-value={n}>
                  {whole(n)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Scale() {
  const tone = theme.value;
  const mix = mixer();
  return (
    <ul class="legend heat-scale" data-theme-of={tone}>
      {SCALE.map((ratio) => (
        <li key={ratio}>
          <i style={{ background: mix(shade(ratio)) }} aria-hidden="true" />
          {ratio === 1 ? "mean" : `${ratio}×`}
        </li>
      ))}
    </ul>
  );
}

export function ExpertCards({ run, table }: { run: RunSeries; table: boolean }) {
  const d = run.experts;
  return d?.tokens ? <Cards loads={d} table={table} /> : null;
}

function Cards({ loads: d, table }: { loads: ExpertLoads; table: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(d);
  latest.current = d;
  useEffect(() => {
    if (!box.current) return;
    valuesBy(box.current, () => {
      const { layer, from, to, tokens } = latest.current;
      return {
        label: `tokens of the experts of ${nameOf(layer)}`,
        heads: ["first step", "last step", ...tokens.map((_, e) => `expert ${e}`)],
        rows: to.map((last, c) => [from[c] ?? null, last, ...tokens.map((row) => row[c] ?? null)]),
      };
    });
  }, []);
  const even = Math.log(d.tokens.length);
  const curve = { x: d.to, xLabel: "step", height: 190, showX: whole };
  const line = { color: "ep", values: d.imbalance };
  return (
    <>
      <Card
        title="Tokens of each expert"
        note={`${nameOf(d.layer)}; ${plain(Number((d.imbalance.at(-1) ?? 1).toFixed(2)))} times the mean for the busiest, at the end`}
      >
        <div ref={box}>{table ? <LoadTable loads={d} /> : <HeatMap loads={d} />}</div>
        {!table && <Scale />}
      </Card>
      <div class="two">
        <Card title="Busiest expert" note="tokens over the mean">
          <Chart
            {...curve}
            label="Tokens of the busiest expert over the mean"
            show={plain}
            series={[{ ...line, label: "busiest / mean" }]}
          />
        </Card>
        <Card title="Entropy of the router" note="nats; the dashed line is an even choice">
          <Chart
            {...curve}
            label="Entropy of the router"
            show={plain}
            zero
            series={[
              { ...line, label: "entropy", values: d.entropy },
              { label: "even", color: "soft", dash: [5, 5], width: 1.5, values: d.to.map(() => even) },
            ]}
          />
        </Card>
        {d.dropped.some((v) => v > 0) && (
          <Card title="Dropped tokens" note="share of the pairs of a token and an expert">
            <Chart
              {...curve}
              label="Dropped pairs of a token and an expert"
              show={(v) => share(v)}
              zero
              series={[{ ...line, label: "dropped", values: d.dropped }]}
            />
          </Card>
        )}
      </div>
    </>
  );
}
