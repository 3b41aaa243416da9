// Pictures of a run: memory beside its prediction, phases of each rank.
import type { PhaseRow } from "../answers";
import { bytes, plain, seconds } from "../format";
import { Card, Legend } from "./frame";
import { MEMORY_PARTS } from "./model";
import { Bars, sum } from "./stack";

type Categories = Record<string, number | null>;
const KEYS = [
  ["params", "params"],
  ["grads", "grads"],
  ["optimizer", "optimizer"],
  ["activations", "activations"],
  ["buffers", "rest"],
  ["temporary", "rest"],
] as const;

export function MemoryCompared({
  measured,
  predicted,
}: {
  measured: Categories | null | undefined;
  predicted: Categories | undefined;
}) {
  if (!measured && !predicted) return null;
  const rows = (
    [
      ["predicted", predicted],
      ["measured", measured],
    ] as const
  ).filter((r): r is [(typeof r)[0], Categories] => !!r[1]);
  return (
    <Card title="Memory" note="predicted and measured">
      <Bars
        show={bytes}
        rows={rows.map(([name, m]) => ({
          name,
          pieces: KEYS.map(([key, colour]) => [colour, key, m[key]] as const),
          reach: m.peak ?? 0,
          value: bytes(m.peak ?? m.total ?? null),
        }))}
      />
      <Legend items={MEMORY_PARTS} />
    </Card>
  );
}

const PHASES = [
  ["forward_s", "forward", "forward"],
  ["backward_s", "backward", "backward"],
  ["comm_exposed_s", "dp", "exposed communication"],
  ["optimizer_s", "step", "optimizer"],
  ["data_s", "rest", "data"],
] as const;

export function Phases({
  rows,
  stragglers,
}: {
  rows: PhaseRow[];
  stragglers: { rank: number; factor: number }[];
}) {
  return (
    <Card
      title="Phases of each rank"
      note={
        stragglers.length
          ? `slow: ${stragglers.map((s) => `rank ${s.rank} (${plain(s.factor)}×)`).join(", ")}`
          : "seconds of a step"
      }
    >
      <Bars
        show={seconds}
        rows={rows.map((r) => {
          const pieces = PHASES.map(([key, colour, what]) => [colour, what, r[key]] as const);
          return { name: `rank ${r.rank}`, pieces, value: seconds(sum(pieces)) };
        })}
      />
      <Legend items={PHASES.map(([, c, what]) => [c, what] as const)} />
    </Card>
  );
}
