// Throughput as data parallelism grows: the simple law and the simulator.
import { requestBody, useRequest } from "../api";
import { count, duration, GIGABYTE_RATE, money, seconds, share, withDefault } from "../format";
import { Chart } from "../parts/chart";
import { doublings, Percent, Slider, Toggle } from "../parts/controls";
import { Cost, COST, type CostRow, useCost } from "../parts/cost";
import { Card, Figures, View } from "../parts/frame";
import {
  HardwareChoice,
  modelBody,
  ModelFields,
  modelOfPlan,
  SHAPE,
  StageChoice,
  shapeless,
} from "../parts/model";
import { PlanNote } from "../parts/plan_details";
import { useFields } from "../route";

interface Curve {
  throughput: (number | null)[];
  efficiency: (number | null)[];
  exposed?: (number | null)[];
}
interface ScalingResponse {
  dp: number[];
  gpus: number[];
  ideal?: (number | null)[];
  simple: Curve;
  simulated: Curve;
  step?: (number | null)[];
  fits?: (boolean | null)[];
  refused?: (string | null)[];
  stops_paying_at: number | null;
  law_parts?: string | null;
  notes?: string[];
  command: string;
}

const DEFAULTS = {
  ...SHAPE,
  dp: "8",
  overhead: "0.05",
  overlap: "true",
  jitter: "0",
  bandwidth: "",
  zero: "0",
  micro_batch: "1",
  hardware: "h200",
  max_dp: "4096",
  ...COST,
};

const DAY = 86400;
const COSTS: [string, string, (row: CostRow) => number, (v: number) => string][] = [
  ["Time of the training", "days", (row) => row.seconds / DAY, (v) => duration(v * DAY)],
  ["Price of the training", "dollars", (row) => row.money, money],
];
const BANDWIDTHS = ["", 1, 2, 5, 10, 25, 40, 50, 100, 200, 400];

export function ScalingView() {
  const { at, plan, field } = useFields("scaling", DEFAULTS, modelOfPlan);
  const { dp, bandwidth, tokens: _tokens, price_per_hour: _price, watts: _watts, ...rest } = at;
  // The response has the powers of two; another dp is requested.
  const swept = /^[1-9]\d*$/.test(dp) && Number.isInteger(Math.log2(Number(dp))) && Number(dp) <= Number(at.max_dp);
  const body: Record<string, unknown> = requestBody({
    ...plan.others,
    ...modelBody(at),
    ...shapeless(rest),
    dp: swept ? "" : dp,
  });
  if (bandwidth !== "") {
    const given = requestBody({ bandwidth }).bandwidth; // text if it is not a number
    body.bandwidth = typeof given === "number" ? given * 1e9 : bandwidth;
  }
  const { data, error, busy } = useRequest<ScalingResponse>("api/scaling", body);
  const cost = useCost(at, at.hardware, data?.gpus ?? [], data?.simulated.throughput ?? []);
  const rows = data && cost.data?.rows.length === data.dp.length ? cost.data.rows : [];
  const chosen = data ? nearestIndex(data.dp, Number(at.dp)) : 0;
  const of = <T,>(values: (T | null)[] | undefined): T | null => values?.[chosen] ?? null;
  const mark = [{ x: data?.dp[chosen] ?? 8, label: `DP ${data?.dp[chosen] ?? 8}`, color: "soft" }];
  const stops = data?.stops_paying_at;
  const marks = stops ? [...mark, { x: stops, label: "diminishing returns", color: "limit" }] : mark;
  const parts = data?.law_parts ?? data?.notes?.join(" ");

  return (
    <View
      title="Scaling"
      lead="Total throughput, and efficiency per GPU, as the number of GPUs doubles."
      error={error ?? cost.error}
      stale={!!error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <PlanNote plan={plan} view="scaling" />
          <Slider label="Data parallel" {...field("dp")} stops={doublings(1, 4096)} />
          <Percent
            label="Overhead per doubling"
            {...field("overhead")}
            also={["law_cost"]}
            stops={[0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3]}
            hint="c in the simple law 1 / (1 + c · log₂ N)"
          />
          <hr />
          <ModelFields field={field} />
          <HardwareChoice {...field("hardware")} />
          <StageChoice {...field("zero")} />
          <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 4, 8, 16, 32]} />
          <Slider
            label="Inter-node bandwidth"
            {...field("bandwidth")}
            stops={BANDWIDTHS}
            unit={withDefault(GIGABYTE_RATE, "hardware default")}
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
            hint="relative spread of compute times"
          />
        </>
      }
      tries={
        <>
          <p>
            Turn <strong>overlap</strong> off: communication that ran during backward now adds to
            the step time. Then reduce the <strong>inter-node bandwidth</strong> and see where the
            curve leaves the ideal.
          </p>
        </>
      }
      notices={
        <>
          <p>
            An overhead of 5% per doubling sounds small, but at DP 4096 it costs{" "}
            <strong>more than a third</strong> of the throughput. The simple law ignores overlap,
            links and nodes. The simulator models them, and often stays close to the ideal until
            the latency of the buckets dominates.
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
              label: "Tokens/s",
              key: "throughput",
              value: count(of(data?.simulated.throughput)),
              note: of(data?.refused) ?? `simple law: ${count(of(data?.simple.throughput))}`,
            },
            ...(data?.step
              ? [
                  {
                    label: "Step",
                    key: "step",
                    value: seconds(of(data.step)),
                    note: of(data.fits) === false ? "does not fit in memory" : undefined,
                  },
                ]
              : []),
            {
              label: "Exposed communication",
              value: share(of(data?.simulated.exposed)),
              note: "of the step",
            },
            {
              label: "Diminishing returns",
              key: "stops",
              value: stops ? `beyond DP ${stops}` : `none up to DP ${data?.dp.at(-1) ?? "–"}`,
              note: stops ? "the next doubling gains less than 50%" : undefined,
            },
          ]}
        />
      </Card>
      {data && (
        <div class="two">
          <Card title="Throughput" note="tokens/s" pinned>
            <Chart
              label="Throughput by data-parallel size"
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
                        color: "step",
                        values: data.ideal,
                        dash: [4, 4],
                        width: 1.5,
                      },
                    ]
                  : []),
                {
                  label: "simple law",
                  color: "law",
                  values: data.simple.throughput,
                  points: true,
                },
                {
                  label: "simulated",
                  color: "simulated",
                  values: data.simulated.throughput,
                  points: true,
                },
              ]}
            />
          </Card>
          <Card title="Efficiency" note="fraction of the ideal throughput">
            <Chart
              label="Efficiency by data-parallel size"
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
                  color: "law",
                  values: data.simple.efficiency,
                  points: true,
                },
                {
                  label: "simulated",
                  color: "simulated",
                  values: data.simulated.efficiency,
                  points: true,
                },
              ]}
            />
          </Card>
        </div>
      )}
      <Cost
        response={cost.data}
        hardware={at.hardware}
        field={field}
        chosen={chosen}
        stale={!!cost.error}
      />
      {data && rows.length > 0 && (
        <div class="two">
          {COSTS.map(([title, unit, of, show]) => (
            <Card key={unit} title={title} stale={!!cost.error}>
              <Chart
                label={`${title} by data-parallel size`}
                x={data.dp}
                xLabel="data parallel"
                logX={2}
                logY
                height={210}
                show={(v) => (v == null ? "–" : show(v))}
                marks={mark}
                rest={chosen}
                series={[
                  {
                    label: unit,
                    color: "simulated",
                    values: rows.map((r) => r && of(r)),
                    points: true,
                  },
                ]}
              />
            </Card>
          ))}
        </div>
      )}
      {parts && (
        <Card title="Where the curves diverge">
          <p class="note">{parts}</p>
        </Card>
      )}
    </View>
  );
}

function nearestIndex(list: number[], target: number): number {
  let best = 0;
  list.forEach((v, i) => {
    if (Math.abs(v - target) < Math.abs((list[best] ?? 0) - target)) best = i;
  });
  return best;
}
