// Memory against speed: a dot for each plan.
import type { Plan } from "../answers";
import { bytes, count, ticks } from "../format";
import { useWidth } from "./frame";

const TALL = 270;

// Round numbers around what there is, and where a value lies among them.
function between(values: number[]): number[] {
  const low = Math.min(...values);
  const high = Math.max(...values, low + 1);
  const step = ticks((high - low) * 1.2)[1] ?? 1;
  const first = Math.max(0, Math.floor(low / step - 0.3));
  return Array.from(
    { length: Math.ceil(high / step + 0.2) - first + 1 },
    (_, i) => (first + i) * step,
  );
}
const part = (v: number, marks: number[]): number => {
  const [low, high] = [marks[0] ?? 0, marks.at(-1) ?? 1];
  return (v - low) / (high - low || 1);
};

export function Scatter({
  plans,
  pick,
  choose,
}: {
  plans: Plan[];
  pick: number;
  choose: (index: number) => void;
}) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const left = 58;
  const xs = between(plans.map((p) => p.memory.total));
  const ys = between(plans.map((p) => p.tokens_per_s ?? 0));
  const x = (v: number) => left + (width - left - 22) * part(v, xs);
  const y = (v: number) => TALL - (TALL - 18) * part(v, ys);
  const chosen = plans[pick];
  return (
    <div ref={ref} class="scatter">
      {width > 0 && (
        <svg
          width={width}
          height={TALL + 40}
          viewBox={`0 0 ${width} ${TALL + 40}`}
          role="img"
          aria-label={`${plans.length} plans, memory against tokens a second; the table below has the same`}
        >
          {ys.map((v) => (
            <g key={v}>
              <line class="grid" x1={left} x2={width} y1={y(v)} y2={y(v)} />
              <text class="soft" x={left - 8} y={y(v) + 4} text-anchor="end">
                {count(v)}
              </text>
            </g>
          ))}
          {xs.map((v) => (
            <text key={v} class="soft" x={x(v)} y={TALL + 18} text-anchor="middle">
              {bytes(v)}
            </text>
          ))}
          <text class="soft" x={width} y={TALL + 36} text-anchor="end">
            memory of a GPU →
          </text>
          <text class="soft" x={left} y={10}>
            ↑ tokens a second
          </text>
          {plans.map((p, i) => {
            const q = p.question;
            const colour = q.pp > 1 ? "pp" : q.tp > 1 ? "tp" : "dp";
            return (
              <circle
                key={i}
                class={`f-${colour}${p.fits ? "" : " misfit"}`}
                cx={x(p.memory.total)}
                cy={y(p.tokens_per_s ?? 0)}
                r={5.5}
                onClick={() => choose(i)}
              >
                <title>{`dp ${q.dp}, tp ${q.tp}, pp ${q.pp}, ZeRO ${q.zero}: ${bytes(p.memory.total)}, ${count(p.tokens_per_s)} tokens/s`}</title>
              </circle>
            );
          })}
          {chosen && (
            <circle
              class="on"
              fill="none"
              cx={x(chosen.memory.total)}
              cy={y(chosen.tokens_per_s ?? 0)}
              r={8}
              pointer-events="none"
            />
          )}
        </svg>
      )}
    </div>
  );
}
