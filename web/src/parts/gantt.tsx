// Gantt chart of a schedule: one row per GPU, one block per pass, and a bar with the peak number of
// micro-batches whose activations the GPU holds. A dark base marks the passes of later chunks.
import { plain, share } from "../format";
import { useWidth } from "./frame";
import { useValues } from "./save";

interface Pass {
  kind: string;
  micro: number;
  chunk: number;
  begin: number;
  end: number;
}
export interface Schedule {
  schedule: string;
  error?: string;
  ranks: number;
  micros: number;
  chunks: number;
  actions: Pass[][];
  step: number;
  bubble: number;
  held_micro_batches: number[]; // per GPU; fractional if a GPU has several chunks
  command?: string | null;
}

const CLASS: Record<string, string> = {
  forward: "forward",
  backward: "backward",
  backward_input: "backward",
  backward_weight: "weight",
};

const NAMES: Record<string, string> = {
  backward_input: "backward (input gradients)",
  backward_weight: "backward (weight gradients)",
};

interface Props {
  schedule: Schedule;
  longest: number; // step time at the end of the scale
  most: number; // micro-batches at the end of the scale of the bars
}
export function Gantt({ schedule, longest, most }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const left = 34;
  const right = width < 520 ? 44 : 74;
  const row = Math.max(13, Math.min(26, 300 / schedule.ranks));
  const scale = Math.max(1, width - left - right) / longest;
  const held = schedule.held_micro_batches;
  const base = (chunk: number) =>
    chunk === 0 ? 0 : Math.max(3, (0.4 * (row - 2) * chunk) / (schedule.chunks - 1));
  const tall = row * schedule.ranks;
  useValues(ref, () => ({
    label: schedule.schedule,
    heads: ["GPU", "pass", "micro-batch", "chunk", "begin", "end"],
    rows: schedule.actions.flatMap((passes, gpu) =>
      passes.map((p) => [gpu, p.kind, p.micro, p.chunk, p.begin, p.end]),
    ),
  }));
  return (
    <div ref={ref} class="gantt">
      {width > 0 && (
        <svg
          width={width}
          height={tall + 4}
          viewBox={`0 0 ${width} ${tall + 4}`}
          role="img"
          aria-label={`${schedule.schedule}: step ${plain(schedule.step)}, bubble ${share(schedule.bubble)}, micro-batches whose activations each GPU holds at peak: ${held.map(plain).join(", ")}`}
        >
          {schedule.actions.map((passes, r) => (
            <g key={r}>
              <text class="soft" x={0} y={r * row + row / 2 + 4}>
                {r}
              </text>
              <rect
                class="empty"
                x={left}
                y={r * row + 1}
                width={schedule.step * scale}
                height={row - 2}
              />
              {passes.map((p) => {
                const kind = CLASS[p.kind];
                if (!kind) return null;
                const x = left + p.begin * scale;
                const wide = (p.end - p.begin) * scale;
                const label = String(p.micro);
                return (
                  <g key={`${p.kind}${p.micro}.${p.chunk}`}>
                    <rect
                      class={`pass f-${kind}`}
                      x={x}
                      y={r * row + 1}
                      width={Math.max(0.3, wide)}
                      height={row - 2}
                      data-chunk={p.chunk}
                    >
                      <title>{`${NAMES[p.kind] ?? p.kind}, micro-batch ${p.micro}${schedule.chunks > 1 ? `, chunk ${p.chunk}` : ""}: ${plain(p.begin)} to ${plain(p.end)}`}</title>
                    </rect>
                    {p.chunk > 0 && (
                      <rect
                        class="chunk"
                        x={x}
                        y={(r + 1) * row - 1 - base(p.chunk)}
                        width={Math.max(0.3, wide)}
                        height={base(p.chunk)}
                      />
                    )}
                    {wide > 7 * label.length + 3 && row > 12 && (
                      <text
                        class="on-mark"
                        x={x + wide / 2}
                        y={r * row + (row - base(p.chunk)) / 2 + 4}
                        text-anchor="middle"
                        pointer-events="none"
                      >
                        {label}
                      </text>
                    )}
                  </g>
                );
              })}
              <rect
                class="f-activations"
                data-held={held[r]}
                x={width - right + 12}
                y={r * row + 2}
                height={row - 4}
                rx={2}
                width={((right - 38) * (held[r] ?? 0)) / most}
                fill-opacity={0.85}
              />
              <text class="soft" x={width} y={r * row + row / 2 + 4} text-anchor="end">
                {plain(held[r])}
              </text>
            </g>
          ))}
        </svg>
      )}
    </div>
  );
}
