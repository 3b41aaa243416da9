// What each rank holds in each chunk, and how much of the sum is in it already.
import type { Collective, Step } from "../answers";
import { count } from "../format";
import { range } from "./controls";
import { Scroll } from "./table";

// How many ranks' values are in each cell before each step: for its colour only.
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
  doing,
}: {
  data: Collective;
  values: number[][];
  amounts: number[][];
  doing: Step | undefined;
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
                const in_it = amounts[r]?.[c] ?? 1;
                const gets = doing?.transfers.some((t) => t.to === r && t.chunk === c);
                const sends = doing?.transfers.some((t) => t.from === r && t.chunk === c);
                return (
                  <td
                    key={c}
                    class={`${in_it >= data.ranks ? "whole" : in_it > 1 ? "part" : ""}${gets ? " gets" : sends ? " sends" : ""}`}
                    style={{ "--done": `${Math.round((80 * in_it) / data.ranks)}%` }}
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
