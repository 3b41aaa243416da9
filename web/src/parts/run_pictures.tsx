// Pictures of a run: memory beside its prediction, phases of each rank.
import { bytes, plain, seconds } from "../format";
import { Card, Legend } from "./frame";
import { MEMORY_PARTS } from "./model";

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
  const sum = (m: Categories) => KEYS.reduce((all, [k]) => all + (m[k] ?? 0), 0);
  const most = Math.max(1, ...rows.map(([, m]) => Math.max(sum(m), m.peak ?? 0)));
  return (
    <Card title="Memory" note="predicted and measured">
      <div class="hbars">
        {rows.map(([name, m]) => (
          <div key={name}>
            <b>{name}</b>
            <span
              class="stack"
              role="img"
              aria-label={KEYS.map(([k]) => `${k} ${bytes(m[k])}`).join(", ")}
            >
              {KEYS.map(([k, c]) => (
                <i
                  key={k}
                  class={`c-${c}`}
                  style={{ width: `${(100 * (m[k] ?? 0)) / most}%` }}
                  title={`${k}: ${bytes(m[k])}`}
                />
              ))}
            </span>
            <span class="value">{bytes(m.peak ?? m.total ?? null)}</span>
          </div>
        ))}
      </div>
      <Legend items={MEMORY_PARTS} />
    </Card>
  );
}

export interface PhaseRow extends Partial<Record<string, number>> {
  rank: number;
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
  const sum = (r: PhaseRow) => PHASES.reduce((all, [k]) => all + Math.max(0, r[k] ?? 0), 0);
  const most = Math.max(1e-12, ...rows.map(sum));
  return (
    <Card
      title="Phases of each rank"
      note={
        stragglers.length
          ? `slow: ${stragglers.map((s) => `rank ${s.rank} (${plain(s.factor)}×)`).join(", ")}`
          : "seconds of a step"
      }
    >
      <div class="hbars">
        {rows.map((r) => (
          <div key={r.rank}>
            <b>rank {r.rank}</b>
            <span
              class="stack"
              role="img"
              aria-label={PHASES.map(([k, , what]) => `${what} ${seconds(r[k])}`).join(", ")}
            >
              {PHASES.map(([k, c, what]) => (
                <i
                  key={k}
                  class={`c-${c}`}
                  style={{ width: `${(100 * Math.max(0, r[k] ?? 0)) / most}%` }}
                  title={`${what}: ${seconds(r[k])}`}
                />
              ))}
            </span>
            <span class="value">{seconds(sum(r))}</span>
          </div>
        ))}
      </div>
      <Legend items={PHASES.map(([, c, what]) => [c, what] as const)} />
    </Card>
  );
}
