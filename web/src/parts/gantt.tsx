// A schedule: a row for each GPU, a block for each pass, and what each stage holds at most.
import { plain, share } from "../format";
import { useWidth } from "./frame";

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
  in_flight: number[];
  command?: string | null;
}

const CLASS: Record<string, string> = {
  forward: "forward",
  backward: "backward",
  backward_input: "backward",
  backward_weight: "weight",
};

export function Gantt({ schedule, longest }: { schedule: Schedule; longest: number }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const left = 34;
  const right = width < 520 ? 44 : 74;
  const row = Math.max(13, Math.min(26, 300 / schedule.ranks));
  const scale = Math.max(1, width - left - right) / longest;
  const held = Math.max(...schedule.in_flight, 1);
  const tall = row * schedule.ranks;
  return (
    <div ref={ref} class="gantt">
      {width > 0 && (
        <svg
          width={width}
          height={tall + 4}
          viewBox={`0 0 ${width} ${tall + 4}`}
          role="img"
          aria-label={`${schedule.schedule}: step ${plain(schedule.step)}, bubble ${share(schedule.bubble)}, micro-batches held by stage ${schedule.in_flight.join(", ")}`}
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
                      fill-opacity={1 - (0.45 * p.chunk) / Math.max(1, schedule.chunks)}
                    >
                      <title>{`${p.kind.replace("_", " of ")}, micro-batch ${p.micro}${schedule.chunks > 1 ? `, chunk ${p.chunk}` : ""}: ${plain(p.begin)} to ${plain(p.end)}`}</title>
                    </rect>
                    {wide > 7 * label.length + 3 && row > 12 && (
                      <text
                        class="on-mark"
                        x={x + wide / 2}
                        y={r * row + row / 2 + 4}
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
                x={width - right + 12}
                y={r * row + 2}
                height={row - 4}
                rx={2}
                width={((right - 38) * (schedule.in_flight[r] ?? 0)) / held}
                fill-opacity={0.85}
              />
              <text class="soft" x={width} y={r * row + row / 2 + 4} text-anchor="end">
                {schedule.in_flight[r]}
              </text>
            </g>
          ))}
        </svg>
      )}
    </div>
  );
}
