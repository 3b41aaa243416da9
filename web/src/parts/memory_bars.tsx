// Stacked bars of memory, one per ZeRO stage, with a line at the usable memory of the GPU.
import type { Stage } from "../responses";
import { bytes, ticks } from "../format";
import { useWidth } from "./frame";
import { MEMORY_PARTS, pieces } from "./model";
import { useValues } from "./save";

interface Props {
  stages: Stage[];
  capacity: number | null;
  fitsFrom: Record<string, number | null>;
  chosen: string;
  choose: (stage: string) => void;
}

export function MemoryBars({ stages, capacity, fitsFrom, chosen, choose }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const tall = width < 500 ? 210 : width < 700 ? 260 : 330;
  const top = 26;
  const left = width < 500 ? 46 : 62;
  const most = Math.max(
    ...stages.map((s) => s.needed * 1.06),
    (capacity ?? 0) * 1.08,
  );
  const lines = ticks(most);
  const scale = lines.at(-1) || 1;
  const y = (v: number) => top + (tall - top) * (1 - v / scale);
  const slot = Math.max(1, (width - left) / stages.length);
  const wide = Math.min(slot * 0.6, 150);
  const narrow = slot < 105; // short texts
  useValues(ref, () => ({
    label: "Memory of one GPU by stage",
    heads: ["stage", ...MEMORY_PARTS.map(([, what]) => what), "total", "with estimates", "fits"],
    rows: stages.map((s) => [
      s.name,
      ...pieces(s.memory).map(([, , v]) => v),
      s.memory.total,
      s.needed,
      s.fits ? "yes" : "no",
    ]),
  }));
  return (
    <div ref={ref} class="bars">
      {width > 0 && (
        <svg
          viewBox={`0 0 ${width} ${tall + 62}`}
          width={width}
          height={tall + 62}
          role="group"
          aria-label="Memory of one GPU by stage"
        >
          {lines.map((v) => (
            <g key={v}>
              <line class="grid" x1={left} x2={width} y1={y(v)} y2={y(v)} />
              <text class="soft" x={left - 8} y={y(v) + 4} text-anchor="end">
                {bytes(v)}
              </text>
            </g>
          ))}
          {stages.map((s, i) => {
            const x = left + slot * (i + 0.5);
            let base = 0;
            const from = fitsFrom[String(s.stage)];
            const estimate = s.needed - s.memory.total;
            // Above the dashed line if the line would cross the text.
            const above = y(s.memory.total) - 8;
            const limit = capacity == null ? Infinity : y(capacity);
            const label = limit > above - 14 && limit < above + 4 ? limit - 5 : above;
            const summary = [
              ...pieces(s.memory),
              ["guess", "activations and buffers, estimated,", estimate] as const,
            ]
              .filter(([, , v]) => v > 0)
              .map(([, what, v]) => `${what} ${bytes(v)}`)
              .join(", ");
            return (
              <g
                key={s.stage}
                class={`column${String(s.stage) === chosen ? " on" : ""}`}
                role="button"
                tabindex={0}
                aria-pressed={String(s.stage) === chosen}
                aria-label={`${s.name}: ${bytes(s.needed)}, ${s.fits ? "fits" : "does not fit"}; ${summary}`}
                onClick={() => choose(String(s.stage))}
                onKeyDown={(e) => {
                  if (e.key === "Enter" || e.key === " ") {
                    e.preventDefault();
                    choose(String(s.stage));
                  }
                }}
              >
                <rect
                  class="hit"
                  x={x - slot / 2 + 3}
                  y={0}
                  width={slot - 6}
                  height={tall + 60}
                  rx={10}
                />
                {pieces(s.memory).map(([color, what, v]) => {
                  base += v;
                  return (
                    <rect
                      key={color}
                      class={`f-${color}`}
                      x={x - wide / 2}
                      width={wide}
                      y={y(base)}
                      height={y(base - v) - y(base)}
                    >
                      <title>{`${what}: ${bytes(v)}`}</title>
                    </rect>
                  );
                })}
                {estimate > 0 && (
                  <>
                    <rect
                      class="guess"
                      x={x - wide / 2 + 1}
                      width={wide - 2}
                      y={y(s.needed)}
                      height={y(s.memory.total) - y(s.needed)}
                    >
                      <title>{`activations and buffers, estimated: ${bytes(estimate)}`}</title>
                    </rect>
                    <text
                      class="soft"
                      x={x}
                      y={Math.min(y(s.needed) - 5, label - 18)}
                      text-anchor="middle"
                      data-needed={s.needed}
                    >
                      {`≈ ${bytes(narrow ? Number(s.needed.toPrecision(3)) : s.needed)}`}
                    </text>
                  </>
                )}
                <text
                  class={`${narrow ? "middling" : "big"}${s.fits ? "" : " bad"}`}
                  x={x}
                  y={label}
                  text-anchor="middle"
                  data-total={s.stage}
                  data-value={s.memory.total}
                >
                  {bytes(s.memory.total)}
                </text>
                <text x={x} y={tall + 22} text-anchor="middle" font-weight="600">
                  {s.name}
                </text>
                <text
                  class={`soft ${s.fits ? "good" : ""}`}
                  x={x}
                  y={tall + 42}
                  text-anchor="middle"
                >
                  {from == null
                    ? narrow
                      ? "never"
                      : "never fits"
                    : from <= 1
                      ? narrow
                        ? "any DP"
                        : "fits at any DP"
                      : narrow
                        ? `DP ≥ ${from}`
                        : `fits from DP ${from}`}
                </text>
              </g>
            );
          })}
          {capacity != null && (
            <line class="limit" x1={left} x2={width} y1={y(capacity)} y2={y(capacity)}>
              <title>{`usable memory of the GPU: ${bytes(capacity)}`}</title>
            </line>
          )}
        </svg>
      )}
    </div>
  );
}
