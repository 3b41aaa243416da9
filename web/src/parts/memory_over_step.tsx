// Memory of a rank in the course of a step: stacked areas by category. Predicted from a plan, or
// measured in a run and drawn beside the prediction.
import { useEffect } from "preact/hooks";
import { type RequestState, useRequest } from "../api";
import { bytes, seconds, ticks } from "../format";
import type { MemoryCurve, TracedMemory } from "../responses";
import { Card, Legend, useWidth } from "./frame";
import { MEMORY_PARTS } from "./model";
import { valuesBy } from "./save";

interface OverStep extends MemoryCurve {
  pipeline_rank: number;
  pipeline_ranks: number;
  capacity: number;
}

export const useMemoryOverStep = (
  body: Record<string, unknown>,
  when: boolean,
): RequestState<OverStep> => useRequest("api/memory_over_step", body, when);

const KEYS = ["params", "grads", "optimizer", "buffers", "activations", "temporary"] as const;
const COLORS: Record<string, string> = { buffers: "rest", temporary: "rest" };
const TALL = 230;
const TOP = 24;

export function MemoryOverStep({ data, stale }: { data: OverStep; stale: boolean }) {
  const note =
    data.pipeline_ranks > 1
      ? `of pipeline stage ${data.pipeline_rank}, which needs most; predicted`
      : "of one GPU; predicted";
  return (
    <Card title="Memory over a step" note={note} stale={stale}>
      <Areas data={data} label="Memory over a step" capacity={data.capacity} />
      <Legend items={MEMORY_PARTS} />
      <p class="note spaced">
        Forward keeps the activations of layer after layer, backward frees them. On top are the
        temporaries of the loss, of each layer's backward and of its recomputation. The peak is that
        of the plan.
      </p>
    </Card>
  );
}

// Memory of a rank in a step of a run, beside the plan of that rank with the passes of that step.
export function MeasuredMemory({ memory }: { memory: TracedMemory }) {
  const { measured, predicted } = memory;
  const most = Math.max(measured.peak, predicted?.peak ?? 0);
  return (
    <Card title="Memory over a step" note={`of rank ${memory.rank} in step ${memory.step}`}>
      <div class="two">
        <figure data-memory="measured">
          <figcaption>Measured by the ledger</figcaption>
          <Areas data={measured} label="Measured memory over a step" most={most} />
        </figure>
        {predicted && (
          <figure data-memory="predicted">
            <figcaption>Predicted by the plan</figcaption>
            <Areas data={predicted} label="Predicted memory over a step" most={most} />
          </figure>
        )}
      </div>
      <Legend items={MEMORY_PARTS} />
      <p class="note spaced">
        The ledger counts each allocation and release of the rank. The prediction has the plan's bytes
        layer by layer; its passes begin and end as the measured ones. On a GPU, times are those at which
        the host launched the work.
      </p>
    </Card>
  );
}

// `most`: bytes that the vertical axis must contain.
function Areas({
  data,
  label,
  capacity = Infinity,
  most: needed = 0,
}: {
  data: MemoryCurve;
  label: string;
  capacity?: number;
  most?: number;
}) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const left = 62;
  const at = (key: (typeof KEYS)[number], i: number): number => {
    const value = data[key];
    return typeof value === "number" ? value : (value[i] ?? 0);
  };
  const highest = Math.max(data.peak, needed);
  const lines = ticks(Math.max(highest * 1.1, capacity <= 1.6 * highest ? capacity : 0));
  const most = lines.at(-1) || 1;
  const x = (t: number) => left + ((width - left - 8) * t) / (data.step || 1);
  const y = (v: number) => TOP + (TALL - TOP) * (1 - v / most);
  // Upper edges of the areas, from the bottom one on.
  let below: number[] = data.seconds.map(() => 0);
  const areas = KEYS.map((key) => {
    const lower = below;
    below = lower.map((v, i) => v + at(key, i));
    const points = [
      ...below.map((v, i) => `${x(data.seconds[i] ?? 0)},${y(v)}`),
      ...lower.map((v, i) => `${x(data.seconds[i] ?? 0)},${y(v)}`).reverse(),
    ];
    return { key, points: points.join(" ") };
  });
  useEffect(() => {
    if (!ref.current) return;
    valuesBy(ref.current, () => ({
      label,
      heads: ["seconds", ...KEYS],
      rows: data.seconds.map((t, i) => [t, ...KEYS.map((key) => at(key, i))]),
    }));
  }, [data]);
  const times = ticks(data.step).filter((t) => t <= data.step);
  const peak = [x(data.peak_at), y(data.peak)] as const;
  const before = peak[0] > width / 2;
  const state = [data.params, data.grads, data.optimizer, data.buffers];
  const steady = state.every((v) => typeof v === "number")
    ? `state and buffers ${bytes(state.reduce((a, b) => a + b, 0))}, `
    : "";
  return (
    <div ref={ref} class="areas">
      {width > 0 && (
        <svg
          width={width}
          height={TALL + 24}
          viewBox={`0 0 ${width} ${TALL + 24}`}
          role="img"
          aria-label={`${label} of ${seconds(data.step)}: ${steady}peak ${bytes(data.peak)} after ${seconds(data.peak_at)}`}
        >
          {lines.map((v) => (
            <g key={v}>
              <line class="grid" x1={left} x2={width} y1={y(v)} y2={y(v)} />
              <text class="soft" x={left - 8} y={y(v) + 4} text-anchor="end">
                {bytes(v)}
              </text>
            </g>
          ))}
          {areas.map(({ key, points }) => (
            <polygon key={key} class={`f-${COLORS[key] ?? key}`} points={points} data-area={key}>
              <title>{key}</title>
            </polygon>
          ))}
          {times.map((t) => (
            <text key={t} class="soft" x={x(t)} y={TALL + 18} text-anchor="middle">
              {seconds(t)}
            </text>
          ))}
          {capacity <= most && (
            <line class="limit" x1={left} x2={width} y1={y(capacity)} y2={y(capacity)}>
              <title>{`usable memory of the GPU: ${bytes(capacity)}`}</title>
            </line>
          )}
          <circle class="peak" cx={peak[0]} cy={peak[1]} r={4} data-peak={data.peak} />
          <text
            class="middling"
            x={peak[0] + (before ? -8 : 8)}
            y={peak[1] - 6}
            text-anchor={before ? "end" : "start"}
          >
            {`peak ${bytes(data.peak)}`}
          </text>
        </svg>
      )}
    </div>
  );
}
