// State held by each rank: a full replica or a shard of parameters, gradients and optimizer state.
import { useRef } from "preact/hooks";
import type { Owner, Stage } from "../responses";
import { useValues } from "./save";

interface Props {
  stage: Stage;
  owners: Owner[];
  parameters: number;
}

const rankOf = (o: Owner): string =>
  o.cp_rank === undefined ? String(o.dp_rank) : `dp ${o.dp_rank} cp ${o.cp_rank}`;

export function Shards({ stage, owners, parameters }: Props) {
  const many = owners.length > 8;
  const rows = many ? [...owners.slice(0, 6), owners.at(-1)] : owners;
  const kinds = [
    ["params", stage.sharded.params],
    ["grads", stage.sharded.grads],
    ["optimizer", stage.sharded.optimizer],
  ] as const;
  const box = useRef<HTMLDivElement>(null);
  useValues(box, () => ({
    label: "First and last parameter of the shard of each rank",
    heads: ["rank", ...kinds.flatMap(([kind]) => [`${kind} from`, `${kind} to`])],
    rows: owners.map((o) => [
      rankOf(o),
      ...kinds.flatMap(([, sharded]) => (sharded ? [o.first, o.last] : [0, parameters])),
    ]),
  }));
  const long = owners.some((o) => o.cp_rank !== undefined);
  return (
    <div
      ref={box}
      class={`strips${long ? " long" : ""}`}
      role="img"
      aria-label={`${stage.name}: ${kinds.map(([k, s]) => `${k} ${s ? "sharded" : "replicated"}`).join(", ")}`}
    >
      {rows.map((o, i) =>
        o ? (
          <div key={rankOf(o)}>
            <span>
              {many && i === rows.length - 1 ? "… " : ""}
              {o.cp_rank === undefined ? "rank " : ""}
              {rankOf(o)}
            </span>
            <svg viewBox="0 0 1000 30" height="30" preserveAspectRatio="none" aria-hidden="true">
              {kinds.map(([kind, sharded], k) => (
                <g key={kind}>
                  <rect class="empty" x={0} y={k * 10} width={1000} height={8} />
                  <rect
                    class={`f-${kind}`}
                    x={sharded ? (o.first / parameters) * 1000 : 0}
                    y={k * 10}
                    width={sharded ? Math.max(2, ((o.last - o.first) / parameters) * 1000) : 1000}
                    height={8}
                  />
                </g>
              ))}
            </svg>
          </div>
        ) : null,
      )}
    </div>
  );
}
