// One batch, split over the data-parallel ranks, and the all-reduce of their gradients below it.
import { bytes, whole } from "../format";
import { useWidth } from "./frame";

export interface Batch {
  ranks: number;
  micro_batch: number;
  grad_accum: number;
  global_batch: number;
  sent: number; // bytes that a rank sends along dp in a step
  gradients: number; // bytes of all gradients of a rank
}

const SHOWN = 8; // ranks
const MICROS = 4; // micro-batches of a rank

export function BatchSplit({ batch }: { batch: Batch }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const fits = Math.max(2, Math.min(SHOWN, Math.floor(width / 84)));
  const shown = batch.ranks <= fits ? batch.ranks : fits;
  // The last one drawn is the last rank.
  const rank = (i: number) => (i === shown - 1 ? batch.ranks - 1 : i);
  const slot = width / shown;
  const own = batch.micro_batch * batch.grad_accum;
  const micros = Math.min(batch.grad_accum, MICROS);
  const left = (i: number) => i * slot + 4;
  const wide = slot - 8;
  const skips = batch.ranks > shown;
  const reduced = batch.ranks > 1;
  return (
    <div ref={ref} class="batch">
      {width > 0 && (
        <svg
          width={width}
          height={250}
          viewBox={`0 0 ${width} 250`}
          role="img"
          aria-label={`A batch of ${whole(batch.global_batch)} sequences over ${batch.ranks} ranks, ${own} for each in ${batch.grad_accum} micro-batches of ${batch.micro_batch}${reduced ? `; an all-reduce of ${bytes(batch.gradients)} of gradients` : ""}`}
        >
          <text x={4} y={14} font-weight="600">
            {`one batch: ${whole(batch.global_batch)} sequences`}
          </text>
          {Array.from({ length: shown }, (_, i) => (
            <g key={i} data-rank={rank(i)}>
              <rect class="f-forward" x={i * slot} y={22} width={slot - 1} height={24} />
              <text class="on-mark" x={left(i) + wide / 2} y={38} text-anchor="middle">
                {whole(own)}
              </text>
              <line class="s-soft" x1={left(i) + wide / 2} x2={left(i) + wide / 2} y1={48} y2={70} />
              <text class="soft" x={left(i)} y={86}>
                {`${skips && i === shown - 1 ? "… " : ""}rank ${rank(i)}`}
              </text>
              {Array.from({ length: micros }, (_, m) => (
                <rect
                  key={m}
                  class="f-backward"
                  x={left(i) + (m * wide) / micros}
                  y={92}
                  width={wide / micros - 2}
                  height={26}
                  rx={3}
                />
              ))}
              <text class="soft" x={left(i)} y={134}>
                {batch.grad_accum > 1
                  ? `${batch.grad_accum} × ${batch.micro_batch}`
                  : String(batch.micro_batch)}
              </text>
              <rect class="f-grads" x={left(i)} y={144} width={wide} height={18} rx={3} />
              <text class="on-mark" x={left(i) + wide / 2} y={157} text-anchor="middle">
                gradients
              </text>
              <line class="s-soft" x1={left(i) + wide / 2} x2={left(i) + wide / 2} y1={164} y2={178} />
            </g>
          ))}
          <rect
            class={reduced ? "f-dp" : "empty"}
            data-reduce
            x={0}
            y={180}
            width={width - 1}
            height={28}
            rx={6}
          />
          <text class={reduced ? "on-mark" : "soft"} x={width / 2} y={198} text-anchor="middle">
            {reduced ? `all-reduce of ${bytes(batch.gradients)}` : "nothing to reduce"}
          </text>
          <text class="soft" x={4} y={230}>
            {reduced
              ? `Each rank sends ${bytes(batch.sent)} per step. All ranks then make the same update.`
              : "With one rank there is nothing to send."}
          </text>
        </svg>
      )}
    </div>
  );
}
