// Horizontal stacked bars: a single one, or several on a common scale.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { useValues } from "./save";

export type Piece = readonly [color: string, what: string, size: number | null | undefined];
type Show = (size: number | null | undefined) => string;

const width = (size: Piece[2]): number => Math.max(0, size ?? 0);
export const sum = (pieces: readonly Piece[]): number =>
  pieces.reduce((all, [, , size]) => all + width(size), 0);

// `most` is the size that fills the whole width.
export function Stack({
  pieces,
  most,
  show,
}: {
  pieces: readonly Piece[];
  most: number;
  show: Show;
}) {
  return (
    <span
      class="stack"
      role="img"
      tabIndex={0}
      aria-label={pieces.map(([, what, size]) => `${what} ${show(size)}`).join(", ")}
    >
      {pieces.map(([color, what, size]) => (
        <i
          key={what}
          class={`c-${color}`}
          style={{ width: `${(100 * width(size)) / most}%` }}
          title={`${what}: ${show(size)}`}
        />
      ))}
    </span>
  );
}

export interface Bar {
  name: string;
  pieces: readonly Piece[];
  value: ComponentChildren;
  mark?: string | undefined; // highlights the row, for example "slow"
  reach?: number; // minimum end of the scale
}
export function Bars({ rows, show }: { rows: readonly Bar[]; show: Show }) {
  const most = Math.max(1e-12, ...rows.map((r) => Math.max(sum(r.pieces), r.reach ?? 0)));
  const box = useRef<HTMLDivElement>(null);
  useValues(box, () => ({
    label: "bars",
    heads: ["name", ...(rows[0]?.pieces.map(([, what]) => what) ?? [])],
    rows: rows.map((r) => [r.name, ...r.pieces.map(([, , size]) => size ?? null)]),
  }));
  return (
    <div ref={box} class="hbars">
      {rows.map((r) => (
        <div key={r.name} class={r.mark ? "bad" : undefined} data-row={r.name}>
          <b>
            {r.name}
            {r.mark && <span> {r.mark}</span>}
          </b>
          <Stack pieces={r.pieces} most={most} show={show} />
          <span class="value">{r.value}</span>
        </div>
      ))}
    </div>
  );
}
