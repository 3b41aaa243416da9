// Line charts of one run, or of several overlaid runs.
import type { Column, RunSeries } from "../responses";
import { bytes, count, seconds, whole } from "../format";
import { Chart, type Mark, type Series } from "./chart";
import { Card } from "./frame";

// Colors of the runs, in the order of selection.
export const RUN_COLORS = ["params", "dp", "optimizer", "activations", "pp", "backward"];

export const memoryOf = (p: RunSeries["predicted"]): Record<string, number | null> | undefined => {
  if (!p) return undefined;
  return "memory" in p && p.memory && typeof p.memory === "object"
    ? p.memory
    : (p as Record<string, number | null>);
};

// Quantity on the x axis of the curves.
export type Axis = "step" | "tokens" | "time";
const AXES: Record<Axis, { column: string; label: string; show: (v: number) => string }> = {
  step: { column: "steps", label: "step", show: whole },
  tokens: { column: "tokens_total", label: "tokens", show: count },
  time: { column: "elapsed_s", label: "time in steps", show: seconds },
};
const columnOf = (run: RunSeries, name: string): Column => (run[name] as Column | undefined) ?? [];

// Returns the columns over the union of their x values.
function joined(columns: { x: Column; values: Column }[]): { x: number[]; values: Column[] } {
  const known = columns.flatMap((c) => c.x.filter((v): v is number => v != null));
  const x = [...new Set(known)].sort((a, b) => a - b);
  const values = columns.map((c) => {
    const at = new Map<number, number | null>();
    c.x.forEach((v, i) => v != null && at.set(v, c.values[i] ?? null));
    return x.map((v) => at.get(v) ?? null);
  });
  return { x, values };
}

// Exponential moving average with weight `by` of the past, without bias towards the start.
function smoothed(values: Column, by: number): Column {
  let sum = 0;
  let weight = 0;
  return values.map((v) => {
    if (v == null) return null;
    sum = by * sum + (1 - by) * v;
    weight = by * weight + (1 - by);
    return sum / weight;
  });
}

// Colors and label priorities. Evaluations are not marked: their losses are drawn.
const MARKS: Record<string, { color: string; weight: number }> = {
  restart: { color: "limit", weight: 3 },
  end: { color: "soft", weight: 3 },
  skipped: { color: "limit", weight: 2 },
  checkpoint: { color: "activations", weight: 1 },
};
function marksOf(run: RunSeries, x: Column): Mark[] {
  return (run.marks ?? []).flatMap((m) => {
    const kind = MARKS[m.kind];
    const at = x[run.steps.findLastIndex((s) => s <= m.step)] ?? x[0];
    if (!kind || at == null) return [];
    return [{ x: at, label: m.kind === "end" ? (m.text ?? m.kind) : m.kind, ...kind }];
  });
}

export interface CurveProps {
  title: string;
  column: string;
  also?: string; // column drawn with points and dashes, such as the validation loss
  alsoLabel?: string;
  runs: [string, RunSeries][];
  nameOf: (id: string) => string;
  show: (v: number | null) => string;
  zero?: boolean;
  axis?: Axis;
  smoothing?: number; // 0 to below 1; 0: none
  log?: boolean;
}

export function RunChart(props: CurveProps) {
  const { title, column, runs, nameOf, show, zero = false, smoothing = 0, log = false } = props;
  const { also, alsoLabel = "", axis = "step" } = props;
  const across = AXES[axis];
  const drawn = (values: Column) => (log ? values.map((v) => (v != null && v > 0 ? v : null)) : values);
  const curves = runs.flatMap(([id, run], i) => {
    const x = columnOf(run, across.column);
    const name = nameOf(id);
    const paint = RUN_COLORS[i % RUN_COLORS.length] ?? "params";
    const raw = drawn(columnOf(run, column));
    const list: (Omit<Series, "values"> & { x: Column; values: Column })[] = [];
    if (smoothing > 0)
      list.push({ label: `${name}, raw`, color: paint, faint: true, width: 1, x, values: raw });
    list.push({
      label: name,
      color: paint,
      x,
      values: smoothing > 0 ? smoothed(raw, smoothing) : raw,
    });
    if (also && some(columnOf(run, also))) {
      const values = drawn(columnOf(run, also));
      const dash = [6, 4];
      list.push({ label: `${name}, ${alsoLabel}`, color: paint, dash, points: true, x, values });
    }
    return list;
  });
  const { x, values } = joined(curves);
  if (!values.some((v) => v.some((n) => n != null))) return null;
  const first = runs[0]?.[1];
  return (
    <Card title={title}>
      <Chart
        label={`${title} over ${across.label}`}
        x={x}
        xLabel={across.label}
        series={curves.map((c, i) => ({ ...c, values: values[i] ?? [] }))}
        show={show}
        zero={zero}
        logY={log}
        marks={first ? marksOf(first, columnOf(first, across.column)) : []}
        height={210}
        showX={across.show}
      />
    </Card>
  );
}

export function Exposure({ run }: { run: RunSeries }) {
  if (!some(run.comm_s)) return null;
  return (
    <Card title="Communication" note="seconds per step">
      <Chart
        label="Communication over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={seconds}
        showX={whole}
        series={[
          { label: "total", color: "dp", values: run.comm_s ?? [] },
          {
            label: "exposed",
            color: "limit",
            values: run.comm_exposed_s ?? [],
          },
        ]}
      />
    </Card>
  );
}

export const some = (column: Column | undefined): boolean => !!column?.some((v) => v != null);

export function MemoryOverSteps({ run }: { run: RunSeries }) {
  if (!some(run.mem_peak_bytes)) return null;
  const peak = memoryOf(run.predicted)?.peak;
  return (
    <Card title="Memory over steps" note="of rank 0">
      <Chart
        label="Memory over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={bytes}
        showX={whole}
        series={[
          { label: "peak", color: "activations", values: run.mem_peak_bytes ?? [] },
          { label: "between steps", color: "params", values: run.mem_bytes ?? [] },
          ...(peak == null
            ? []
            : [
                {
                  label: "predicted peak",
                  color: "soft",
                  dash: [5, 5],
                  width: 1.5,
                  values: run.steps.map(() => peak),
                },
              ]),
        ]}
      />
    </Card>
  );
}
