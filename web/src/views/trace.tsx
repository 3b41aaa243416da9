// Timeline of a simulated step, or of a run's trace.
import type { Span, TracedMemory } from "../responses";
import { type ErrorInfo, requestBody, useAbout, useRequest } from "../api";
import { count, seconds, share } from "../format";
import { Choice, doublings, Percent, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { kind, Lanes } from "../parts/lanes";
import { MeasuredMemory, MemoryOverStep, useMemoryOverStep } from "../parts/memory_over_step";
import {
  contextAndExperts,
  ExpertSlider,
  HardwareChoice,
  modelBody,
  ModelFields,
  modelOfPlan,
  ReplicasSlider,
  replicas,
  SHAPE,
  shapeless,
  StageChoice,
} from "../parts/model";
import { axisColor, useAxes, usedAxes } from "../parts/axes";
import { PlanNote, useExposed } from "../parts/plan_details";
import { useFields } from "../route";
import { useRuns, useTrace } from "../runs";

interface Simulated {
  step: number;
  tokens_per_s: number;
  utilization: number;
  time: Record<string, number>;
  fits?: boolean;
  spans?: Span[];
  command?: string;
}

const DEFAULTS = {
  source: "simulated",
  ...SHAPE,
  model: "gpt2-xl",
  dp: "8",
  dp_replicate: "1",
  cp: "1",
  ep: "1",
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
  shown: "", // visible range of the timeline
  memory_rank: "0", // of a run: rank and step whose memory is shown
  memory_step: "",
};

export function TraceView() {
  const { at, plan, set, field: bound } = useFields("trace", DEFAULTS, modelOfPlan);
  // A changed setting gives another timeline, which is shown from start to end.
  const field = (name: keyof typeof DEFAULTS) => bound(name, { shown: "" });
  const about = useAbout();
  const simulated = at.source === "simulated";
  const runs = useRuns();
  const { source: _source, shown, memory_rank: _rank, memory_step: _step, overlap, dp_replicate: _replicas, cp: _cp, ep: _ep, ...rest } = at;
  const body = requestBody({
    ...plan.others,
    ...modelBody(at),
    ...shapeless(rest),
    ...replicas(at),
    ...contextAndExperts(at),
    overlap_grad_reduce: overlap,
    overlap_param_gather: overlap,
    prefetch: overlap,
  });
  const response = useRequest<Simulated>("api/simulate", body, simulated);
  const run = useTrace(simulated ? "" : at.source);
  const memory = chosenMemory(run.memory ?? [], at.memory_rank, at.memory_step);
  const spans = simulated ? response.data?.spans : run.spans;
  const { trace_ranks: _ranks, jitter: _jitter, ...planned } = body;
  const overStep = useMemoryOverStep(planned, simulated);
  const t = simulated ? response.data?.time : undefined;
  const exposed = useExposed(t);
  const colors = new Set(spans?.map((s) => kind(s.lane, s.what)));
  const known = useAxes();
  const drawnAxes = known.filter((axis) => axis !== "dp_replicate" && colors.has(axisColor(axis)));
  // Axes whose communication is a part of the passes.
  const inPasses = simulated && spans ? usedAxes(known, at).filter((axis) => !drawnAxes.includes(axis)) : [];
  const drawnRanks = new Set(spans?.map((s) => s.rank)).size;
  const world = Number(at.dp) * Number(at.cp) * Number(at.tp) * Number(at.pp);
  const fewer = simulated && drawnRanks > 0 && drawnRanks < Math.min(world, Number(at.trace_ranks));

  return (
    <View
      title="Trace"
      lead="One step on each rank: computation, communication and waiting."
      error={simulated ? response.error : (run.error ?? memory.error)}
      busy={response.busy}
      command={simulated ? response.data?.command : runs.find((r) => r.id === at.source)?.command}
      controls={
        <>
          {simulated && <PlanNote plan={plan} view="trace" />}
          <Choice
            label="Source"
            {...field("source")}
            options={[
              ["simulated", "simulated step"],
              ...runs.map((r): [string, string] => [r.id, `run ${r.name}`]),
            ]}
          />
          {!simulated && memory.ranks.length > 0 && (
            <>
              <Choice label="Memory of rank" {...bound("memory_rank")} options={memory.ranks} />
              <Choice
                label="Memory of step"
                {...bound("memory_step")}
                value={at.memory_step || (memory.steps.at(-1) ?? "")}
                options={memory.steps}
              />
            </>
          )}
          {simulated && (
            <>
              <ModelFields field={field} />
              <HardwareChoice {...field("hardware")} />
              <Slider
                label="Data parallel"
                {...field("dp")}
                also={["gpus"]}
                stops={doublings(1, 512)}
              />
              <ReplicasSlider {...field("dp_replicate")} />
              <Slider label="Context parallel" {...field("cp")} stops={doublings(1, 16)} />
              <ExpertSlider at={at} {...field("ep")} />
              <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 8)} />
              <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 16)} />
              <StageChoice {...field("zero")} />
              <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 4, 8, 16]} />
              <Slider
                label="Micro-batches per step"
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
              <Slider label="Ranks shown" {...field("trace_ranks")} stops={[1, 2, 4, 8, 16]} />
            </>
          )}
        </>
      }
      tries={
        <>
          <p>
            Zoom in (<strong>+</strong> and <strong>−</strong>, or Ctrl and the mouse wheel) on an
            all-gather of ZeRO-3: it overlaps with the forward pass of the previous layer. Then
            turn <strong>overlap</strong> off.
          </p>
          <p>Set pipeline parallel and ranks shown to 4: the gaps are the bubble.</p>
        </>
      }
      notices={
        <>
          <p>
            Communication costs time only where the compute lane has a <strong>gap</strong>. Runs
            started with <code>--trace</code> can be selected as the source.
          </p>
        </>
      }
    >
      {t && (
        <Card>
          <Figures
            items={[
              { label: "Step", key: "step", value: seconds(t.step) },
              { label: "Tokens/s", key: "tokens", value: count(response.data?.tokens_per_s) },
              { label: "Compute utilization", value: share(response.data?.utilization) },
              ...exposed,
              { label: "Bubble", key: "bubble", value: seconds(t.bubble) },
              { label: "Optimizer", value: seconds(t.optimizer) },
            ]}
          />
        </Card>
      )}
      <Card
        title="Timeline"
        note={fewer ? `${drawnRanks === 1 ? "one rank" : `${drawnRanks} ranks`}: the others do the same` : undefined}
        pinned
      >
        {spans && spans.length > 0 ? (
          <Lanes
            spans={spans}
            label="Timeline of the step"
            shown={shown}
            onShown={(part) => set({ shown: part })}
          />
        ) : (
          <p class="empty-note">{run.note ?? "No timeline yet."}</p>
        )}
        <Legend
          items={[
            ["forward", "forward"],
            ["backward", "backward"],
            ["weight", "weight gradients"],
            ["step", "optimizer"],
            ...drawnAxes.map((axis) => [axisColor(axis), `${axis} communication`] as const),
            ...(colors.has("accent") ? [["accent", "communication of several axes"] as const] : []),
            ...(colors.has("rest") ? [["rest", "reading of data"] as const] : []),
            ["rule", "waiting"],
          ]}
        />
        {inPasses.length > 0 && (
          <p class="note spaced" data-figure="in-passes">
            Communication of {inPasses.join(", ")} is a part of the passes.
          </p>
        )}
      </Card>
      {simulated && overStep.data && (
        <MemoryOverStep data={overStep.data} stale={!!overStep.error} />
      )}
      {!simulated && memory.shown && <MeasuredMemory memory={memory.shown} />}
    </View>
  );
}

// Memory of the selected rank and step, and what can be selected. An empty step is the last one.
function chosenMemory(
  all: TracedMemory[],
  rank: string,
  step: string,
): { ranks: string[]; steps: string[]; shown?: TracedMemory | undefined; error?: ErrorInfo | undefined } {
  const texts = (values: number[]) => [...new Set(values)].sort((a, b) => a - b).map(String);
  const ranks = texts(all.map((m) => m.rank));
  const steps = texts(all.map((m) => m.step));
  const wanted = step || steps.at(-1);
  const shown = all.find((m) => String(m.rank) === rank && String(m.step) === wanted);
  if (shown || all.length === 0) return { ranks, steps, shown };
  const [field, known] = ranks.includes(rank) ? ["memory_step", steps] : ["memory_rank", ranks];
  return { ranks, steps, error: { field, message: `must be ${known.join(" or ")}` } };
}
