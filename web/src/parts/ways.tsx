// DP, TP and PP on the same GPUs.
import type { WaysAnswer } from "../answers";
import { bytes, count, seconds } from "../format";
import { pieces } from "./model";
import { Stack } from "./stack";
import { Table } from "./table";

export function Ways({ answer }: { answer: WaysAnswer }) {
  const most = Math.max(1, ...answer.ways.map((w) => w.plan?.memory.total ?? 0));
  return (
    <Table
      class="ways"
      label="Ways compared"
      heads={["way", "memory", "", "tokens/s", "step", "sent"]}
    >
      {answer.ways.map((w) => (
        <tr key={w.name}>
          <td>{w.name}</td>
          {w.plan ? (
            <>
              <td class="wide">
                <Stack pieces={pieces(w.plan.memory)} most={most} show={bytes} />
              </td>
              <td class={w.plan.fits ? "good-text" : "bad-text"}>
                {bytes(w.plan.memory.total)}
                {w.plan.fits ? "" : ", too much"}
              </td>
              <td>{count(w.plan.tokens_per_s)}</td>
              <td>{seconds(w.plan.time?.step)}</td>
              <td>{bytes(w.plan.traffic?.total)}</td>
            </>
          ) : (
            <td colSpan={5} class="bad-text">
              {w.error ?? w.why ?? "cannot be"}
            </td>
          )}
        </tr>
      ))}
    </Table>
  );
}
