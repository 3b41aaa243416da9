// Scatter plot of memory and throughput, one dot per plan.
import type { Plan } from "../responses";
import { bytes, count, ticks } from "../format";
import { axisColor, useAxes, usedAxes } from "./axes";
import { useWidth } from "./frame";
import { tokensRange } from "./plan_details";
import { useValues } from "./save";

// Color of a dot: the last axis that is used.
const outermost = (used: string[]): string => axisColor(used.at(-1) ?? "dp");

// Returns round axis marks that enclose `values`.
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
  const axes = useAxes();
  const tall = width < 400 ? 200 : 270;
  const left = 58;
  const xs = between(plans.map((p) => p.memory.total));
  const chosen = plans[pick];
  const range = chosen && tokensRange(chosen);
  const ys = between([...plans.map((p) => p.tokens_per_s ?? 0), ...(range ?? [])]);
  const x = (v: number) => left + (width - left - 22) * part(v, xs);
  const y = (v: number) => tall - (tall - 18) * part(v, ys);
  useValues(ref, () => ({
    label: "Plans",
    heads: [...axes, "zero", "memory", "tokens/s"],
    rows: plans.map((p) => [
      ...axes.map((axis) => Number((p.question as unknown as Record<string, unknown>)[axis] ?? 1)),
      p.question.zero,
      p.memory.total,
      p.tokens_per_s ?? null,
    ]),
  }));
  return (
    <div ref={ref} class="scatter">
      {width > 0 && (
        <svg
          width={width}
          height={tall + 40}
          viewBox={`0 0 ${width} ${tall + 40}`}
          role="img"
          aria-label={`${plans.length} plans, memory and tokens/s; the table below lists the same plans`}
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
            <text key={v} class="soft" x={x(v)} y={tall + 18} text-anchor="middle">
              {bytes(v)}
            </text>
          ))}
          <text class="soft" x={width} y={tall + 36} text-anchor="end">
            memory per GPU →
          </text>
          <text class="soft" x={left} y={10}>
            ↑ tokens/s
          </text>
          {plans.map((p, i) => {
            const q = p.question;
            const used = usedAxes(axes, q);
            return (
              <circle
                key={i}
                class={`f-${outermost(used)}${p.fits ? "" : " misfit"}${p.as_good_as_the_best === false ? " faded" : ""}`}
                cx={x(p.memory.total)}
                cy={y(p.tokens_per_s ?? 0)}
                r={5.5}
                onClick={() => choose(i)}
              >
                <title>{`${used.map((axis) => `${axis} ${q[axis]}, `).join("")}ZeRO-${q.zero}: ${bytes(p.memory.total)}, ${count(p.tokens_per_s)} tokens/s`}</title>
              </circle>
            );
          })}
          {chosen && range && (
            <line
              class="interval"
              x1={x(chosen.memory.total)}
              x2={x(chosen.memory.total)}
              y1={y(range[0])}
              y2={y(range[1])}
            />
          )}
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
