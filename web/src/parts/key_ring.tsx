// Keys and values of context parallelism: the ring of ranks in one step, the owner of the keys of
// every rank in every step, and the heads of each rank with ulysses.
import { useEffect } from "preact/hooks";
import type { ContextResponse, ContextWork } from "../responses";
import { plain } from "../format";
import { useWidth } from "./frame";
import { valuesBy } from "./save";

// Color of the keys of a rank: lightest for rank 0.
export const ownerColor = (owner: number, ranks: number): string =>
  `color-mix(in srgb, var(--cp) ${ranks > 1 ? Math.round((88 * owner) / (ranks - 1)) : 50}%, var(--keys))`;
const keysText = (owner: number, rank: number): string => (owner === rank ? "own" : `of ${owner}`);

const SIZE = 340;
const MIDDLE = SIZE / 2;
const NAMED = 8; // most ranks with the word "rank"; more leave room for a wider circle
const GAP = 3; // between a rank and the arrows

interface Props {
  data: ContextResponse;
  work: ContextWork; // in the order of chunks that is shown
  step: number;
}

// Ranks in a circle, each filled with the color of the keys that it has in this step. The keys
// arrive from the previous rank.
export function KeyRing({ data, work, step }: Props) {
  const { cp } = data;
  const size = cp > 32 ? 4 : cp > 16 ? 8 : cp > 10 ? 15 : 23;
  const around = cp > NAMED ? 128 : 108;
  const place = (rank: number, radius = around) => {
    const angle = (2 * Math.PI * rank) / cp - Math.PI / 2;
    return [MIDDLE + radius * Math.cos(angle), MIDDLE + radius * Math.sin(angle)] as const;
  };
  const owners = data.owners.map((row) => row[step] ?? 0);
  return (
    <svg
      class="ring"
      viewBox={`0 0 ${SIZE} ${SIZE}`}
      width="100%"
      style={{ maxHeight: "24rem" }}
      role="img"
      aria-label={`Step ${step}: ${owners.map((owner, rank) => `rank ${rank} has ${owner === rank ? "its own keys" : `the keys of rank ${owner}`}`).join(", ")}`}
    >
      {cp > 1 &&
        owners.map((_, rank) => (
          <Arrow key={rank} from={place(rank)} to={place((rank + 1) % cp)} cut={size + GAP} sends={step > 0} />
        ))}
      {owners.map((owner, rank) => {
        const [x, y] = place(rank);
        const [fromX, fromY] = place((rank - 1 + cp) % cp);
        const [outX, outY] = place(rank, around + size + (cp > NAMED ? 13 : 11));
        const side = cp > NAMED || Math.abs(outX - x) < 8 ? "middle" : outX > x ? "start" : "end";
        const idle = work.work[rank]?.[step] === 0;
        const moves = step > 0 ? { "--dx": `${fromX - x}px`, "--dy": `${fromY - y}px` } : {};
        return (
          <g key={rank} data-ring-rank={rank} data-keys-of={owner}>
            <circle class="rank" cx={x} cy={y} r={size} />
            <g key={step} class={step > 0 ? "arrive" : ""} style={moves}>
              <circle class={`keys${idle ? " idle" : ""}`} cx={x} cy={y} r={size} style={{ fill: ownerColor(owner, cp) }} />
              {size > 12 && (
                <text class={idle ? "soft" : "on-mark"} x={x} y={y + 4} text-anchor="middle">
                  {keysText(owner, rank)}
                </text>
              )}
            </g>
            {cp <= 32 && (
              <text class="soft" x={outX} y={outY + 4} text-anchor={side}>
                {cp > NAMED ? rank : `rank ${rank}`}
              </text>
            )}
          </g>
        );
      })}
      <text x={MIDDLE} y={MIDDLE + 5} text-anchor="middle" class="soft">
        {step === 0 ? "own keys" : `step ${step} of ${cp - 1}`}
      </text>
    </svg>
  );
}

type Point = readonly [x: number, y: number];

function Arrow({ from, to, cut, sends }: { from: Point; to: Point; cut: number; sends: boolean }) {
  const far = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
  const [ux, uy] = [(to[0] - from[0]) / far, (to[1] - from[1]) / far];
  const along = (s: number, aside = 0) => [from[0] + ux * s - uy * aside, from[1] + uy * s + ux * aside];
  const end = far - cut;
  if (end - cut < 4) return null;
  const head = Math.min(9, end - cut);
  const [x1, y1] = along(cut);
  const [x2, y2] = along(end - head);
  const points = [along(end), along(end - head, head / 2), along(end - head, -head / 2)];
  return (
    <g class={sends ? "sends" : ""}>
      <line class={sends ? "s-cp" : "link"} stroke-width={2.5} x1={x1} y1={y1} x2={x2} y2={y2} />
      <polygon class={sends ? "f-cp" : "f-rule"} points={points.map((p) => p.join(",")).join(" ")} />
    </g>
  );
}

// One row per rank and one column per step; each cell has the color of the owner of the keys, and
// the attention work of the rank with them.
export function KeyGrid({ data, work, step }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const { cp } = data;
  const left = 78;
  const top = 22;
  const cell = Math.max(1, (width - left) / cp);
  const two = cp <= 8 && cell >= 34; // lines of text in a cell
  const row = two ? 40 : cell >= 15 ? 22 : 11;
  const label = (owner: number, rank: number) =>
    cell >= 34 ? keysText(owner, rank) : cell >= 17 ? String(owner) : "";
  useEffect(() => {
    if (!ref.current) return;
    valuesBy(ref.current, () => ({
      label: "owners of keys and work",
      heads: ["rank", "chunks", ...data.owners.flatMap((_, s) => [`step ${s}: keys of`, `step ${s}: work`])],
      rows: data.owners.map((owners, rank) => [
        rank,
        work.chunks[rank]?.join(" ") ?? "",
        ...owners.flatMap((owner, s) => [owner, work.work[rank]?.[s] ?? null]),
      ]),
    }));
  });
  return (
    <div ref={ref} class="key-grid">
      {width > 0 && (
        <svg
          width={width}
          height={top + row * cp + 4}
          viewBox={`0 0 ${width} ${top + row * cp + 4}`}
          role="img"
          aria-label={`Owner of the keys that each rank has, by step. ${data.owners
            .slice(0, 8)
            .map((owners, rank) => `Rank ${rank}: ${owners.slice(0, 8).map((o) => keysText(o, rank)).join(", ")}`)
            .join("; ")}`}
        >
          <text class="soft" x={0} y={13}>
            rank
          </text>
          <text class="soft" x={30} y={13}>
            {data.chunks === 1 ? "chunk" : "chunks"}
          </text>
          {data.owners.map((_, s) =>
            cell >= 17 || s % 8 === 0 ? (
              <text key={s} class="soft" x={left + cell * (s + 0.5)} y={13} text-anchor="middle">
                {cell >= 46 ? `step ${s}` : s}
              </text>
            ) : null,
          )}
          {data.owners.map((owners, rank) => {
            const y = top + row * rank;
            const middle = y + row / 2 + 4;
            const named = row >= 20 || rank % 4 === 0;
            return (
              <g key={rank}>
                {named && (
                  <>
                    <text x={0} y={middle}>
                      {rank}
                    </text>
                    <text class="soft" x={30} y={middle}>
                      {work.chunks[rank]?.join(", ")}
                    </text>
                  </>
                )}
                {owners.map((owner, s) => {
                  const amount = work.work[rank]?.[s] ?? 0;
                  const x = left + cell * s;
                  return (
                    <g key={s} data-rank={rank} data-step={s} data-owner={owner} data-work={amount}>
                      <rect
                        class={`keys${amount === 0 ? " idle" : ""}`}
                        x={x + 1}
                        y={y + 1}
                        width={Math.max(0.5, cell - 2)}
                        height={row - 2}
                        rx={row > 20 ? 4 : 1}
                        style={{ fill: ownerColor(owner, cp) }}
                      >
                        <title>{`rank ${rank}, step ${s}: keys of rank ${owner}, work ${plain(amount)}`}</title>
                      </rect>
                      <text
                        class={amount === 0 ? "soft" : "on-mark"}
                        font-weight={owner === rank ? "700" : undefined}
                        x={x + cell / 2}
                        y={two ? y + 17 : middle}
                        text-anchor="middle"
                        pointer-events="none"
                      >
                        {label(owner, rank)}
                      </text>
                      {two && (
                        <text
                          class={amount === 0 ? "soft" : "on-mark"}
                          x={x + cell / 2}
                          y={y + 31}
                          text-anchor="middle"
                          pointer-events="none"
                        >
                          {amount === 0 ? "idle" : cell >= 54 ? `work ${plain(amount)}` : plain(amount)}
                        </text>
                      )}
                    </g>
                  );
                })}
              </g>
            );
          })}
          <rect class="now" x={left + cell * step} y={top - 1} width={cell} height={row * cp + 2} rx={5} />
        </svg>
      )}
    </div>
  );
}

// Two squares of tokens × heads, colored by the rank that has them: outside of attention a rank has
// all heads of its tokens, inside it has all tokens of its heads.
export function HeadGrids({ data, heads }: { data: ContextResponse; heads: number }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const { cp } = data;
  const left = 22;
  const top = 40;
  const middle = Math.min(120, 0.2 * width); // for the arrows
  const side = Math.max(1, Math.min(280, (width - 2 * left - middle) / 2));
  const cell = side / cp;
  const squares = [
    { id: "tokens", title: "all heads of own tokens", holder: (_head: number, part: number) => part },
    { id: "heads", title: `all tokens of ${heads} ${heads === 1 ? "head" : "heads"}`, holder: (head: number) => head },
  ];
  const text = (holder: number) => (cell >= 52 ? `rank ${holder}` : cell >= 17 ? String(holder) : "");
  const at = (i: number) => left + i * (side + left + middle);
  const y = top + side / 2;
  return (
    <div ref={ref} class="key-grid">
      {width > 0 && (
        <svg
          width={width}
          height={top + side + 26}
          viewBox={`0 0 ${width} ${top + side + 26}`}
          role="img"
          aria-label={`Ulysses: an all-to-all gives each of ${cp} ranks all tokens of ${heads} heads for attention; a second one returns the results`}
        >
          {squares.map(({ id, title, holder }, i) => (
            <g key={id} data-square={id}>
              <text class="middling" x={at(i)} y={14}>
                {i === 0 ? "Outside of attention" : "In attention"}
              </text>
              <text class="soft" x={at(i)} y={31}>
                {title}
              </text>
              <text class="soft" x={at(i) + side / 2} y={top + side + 18} text-anchor="middle">
                tokens →
              </text>
              <text class="soft" transform={`rotate(-90 ${at(i) - 7} ${y})`} x={at(i) - 7} y={y} text-anchor="middle">
                heads →
              </text>
              {Array.from({ length: cp }, (_, head) =>
                Array.from({ length: cp }, (_, part) => {
                  const rank = holder(head, part);
                  const [x, row] = [at(i) + part * cell, top + side - (head + 1) * cell];
                  return (
                    <g key={`${head}-${part}`} data-held-by={rank}>
                      <rect
                        class="keys"
                        x={x + 0.5}
                        y={row + 0.5}
                        width={Math.max(0.5, cell - 1)}
                        height={Math.max(0.5, cell - 1)}
                        style={{ fill: ownerColor(rank, cp) }}
                      />
                      <text class="on-mark" x={x + cell / 2} y={row + cell / 2 + 4} text-anchor="middle">
                        {text(rank)}
                      </text>
                    </g>
                  );
                }),
              )}
            </g>
          ))}
          <Arrow from={[at(0) + side + 6, y - 12]} to={[at(1) - left - 2, y - 12]} cut={2} sends />
          <Arrow from={[at(1) - left - 2, y + 12]} to={[at(0) + side + 6, y + 12]} cut={2} sends />
          {middle >= 76 && (
            <text class="soft" x={at(0) + side + middle / 2} y={y - 24} text-anchor="middle">
              all-to-all
            </text>
          )}
        </svg>
      )}
    </div>
  );
}
