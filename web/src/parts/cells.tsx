// Table of the values of each rank and chunk, colored by how much of the sum they contain.
import type { Collective, Step } from "../responses";
import { count } from "../format";
import { range } from "./controls";
import { Scroll } from "./table";

// Returns, before each step, the number of ranks whose values each cell includes. Colors only.
export function contributions(c: Collective): number[][][] {
  const states = [c.start.map((row) => row.map(() => 1))];
  for (const step of c.steps) {
    const before = states.at(-1) ?? [];
    const after = before.map((row) => [...row]);
    for (const t of step.transfers) {
      const row = after[t.to];
      const sent = before[t.from]?.[t.chunk] ?? 0;
      if (row) row[t.chunk] = t.adds ? (row[t.chunk] ?? 0) + sent : sent;
    }
    states.push(after);
  }
  return states;
}

export function Cells({
  data,
  values,
  amounts,
  current,
}: {
  data: Collective;
  values: number[][];
  amounts: number[][];
  current: Step | undefined;
}) {
  const show = (v: number) => (Math.abs(v) >= 1000 ? count(v) : String(Number(v.toFixed(2))));
  return (
    <Scroll label="Values on each rank">
      <table class="cells">
        <thead>
          <tr>
            <th scope="col">
              <span class="note">rank</span>
            </th>
            {range(0, data.chunks - 1).map((c) => (
              <th scope="col" key={c}>
                {data.chunks > 1 ? (
                  <>
                    <span class="unseen">chunk </span>
                    {c}
                  </>
                ) : (
                  "buffer"
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {values.map((row, r) => (
            <tr key={r}>
              <th scope="row">{r}</th>
              {row.map((v, c) => {
                const summed = amounts[r]?.[c] ?? 1;
                const gets = current?.transfers.some((t) => t.to === r && t.chunk === c);
                const sends = current?.transfers.some((t) => t.from === r && t.chunk === c);
                return (
                  <td
                    key={c}
                    data-value={v}
                    class={`${summed >= data.ranks ? "whole" : summed > 1 ? "part" : ""}${gets ? " gets" : sends ? " sends" : ""}`}
                    style={{ "--done": `${Math.round((80 * summed) / data.ranks)}%` }}
                  >
                    {show(v)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
