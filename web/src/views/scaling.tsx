// How throughput grows with data parallelism: the simple law beside the simulator.
import { question, useAnswer } from "../api";
import { count, seconds, share } from "../format";
import { Chart } from "../parts/chart";
import { doublings, Percent, Slider, Toggle } from "../parts/controls";
import { Card, Figures, View } from "../parts/frame";
import { HardwareChoice, ModelChoice, StageChoice } from "../parts/model";
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
  const { at, set, field } = useFields("scaling", DEFAULTS);
  const { dp: _dp, bandwidth, ...rest } = at;
  const asked: Record<string, unknown> = question(rest);
  if (bandwidth !== "")
    asked.bandwidth = /^[\d.]+$/.test(bandwidth) ? Number(bandwidth) * 1e9 : bandwidth;
  const { data, error, busy } = useAnswer<ScalingAnswer>("api/scaling", asked);
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
          <Slider label="Data parallel" {...field("dp")} stops={doublings(1, 4096)} />
          <Percent
            label="Overhead per doubling"
            {...field("overhead")}
            also={["law_cost"]}
            stops={[0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3]}
            hint="c of the simple law 1 / (1 + c · log₂ N)"
          />
          <hr />
          <ModelChoice {...field("model")} />
          <HardwareChoice {...field("hardware")} />
          <StageChoice {...field("zero")} />
          <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 4, 8, 16, 32]} />
          <Slider
            label="Between nodes"
            name="bandwidth"
            value={at.bandwidth}
            stops={PACE}
            show={(v) => (v === "" ? "as it is" : `${v} GB/s`)}
            onChange={(v) => set({ bandwidth: v.replace(/\s*GB\/s$/, "").replace("as it is", "") })}
          />
          <Toggle
            label="Overlap with backward"
            {...field("overlap")}
            also={["overlap_grad_reduce"]}
          />
          <Percent
            label="Jitter"
            {...field("jitter")}
            stops={[0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3]}
            hint="spread of computing times"
          />
        </>
      }
      tries={
        <>
          <p>
            Take <strong>overlap</strong> away: what hid behind backward is now paid in full. Then
            slow the link <strong>between nodes</strong>, and watch where the curve leaves the
            ideal.
          </p>
        </>
      }
      notices={
        <>
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
