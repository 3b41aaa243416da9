// DP, TP and PP on the same GPUs.
import { bytes, count, seconds } from "../format";
import type { Plan } from "../views/plan";
import { pieces } from "./memory_bars";

export interface WaysAnswer {
  ways: { name: string; plan?: Plan | null; error?: string; why?: string }[];
  command?: string;
}

export function Ways({ answer }: { answer: WaysAnswer }) {
  const most = Math.max(1, ...answer.ways.map((w) => w.plan?.memory.total ?? 0));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Ways compared">
      <table class="ways">
        <thead>
          <tr>
            <th>way</th>
            <th>memory</th>
            <th></th>
            <th>tokens/s</th>
            <th>step</th>
            <th>sent</th>
          </tr>
        </thead>
        <tbody>
          {answer.ways.map((w) => (
            <tr key={w.name}>
              <td>{w.name}</td>
              {w.plan ? (
                <>
                  <td class="wide">
                    <span
                      class="stack"
                      role="img"
                      aria-label={pieces(w.plan.memory)
                        .map(([, what, v]) => `${what} ${bytes(v)}`)
                        .join(", ")}
                    >
                      {pieces(w.plan.memory).map(([c, what, v]) => (
                        <i
                          key={c}
                          class={`c-${c}`}
                          style={{ width: `${(100 * v) / most}%` }}
                          title={`${what}: ${bytes(v)}`}
                        />
                      ))}
                    </span>
                  </td>
                  <td class={w.plan.fits ? "good-text" : "bad-text"}>
                    {bytes(w.plan.memory.total)}
                    {w.plan.fits ? "" : ", too much"}
                  </td>
                  <td>{count(w.plan.tokens_per_s)}</td>
                  <td>{seconds(w.plan.time?.step)}</td>
                  <td>
                    {bytes((w.plan as Plan & { traffic?: { total: number } }).traffic?.total)}
                  </td>
                </>
              ) : (
                <td colSpan={5} class="bad-text">
                  {w.error ?? w.why ?? "cannot be"}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
