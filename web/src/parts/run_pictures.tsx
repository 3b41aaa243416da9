// Pictures of a run: memory beside its prediction, phases of each rank.
import type { PhaseRow, Straggler } from "../answers";
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
  ["graph_s", "forward", "one CUDA graph"],
  ["optimizer_s", "step", "optimizer"],
  ["comm_exposed_s", "dp", "waits for communication"],
  ["bubble_s", "pp", "waits for other stages"],
  ["data_s", "rest", "waits for data"],
  ["other_s", "rule", "other"],
] as const;

// What the pieces are made of: the bubble is taken out of the communication that it is part of, and
// what is left of the step is the last piece.
function split(row: PhaseRow): PhaseRow {
  const bubble = row.bubble_s ?? 0;
  const of: PhaseRow = { ...row, comm_exposed_s: Math.max(0, (row.comm_exposed_s ?? 0) - bubble) };
  const known = PHASES.reduce((all, [key]) => all + Math.max(0, of[key] ?? 0), 0);
  return { ...of, other_s: Math.max(0, (row.step_s ?? 0) - known) };
}

// "backward 1.7 ×"
export const slowness = (s: Straggler): string =>
  `${s.phase ?? "its step"} ${plain(Math.round(s.factor * 10) / 10)} ×`;

export function Phases({ rows, stragglers }: { rows: PhaseRow[]; stragglers: Straggler[] }) {
  const ranks = rows.map(split);
  const kinds = PHASES.filter(([key]) => ranks.some((r) => (r[key] ?? 0) > 0));
  const slow = new Set(stragglers.map((s) => s.rank));
  const said = stragglers
    .map((s) => `rank ${s.rank} is slow: ${slowness(s)}`)
    .join(", ");
  return (
    <Card
      title="Phases of each rank"
      note={said ? <span class="bad-text">{said}</span> : "seconds of a step"}
    >
      <Bars
        show={seconds}
        rows={ranks.map((r) => {
          const pieces = kinds.map(([key, colour, what]) => [colour, what, r[key]] as const);
          return {
            name: `rank ${r.rank}`,
            pieces,
            value: seconds(sum(pieces)),
            mark: slow.has(r.rank) ? "slow" : undefined,
          };
        })}
      />
      <Legend items={kinds.map(([, colour, what]) => [colour, what] as const)} />
    </Card>
  );
}
