// Memory of DDP and the ZeRO stages side by side, compared with the GPU's usable memory.
import type { Stage, ZeroResponse } from "../responses";
import { requestBody, useRequest } from "../api";
import { bytes, bytesOf, COUNT } from "../format";
import { doublings, Segments, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { MemoryBars } from "../parts/memory_bars";
import { MemoryOverStep, useMemoryOverStep } from "../parts/memory_over_step";
import {
  BATCH,
  HardwareChoice,
  LayoutChoice,
  MEMORY_PARTS,
  ModelFields,
  modelBody,
  modelOfPlan,
  contextAndExperts,
  ExpertSlider,
  PARALLEL,
  ReplicasSlider,
  replicas,
  SequenceSlider,
  SHAPE,
  StageChoice,
} from "../parts/model";
import { PlanNote } from "../parts/plan_details";
import { Shards } from "../parts/shards";
import { useFields } from "../route";

const DEFAULTS = {
  ...SHAPE,
  ...PARALLEL,
  ...BATCH,
  by: "size",
  params: "7000000000",
  zero: "2",
  layout: "bf16",
  optimizer_state: "fp32",
  offload: "none",
  hardware: "h100",
};

const SIZES = [
  0.125e9, 0.35e9, 0.76e9, 1e9, 1.3e9, 1.5e9, 2e9, 2.7e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9, 10e9, 13e9,
  20e9, 30e9, 34e9, 50e9, 70e9, 100e9, 130e9, 175e9, 250e9, 405e9, 540e9, 1000e9,
];

// Categories that the size of a model only estimates.
const REST = [
  ["activations", "Activations"],
  ["buffers", "Buffers"],
  ["temporary", "Temporaries"],
] as const;

const unknownStage = (zero: string) => ({
  field: "zero",
  message: `got ${zero}; must be 0, 1, 2 or 3`,
});

// For example "dp 5.9 GB, tp 2.2 GB".
const axes = ({ total: _total, ...sent }: Stage["sent_by_axis"]): string =>
  Object.entries(sent)
    .filter(([, bytesSent]) => bytesSent !== 0)
    .map(([axis, v]) => `${axis} ${v == null ? "unknown (select a model by name)" : bytes(v)}`)
    .join(", ") || "nothing";

export function MemoryView() {
  const { at, plan, set, field } = useFields("memory", DEFAULTS, modelOfPlan);
  const sized = at.by === "size";
  const body = requestBody({
    ...(sized ? { params: at.params } : modelBody(at)),
    dp: at.dp,
    ...replicas(at),
    ...contextAndExperts(at),
    tp: at.tp,
    pp: at.pp,
    layout: at.layout,
    ...(at.optimizer_state === "fp32" ? {} : { optimizer_state: at.optimizer_state }),
    ...(at.offload === "none" ? {} : { offload: at.offload }),
    hardware: at.hardware,
    ...(sized
      ? {}
      : {
          ...plan.others,
          micro_batch: at.micro_batch,
          seq: at.seq,
          recompute: at.recompute,
          sequence_parallel: at.sequence_parallel,
        }),
  });
  const { data, error, busy } = useRequest<ZeroResponse>("api/zero", body);
  const overStep = useMemoryOverStep({ ...body, ...requestBody({ zero: at.zero }) }, !sized);
  const chosen = data?.stages.find((s) => String(s.stage) === at.zero);
  const ddp = data?.stages[0];

  return (
    <View
      title="Memory"
      lead="Memory that one GPU needs for training, with DDP and with each ZeRO stage."
      error={error ?? (data && !chosen ? unknownStage(at.zero) : undefined)}
      stale={!!error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <PlanNote plan={plan} view="memory" />
          <ModelFields field={field}>
            <Slider label="Parameters" {...field("params")} stops={SIZES} unit={COUNT} />
          </ModelFields>
          <hr />
          <Slider
            label="Data parallel"
            {...field("dp")}
            also={["gpus"]}
            stops={doublings(1, 1024)}
          />
          <ReplicasSlider {...field("dp_replicate")} />
          <Slider label="Context parallel" {...field("cp")} stops={doublings(1, 64)} />
          <ExpertSlider at={at} {...field("ep")} />
          <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 16)} />
          <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 64)} />
          <StageChoice label="Highlight stage" {...field("zero")} />
          <LayoutChoice {...field("layout")} />
          <Segments
            label="AdamW's moments"
            {...field("optimizer_state")}
            options={["fp32", "bf16", "int8"]}
          />
          <Segments
            label="Optimizer state in"
            {...field("offload")}
            options={[
              ["none", "memory"],
              ["optimizer", "files"],
            ]}
            hint={
              at.offload === "none" && at.optimizer_state === "fp32"
                ? undefined
                : "The trainer supports moments of 16 or 8 bits and state in files on CPUs."
            }
          />
          <HardwareChoice {...field("hardware")} />
          <hr />
          <Slider
            label="Micro-batch"
            {...field("micro_batch")}
            stops={[1, 2, 3, 4, 6, 8, 12, 15, 16, 24, 32, 64]}
            disabled={sized}
          />
          <SequenceSlider
            {...field("seq")}
            label={at.by === "shape" ? "Context (sequence length)" : undefined}
            used={data?.seq ?? undefined}
            disabled={sized}
          />
          <Segments
            label="Recompute"
            {...field("recompute")}
            also={["checkpoint_activations"]}
            options={["none", "selective", "full"]}
            disabled={sized}
          />
          <Toggle label="Sequence parallel" {...field("sequence_parallel")} disabled={sized} />
          {sized && (
            <p class="hint">To compute activations instead of estimating them, select a model by name or by shape.</p>
          )}
        </>
      }
      tries={
        <>
          <p>
            Drag <strong>data parallel</strong> from 1 to 64. The DDP bar does not change, because
            every replica stores everything. The ZeRO-3 bar halves with each doubling.
          </p>
          <p>
            Then select the model by <strong>name</strong>, llama2-7b, and increase the micro-batch. The
            activations grow, and no ZeRO stage shards them. Recompute reduces them.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Most of the 16 bytes per parameter are optimizer state, so <strong>stage 1</strong>{" "}
            already brings most of the saving and sends no more than DDP. Stage 3 sends 1.5 times
            as much.
          </p>
        </>
      }
    >
      <Card
        title="Memory of one GPU"
        note={
          data?.capacity
            ? `dashed: usable on ${at.hardware}: ${bytesOf(data.capacity, data.capacity_total)}`
            : undefined
        }
        pinned
      >
        {data && (
          <MemoryBars
            stages={data.stages}
            capacity={data.capacity}
            fitsFrom={data.fits_from_dp}
            chosen={at.zero}
            choose={(zero) => set({ zero })}
          />
        )}
        <Legend items={sized ? MEMORY_PARTS.slice(0, 3) : MEMORY_PARTS} />
        {sized && data?.stages.some((s) => s.assumed) && (
          <p class="note spaced">
            Dotted: estimated activations, buffers and temporaries of a model of this size. The value after ≈
            and “fits” include them.
          </p>
        )}
      </Card>
      {data && chosen && ddp && (
        <Card title={`${chosen.name} in detail`}>
          <Figures
            items={[
              {
                label: "Per GPU",
                key: "total",
                value: bytes(chosen.needed),
                tone: chosen.fits ? "good" : "bad",
                note: chosen.fits ? "fits" : `exceeds ${bytes(data.capacity)}`,
              },
              { label: "Parameters", key: "params", value: bytes(chosen.memory.params) },
              { label: "Gradients", key: "grads", value: bytes(chosen.memory.grads) },
              { label: "Optimizer state", key: "optimizer", value: bytes(chosen.memory.optimizer) },
              ...(chosen.memory.on_disk
                ? [{ label: "In files", key: "on-disk", value: bytes(chosen.memory.on_disk), note: "optimizer state of a rank" }]
                : []),
              ...REST.map(([key, label]) => ({
                label,
                key,
                value: bytes((chosen.assumed ?? chosen.memory)[key]),
                note: chosen.assumed ? "estimated" : undefined,
              })),
              {
                label: "Sent per step",
                key: "sent",
                value: bytes(chosen.sent_by_axis.total),
                note: `${axes(chosen.sent_by_axis)}; DDP: ${bytes(ddp.sent_by_axis.total)}`,
              },
              {
                label: "Copies of the state",
                key: "copies",
                value: chosen.copies.toFixed(2),
                note: `${bytes(chosen.state_in_all)} in total`,
              },
            ]}
          />
        </Card>
      )}
      {!sized && overStep.data && (
        <MemoryOverStep data={overStep.data} stale={!!overStep.error} />
      )}
      <div class="two">
        <Card title="Formula with these numbers">
          <ul class="formula">
            {data?.formula.map((f) => (
              <li key={f.stage} class={String(f.stage) === at.zero ? "on" : ""}>
                <b>{data.stages[f.stage]?.name}</b> {f.text}
              </li>
            ))}
          </ul>
        </Card>
        <Card title="Shards of each rank" note={chosen?.name}>
          {data && chosen && (
            <Shards stage={chosen} owners={data.owners} parameters={data.parameters_on_a_rank} />
          )}
          <Legend items={MEMORY_PARTS.slice(0, 3)} />
          {Number(at.ep) > 1 && (
            <p class="note spaced" data-figure="expert-shards">
              Outside experts. The state of experts is sharded over dp · cp / ep GPUs.
            </p>
          )}
        </Card>
      </div>
    </View>
  );
}
