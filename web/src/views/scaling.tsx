// How throughput grows with data parallelism: the simple law beside the simulator.
import { useMemo } from "preact/hooks";
import { question, useAbout, useAnswer } from "../api";
import { count, plain, seconds, share } from "../format";
import { Choice, doublings, Segments, Slider, Toggle } from "../parts/controls";
import { Chart } from "../parts/chart";
import { Card, Figures, View } from "../parts/frame";
import { useFields } from "../route";

interface Curve {
  throughput: (number | null)[];
  efficiency: (number | null)[];
  exposed?: (number | null)[];
}
interface ScalingAnswer {
  dp: number[];
  ideal?: (number | null)[];
  simple: Curve;
  simulated: Curve;
  step?: (number | null)[];
  fits?: (boolean | null)[];
  stops_paying_at: number | null;
  law_parts?: string | null;
  notes?: string[];
  command: string;
}

const DEFAULTS = {
  model: "llama2-7b",
  dp: "8",
  overhead: "0.05",
  overlap: "true",
  jitter: "0",
  bandwidth: "",
  zero: "0",
  tp: "1",
  pp: "1",
  micro_batch: "1",
  recompute: "none",
  hardware: "h200",
  max_dp: "4096",
};

const PACE = ["", 1, 2, 5, 10, 25, 40, 50, 100, 200, 400];

export function ScalingView() {
  const { at, set } = useFields("scaling", DEFAULTS);
  const about = useAbout();
  const body = useMemo(() => {
    const { dp: _dp, bandwidth, ...rest } = at;
    const asked: Record<string, unknown> = question(rest);
    if (bandwidth !== "")
      asked.bandwidth = /^[\d.]+$/.test(bandwidth) ? Number(bandwidth) * 1e9 : bandwidth;
    return asked;
  }, [JSON.stringify({ ...at, dp: "" })]);
  const { data, error, busy } = useAnswer<ScalingAnswer>("api/scaling", body);
  const chosen = data ? nearestIndex(data.dp, Number(at.dp)) : 0;
  const of = <T,>(values: (T | null)[] | undefined): T | null => values?.[chosen] ?? null;
  const mark = [{ x: data?.dp[chosen] ?? 8, label: `DP ${data?.dp[chosen] ?? 8}`, colour: "soft" }];
  const stops = data?.stops_paying_at;
  const marks = stops ? [...mark, { x: stops, label: "stops paying", colour: "limit" }] : mark;
  const parts = data?.law_parts ?? data?.notes?.join(" ");

  return (
    <View
      title="Scaling"
      lead="What another doubling of GPUs brings: tokens a second in all, and what is left of each GPU."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <Slider
            label="Data parallel"
            name="dp"
            value={at.dp}
            stops={doublings(1, 4096)}
            onChange={(dp) => set({ dp })}
          />
          <Slider
            label="Overhead per doubling"
            name="overhead"
            also={["law_cost"]}
            value={at.overhead}
            show={(v) => (Number.isFinite(Number(v)) ? `${plain(Number(v) * 100)}%` : v)}
            stops={[0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3]}
            onChange={(v) =>
              set({ overhead: v.endsWith("%") ? String(Number(v.slice(0, -1)) / 100) : v })
            }
            hint="c of the simple law 1 / (1 + c · log₂ N)"
          />
          <hr />
          <Choice
            label="Model"
            name="model"
            value={at.model}
            options={(about?.models ?? []).map((m) => [m.name, `${m.name} · ${count(m.params)}`])}
            onChange={(model) => set({ model })}
          />
          <Choice
            label="GPU"
            name="hardware"
            value={at.hardware}
            options={(about?.hardware ?? []).map((h) => h.name)}
            onChange={(hardware) => set({ hardware })}
          />
          <Segments
            label="ZeRO stage"
            name="zero"
            value={at.zero}
            options={[["0", "DDP"], "1", "2", "3"]}
            onChange={(zero) => set({ zero })}
          />
          <Slider
            label="Micro-batch"
            name="micro_batch"
            value={at.micro_batch}
            stops={[1, 2, 4, 8, 16, 32]}
            onChange={(micro_batch) => set({ micro_batch })}
          />
          <Slider
            label="Between nodes"
            name="bandwidth"
            value={at.bandwidth}
            stops={PACE}
            show={(v) => (v === "" ? "as it is" : `${v} GB/s`)}
            onChange={(v) => set({ bandwidth: v.replace(/\s*GB\/s$/, "").replace("as it is", "") })}
            hint={
              at.bandwidth === ""
                ? undefined
                : "the command line takes a link of your own from --hardware-file"
            }
          />
          <Toggle
            label="Overlap with backward"
            name="overlap"
            also={["overlap_grad_reduce"]}
            value={at.overlap === "true"}
            onChange={(overlap) => set({ overlap })}
          />
          <Slider
            label="Jitter"
            name="jitter"
            value={at.jitter}
            show={(v) => (Number.isFinite(Number(v)) ? `${plain(Number(v) * 100)}%` : v)}
            stops={[0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3]}
            onChange={(v) =>
              set({ jitter: v.endsWith("%") ? String(Number(v.slice(0, -1)) / 100) : v })
            }
            hint="spread of computing times"
          />
        </>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Take <strong>overlap</strong> away: what hid behind backward is now paid in full. Then
            slow the link <strong>between nodes</strong>, and watch where the curve leaves the
            ideal.
          </p>
          <h2>Notice</h2>
          <p>
            Five percent a doubling sounds little; at 4096 GPUs it has cost{" "}
            <strong>more than a third</strong>. The law knows nothing of overlap, links or nodes:
            the simulator does, and often stays near the ideal until a bucket's latency shows.
          </p>
        </>
      }
    >
      <Card>
        <Figures
          items={[
            {
              label: "Efficiency, simple law",
              key: "law-efficiency",
              value: share(of(data?.simple.efficiency)),
              note: `at DP ${data?.dp[chosen] ?? "–"}`,
            },
            {
              label: "Efficiency, simulated",
              key: "simulated-efficiency",
              value: share(of(data?.simulated.efficiency)),
            },
            {
              label: "Tokens a second",
              key: "throughput",
              value: count(of(data?.simulated.throughput)),
              note: `law: ${count(of(data?.simple.throughput))}`,
            },
            ...(data?.step
              ? [
                  {
                    label: "Step",
                    value: seconds(of(data.step)),
                    note: of(data.fits) === false ? "does not fit into memory" : undefined,
                  },
                ]
              : []),
            { label: "Waits for the network", value: share(of(data?.simulated.exposed)) },
            {
              label: "Stops paying at",
              key: "stops",
              value: stops ? `DP ${stops}` : "not here",
              note: stops ? "a doubling brings too little" : `up to DP ${data?.dp.at(-1) ?? "–"}`,
            },
          ]}
        />
      </Card>
      {data && (
        <div class="two">
          <Card title="Throughput" note="tokens a second">
            <Chart
              label="Throughput against data parallel degree"
              x={data.dp}
              xLabel="data parallel"
              logX={2}
              logY
              show={(v) => count(v)}
              marks={marks}
              rest={chosen}
              series={[
                ...(data.ideal
                  ? [
                      {
                        label: "ideal",
                        colour: "step",
                        values: data.ideal,
                        dash: [4, 4],
                        width: 1.5,
                      },
                    ]
                  : []),
                {
                  label: "simple law",
                  colour: "law",
                  values: data.simple.throughput,
                  points: true,
                },
                {
                  label: "simulated",
                  colour: "simulated",
                  values: data.simulated.throughput,
                  points: true,
                },
              ]}
            />
          </Card>
          <Card title="What is left of each GPU" note="efficiency">
            <Chart
              label="Efficiency against data parallel degree"
              x={data.dp}
              xLabel="data parallel"
              logX={2}
              zero
              top={Math.max(1.05, ...data.simulated.efficiency.map((v) => (v ?? 0) * 1.05))}
              show={(v) => share(v, 0)}
              marks={marks}
              rest={chosen}
              series={[
                {
                  label: "simple law",
                  colour: "law",
                  values: data.simple.efficiency,
                  points: true,
                },
                {
                  label: "simulated",
                  colour: "simulated",
                  values: data.simulated.efficiency,
                  points: true,
                },
              ]}
            />
          </Card>
        </div>
      )}
      {parts && (
        <Card title="Where the two part">
          <p class="note">{parts}</p>
        </Card>
      )}
    </View>
  );
}

function nearestIndex(list: number[], wanted: number): number {
  let best = 0;
  list.forEach((v, i) => {
    if (Math.abs(v - wanted) < Math.abs((list[best] ?? 0) - wanted)) best = i;
  });
  return best;
}
