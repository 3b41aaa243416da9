// Curves of one run or of several laid over one another.
import type { Column, RunSeries } from "../answers";
import { bytes, seconds, whole } from "../format";
import { Chart, type Mark, type Series } from "./chart";
import { Card } from "./frame";

// The colours of runs, in the order in which they were chosen.
export const INKS = ["params", "dp", "optimizer", "activations", "pp", "backward"];

export const memoryOf = (p: RunSeries["predicted"]): Record<string, number | null> | undefined => {
  if (!p) return undefined;
  return "memory" in p && p.memory && typeof p.memory === "object"
    ? p.memory
    : (p as Record<string, number | null>);
};

// Columns of several runs over the union of their steps.
function joined(runs: [string, RunSeries][], column: string): { x: number[]; values: Column[] } {
  const x = [...new Set(runs.flatMap(([, r]) => r.steps))].sort((a, b) => a - b);
  const values = runs.map(([, r]) => {
    const at = new Map<number, number | null>();
    const list = (r[column] as Column | undefined) ?? [];
    r.steps.forEach((s, i) => at.set(s, list[i] ?? null));
    return x.map((s) => at.get(s) ?? null);
  });
  return { x, values };
}

const MARKS: Record<string, string> = {
  checkpoint: "activations",
  restart: "limit",
  skipped: "limit",
  evaluation: "soft",
  end: "soft",
};

export function RunChart({
  title,
  column,
  runs,
  nameOf,
  show,
  zero = false,
}: {
  title: string;
  column: string;
  runs: [string, RunSeries][];
  nameOf: (id: string) => string;
  show: (v: number | null) => string;
  zero?: boolean;
}) {
  const { x, values } = joined(runs, column);
  if (!values.some((v) => v.some((n) => n != null))) return null;
  const series: Series[] = runs.map(([id], i) => ({
    label: nameOf(id),
    colour: INKS[i % INKS.length] ?? "params",
    values: values[i] ?? [],
  }));
  const marks: Mark[] = (runs[0]?.[1].marks ?? []).map((m) => ({
    x: m.step,
    label: m.kind,
    colour: MARKS[m.kind] ?? "soft",
  }));
  return (
    <Card title={title}>
      <Chart
        label={`${title} over steps`}
        x={x}
        xLabel="step"
        series={series}
        show={show}
        zero={zero}
        marks={marks}
        height={210}
        showX={whole}
      />
    </Card>
  );
}

export function Exposure({ run }: { run: RunSeries }) {
  if (!some(run.comm_s)) return null;
  return (
    <Card title="Communication" note="seconds a step">
      <Chart
        label="Communication over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={seconds}
        showX={whole}
        series={[
          { label: "in collectives, hidden or not", colour: "dp", values: run.comm_s ?? [] },
          {
            label: "exposed: computation waits",
            colour: "limit",
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
    <Card title="Memory over steps" note="of the rank that writes">
      <Chart
        label="Memory over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={bytes}
        showX={whole}
        series={[
          { label: "peak", colour: "activations", values: run.mem_peak_bytes ?? [] },
          { label: "between steps", colour: "params", values: run.mem_bytes ?? [] },
          ...(peak == null
            ? []
            : [
                {
                  label: "predicted peak",
                  colour: "soft",
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
