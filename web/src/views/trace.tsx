// The timeline of a simulated step, or of a run that wrote its trace.
import type { Span } from "../answers";
import { question, useAbout, useAnswer } from "../api";
import { seconds, share } from "../format";
import { Choice, doublings, Percent, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { Lanes } from "../parts/lanes";
import {
  HardwareChoice,
  ModelChoice,
  ReplicasSlider,
  replicas,
  StageChoice,
} from "../parts/model";
import { useFields } from "../route";
import { useRuns, useTrace } from "../runs";

interface Simulated {
  step: number;
  tokens_per_s: number;
  utilisation: number;
  time: {
    compute: number;
    dp: number;
    dp_replicate: number;
    tp: number;
    pp: number;
    bubble: number;
    optimizer: number;
    step: number;
  };
  fits?: boolean;
  spans?: Span[];
  command?: string;
}

const DEFAULTS = {
  source: "simulated",
  model: "gpt2-xl",
  dp: "8",
  dp_replicate: "1",
  tp: "1",
  pp: "1",
  zero: "3",
  micro_batch: "1",
  grad_accum: "2",
  schedule: "1f1b",
  overlap: "true",
  jitter: "0",
  hardware: "h100",
  trace_ranks: "2",
  shown: "", // of the timeline
};

export function TraceView() {
  const { at, set, field: bound } = useFields("trace", DEFAULTS);
  // Another question, another timeline: shown whole.
  const field = (name: keyof typeof DEFAULTS) => bound(name, { shown: "" });
  const about = useAbout();
  const simulated = at.source === "simulated";
  const runs = useRuns();
  const { source: _source, shown, overlap, dp_replicate: _replicas, ...rest } = at;
  const asked = question({
    ...rest,
    ...replicas(at),
    overlap_grad_reduce: overlap,
    overlap_param_gather: overlap,
    prefetch: overlap,
  });
  const answer = useAnswer<Simulated>("api/simulate", asked, simulated);
  const run = useTrace(simulated ? "" : at.source);
  const spans = simulated ? answer.data?.spans : run.spans;
  const t = simulated ? answer.data?.time : undefined;

  return (
    <View
      title="Trace"
      lead="One step, rank by rank: what computes, what travels, and who waits."
      error={simulated ? answer.error : run.error}
      busy={answer.busy}
      command={simulated ? answer.data?.command : runs.find((r) => r.id === at.source)?.command}
      controls={
        <>
          <Choice
            label="Of"
            {...field("source")}
            options={[
              ["simulated", "a simulated step"],
              ...runs.map((r): [string, string] => [r.id, `run ${r.name}`]),
            ]}
          />
          {simulated && (
            <>
              <ModelChoice {...field("model")} />
              <HardwareChoice {...field("hardware")} />
              <Slider
                label="Data parallel"
                {...field("dp")}
                also={["gpus"]}
                stops={doublings(1, 512)}
              />
              <ReplicasSlider {...field("dp_replicate")} />
              <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 8)} />
              <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 16)} />
              <StageChoice {...field("zero")} />
              <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 4, 8, 16]} />
              <Slider
                label="Micro-batches a step"
                {...field("grad_accum")}
                stops={[1, 2, 4, 8, 16, 32]}
              />
              <Choice label="Schedule" {...field("schedule")} options={about?.schedules ?? []} />
              <Toggle
                label="Overlap communication"
                {...field("overlap")}
                also={["overlap_grad_reduce", "overlap_param_gather", "prefetch"]}
              />
              <Percent
                label="Jitter"
                {...field("jitter")}
                stops={[0, 0.01, 0.02, 0.05, 0.1, 0.2]}
              />
              <Slider label="Ranks drawn" {...field("trace_ranks")} stops={[1, 2, 4, 8, 16]} />
            </>
          )}
        </>
      }
      tries={
        <>
          <p>
            Zoom in (<strong>+</strong> and <strong>−</strong>, or Ctrl and the wheel) on a gather
            at stage 3: it lies under the forward of the layer before. Then switch{" "}
            <strong>overlap</strong> off.
          </p>
          <p>Set pipeline parallel to 4 and draw 4 ranks: the gaps are the bubble.</p>
        </>
      }
      notices={
        <>
          <p>
            Communication costs time only where the compute lane has a <strong>hole</strong>. A run
            started with <code>--trace</code> shows up here, too, and can be laid beside this.
          </p>
        </>
      }
    >
      {t && (
        <Card>
          <Figures
            items={[
              { label: "Step", key: "step", value: seconds(t.step) },
              { label: "Computes", value: share(answer.data?.utilisation) },
              { label: "Waits for dp", value: seconds(t.dp + t.dp_replicate) },
              { label: "Waits for tp", value: seconds(t.tp) },
              { label: "Waits for pp", value: seconds(t.pp) },
              { label: "Bubble", value: seconds(t.bubble) },
              { label: "Optimizer", value: seconds(t.optimizer) },
            ]}
          />
        </Card>
      )}
      <Card title="Timeline">
        {spans && spans.length > 0 ? (
          <Lanes
            spans={spans}
            label="Timeline of the step"
            shown={shown}
            onShown={(part) => set({ shown: part })}
          />
        ) : (
          <p class="empty-note">{run.note ?? "Nothing to draw yet."}</p>
        )}
        <Legend
          items={[
            ["forward", "forward"],
            ["backward", "backward"],
            ["weight", "backward of weights"],
            ["step", "optimizer"],
            ["dp", "dp"],
            ["tp", "tp"],
            ["pp", "pp"],
          ]}
        />
      </Card>
    </View>
  );
}
