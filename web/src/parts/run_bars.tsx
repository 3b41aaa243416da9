// Bar charts of a run: predicted and measured memory, and the phases of each rank.
import type { PhaseRow, Straggler } from "../responses";
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
    <Card title="Memory" note="peak, and each part at its own maximum">
      <Bars
        show={bytes}
        rows={rows.map(([name, m]) => ({
          name,
          pieces: KEYS.map(([key, color]) => [color, key, m[key]] as const),
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
  ["graph_s", "forward", "CUDA graph"],
  ["optimizer_s", "step", "optimizer"],
  ["comm_exposed_s", "dp", "exposed communication"],
  ["bubble_s", "pp", "pipeline bubble"],
  ["data_s", "rest", "waiting for data"],
  ["other_s", "rule", "other"],
] as const;

// Makes the phases disjoint: subtracts the bubble from the exposed communication, which includes
// it, and adds the rest of the step as other_s.
function split(row: PhaseRow): PhaseRow {
  const bubble = row.bubble_s ?? 0;
  const of: PhaseRow = { ...row, comm_exposed_s: Math.max(0, (row.comm_exposed_s ?? 0) - bubble) };
  const known = PHASES.reduce((all, [key]) => all + Math.max(0, of[key] ?? 0), 0);
  return { ...of, other_s: Math.max(0, (row.step_s ?? 0) - known) };
}

// For example "backward 1.7×".
export const slowness = (s: Straggler): string =>
  `${s.phase ?? "step"} ${plain(Math.round(s.factor * 10) / 10)}×`;

export function Phases({ rows, stragglers }: { rows: PhaseRow[]; stragglers: Straggler[] }) {
  const ranks = rows.map(split);
  const kinds = PHASES.filter(([key]) => ranks.some((r) => (r[key] ?? 0) > 0));
  if (kinds.length === 0) return null; // the metrics have no times
  const slow = new Set(stragglers.map((s) => s.rank));
  const warning = stragglers
    .map((s) => `rank ${s.rank} is slow: ${slowness(s)}`)
    .join(", ");
  return (
    <Card
      title="Phases of each rank"
      note={warning ? <span class="bad-text">{warning}</span> : "seconds per step"}
    >
      <Bars
        show={seconds}
        rows={ranks.map((r) => {
          const pieces = kinds.map(([key, color, what]) => [color, what, r[key]] as const);
          return {
            name: `rank ${r.rank}`,
            pieces,
            value: seconds(sum(pieces)),
            mark: slow.has(r.rank) ? "slow" : undefined,
          };
        })}
      />
      <Legend items={kinds.map(([, color, what]) => [color, what] as const)} />
    </Card>
  );
}
