// Ranks in a circle, and the chunks that they send in the current step.
import type { Transfer } from "../responses";

const SIZE = 320;
const MIDDLE = SIZE / 2;
const RADIUS = 118;

interface Props {
  ranks: number;
  transfers: Transfer[];
  step: number;
  algorithm: string;
}

export function Ring({ ranks, transfers, step, algorithm }: Props) {
  const place = (rank: number) => {
    const angle = (2 * Math.PI * rank) / ranks - Math.PI / 2;
    return [MIDDLE + RADIUS * Math.cos(angle), MIDDLE + RADIUS * Math.sin(angle)] as const;
  };
  const size = ranks > 10 ? 15 : 19;
  const links =
    algorithm === "ring"
      ? Array.from({ length: ranks }, (_, r) => [r, (r + 1) % ranks] as const)
      : [];
  return (
    <svg
      class="ring"
      viewBox={`0 0 ${SIZE} ${SIZE}`}
      width="100%"
      style={{ maxHeight: "22rem" }}
      role="img"
      aria-label={
        transfers.length
          ? transfers.map((t) => `rank ${t.from} sends chunk ${t.chunk} to rank ${t.to}`).join("; ")
          : `${ranks} ranks, each with its own values`
      }
    >
      {links.map(([a, b]) => {
        const [x1, y1] = place(a);
        const [x2, y2] = place(b);
        return <line key={a} class="link" x1={x1} y1={y1} x2={x2} y2={y2} />;
      })}
      {transfers.map((t) => {
        const [x1, y1] = place(t.from);
        const [x2, y2] = place(t.to);
        const far = Math.hypot(x2 - x1, y2 - y1) || 1;
        const cut = (size + 3) / far;
        const [ax, ay] = [x1 + (x2 - x1) * cut, y1 + (y2 - y1) * cut];
        const [bx, by] = [x2 - (x2 - x1) * cut, y2 - (y2 - y1) * cut];
        return (
          <line
            key={`${t.from}-${t.to}-${t.chunk}`}
            class="s-dp"
            stroke-width={2.5}
            x1={ax}
            y1={ay}
            x2={bx}
            y2={by}
          />
        );
      })}
      {Array.from({ length: ranks }, (_, r) => {
        const [x, y] = place(r);
        return (
          <g key={r}>
            <circle class="rank" cx={x} cy={y} r={size} />
            <text x={x} y={y + 4} text-anchor="middle" font-weight="600">
              {r}
            </text>
          </g>
        );
      })}
      {transfers.map((t) => {
        const [x1, y1] = place(t.from);
        const [x2, y2] = place(t.to);
        return (
          <g
            key={`${step}-${t.from}-${t.to}-${t.chunk}`}
            class="travel"
            style={{ "--dx": `${x2 - x1}px`, "--dy": `${y2 - y1}px` }}
          >
            <circle class="packet" cx={x1} cy={y1} r={ranks > 10 ? 8 : 10} />
            <text class="on-mark" x={x1} y={y1 + 4} text-anchor="middle">
              {t.chunk}
            </text>
          </g>
        );
      })}
      <text x={MIDDLE} y={MIDDLE + 5} text-anchor="middle" class="soft">
        {transfers.length ? (transfers[0]?.adds ? "reduce" : "copy") : "start"}
      </text>
    </svg>
  );
}
