// Compares DP, TP and PP on the same GPUs.
import type { CompareResponse } from "../responses";
import { bytes, count, seconds } from "../format";
import { pieces } from "./model";
import { Stack } from "./stack";
import { Table } from "./table";

export function Strategies({ response }: { response: CompareResponse }) {
  const most = Math.max(1, ...response.ways.map((w) => w.plan?.memory.total ?? 0));
  return (
    <Table
      class="ways"
      label="Comparison of strategies"
      heads={["strategy", "memory by category", "memory", "tokens/s", "step", "sent"]}
    >
      {response.ways.map((w) => (
        <tr key={w.name}>
          <td>{w.name}</td>
          {w.plan ? (
            <>
              <td class="wide">
                <Stack pieces={pieces(w.plan.memory)} most={most} show={bytes} />
              </td>
              <td
                class={w.plan.fits ? "good-text" : "bad-text"}
                data-value={w.plan.memory.total}
              >
                {bytes(w.plan.memory.total)}
                {w.plan.fits ? "" : ", does not fit"}
              </td>
              <td data-value={w.plan.tokens_per_s ?? ""}>{count(w.plan.tokens_per_s)}</td>
              <td data-value={w.plan.time?.step ?? ""}>{seconds(w.plan.time?.step)}</td>
              <td data-value={w.plan.traffic?.total ?? ""}>{bytes(w.plan.traffic?.total)}</td>
            </>
          ) : (
            <td colSpan={5} class="bad-text">
              {w.error ?? w.why ?? "not possible"}
            </td>
          )}
        </tr>
      ))}
    </Table>
  );
}
