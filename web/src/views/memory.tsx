// Memory of DDP and the ZeRO stages side by side, against what the GPU can hold.
import type { ZeroAnswer } from "../answers";
import { question, useAnswer } from "../api";
import { bytes, count, typed } from "../format";
import { doublings, Segments, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { MemoryBars } from "../parts/memory_bars";
import {
  BATCH,
  HardwareChoice,
  LayoutChoice,
  MEMORY_PARTS,
  ModelFields,
  modelQuestion,
  PARALLEL,
  ReplicasSlider,
  replicas,
  SequenceSlider,
  SHAPE,
  StageChoice,
} from "../parts/model";
import { Owners } from "../parts/owners";
import { useFields } from "../route";

const DEFAULTS = {
  ...SHAPE,
  ...PARALLEL,
  ...BATCH,
  by: "size",
  params: "7000000000",
  zero: "2",
  layout: "bf16",
  hardware: "h100",
  // Of a plan that was carried here: they hold as long as its pipeline does.
  plan_pp: "",
  schedule: "",
  chunks: "",
  grad_accum: "",
};

const SIZES = [
  0.125e9, 0.35e9, 0.76e9, 1e9, 1.3e9, 1.5e9, 2e9, 2.7e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9, 10e9, 13e9,
  20e9, 30e9, 34e9, 50e9, 70e9, 100e9, 130e9, 175e9, 250e9, 405e9, 540e9, 1000e9,
];

export function MemoryView() {
  const { at, set, field } = useFields("memory", DEFAULTS);
  const sized = at.by === "size";
  const body = question({
    ...(sized ? { params: at.params } : modelQuestion(at)),
    dp: at.dp,
    ...replicas(at),
    tp: at.tp,
    pp: at.pp,
    layout: at.layout,
    hardware: at.hardware,
    ...(sized
      ? {}
      : {
          micro_batch: at.micro_batch,
          seq: at.seq,
          recompute: at.recompute,
          sequence_parallel: at.sequence_parallel,
          ...(at.plan_pp !== "" && at.plan_pp === at.pp
            ? { schedule: at.schedule, chunks: at.chunks, grad_accum: at.grad_accum }
            : {}),
        }),
  });
  const { data, error, busy } = useAnswer<ZeroAnswer>("api/zero", body);
  const chosen = data?.stages.find((s) => String(s.stage) === at.zero);
  const ddp = data?.stages[0];

  return (
    <View
      title="Memory"
      lead="What one GPU must hold to train, when nothing is sharded and at each stage of ZeRO."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <Segments
            label="Model"
            {...field("by")}
            options={[
              ["size", "by size"],
              ["model", "by name"],
              ["shape", "by shape"],
            ]}
          />
          {sized ? (
            <Slider
              label="Parameters"
              name="params"
              value={at.params}
              stops={SIZES}
              show={typed(count)}
              onChange={(params) => set({ params: params.replace(/\s/g, "") })}
            />
          ) : (
            <ModelFields by={at.by} field={field} />
          )}
          <hr />
          <Slider
            label="Data parallel"
            {...field("dp")}
            also={["gpus"]}
            stops={doublings(1, 1024)}
          />
          <ReplicasSlider {...field("dp_replicate")} />
          <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 16)} />
          <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 64)} />
          <StageChoice label="Stage to look at" {...field("zero")} />
          <LayoutChoice {...field("layout")} />
          <HardwareChoice {...field("hardware")} />
          <hr />
          <Slider
            label="Micro-batch"
            {...field("micro_batch")}
            stops={[1, 2, 3, 4, 6, 8, 12, 15, 16, 24, 32, 64]}
            disabled={sized}
          />
          <SequenceSlider {...field("seq")} disabled={sized} />
          <Segments
            label="Recompute"
            {...field("recompute")}
            also={["checkpoint_activations"]}
            options={["none", "selective", "full"]}
            disabled={sized}
          />
          <Toggle label="Sequence parallel" {...field("sequence_parallel")} disabled={sized} />
          {sized && (
            <p class="hint">Activations need a shape: choose a model by name or by shape.</p>
          )}
        </>
      }
      tries={
        <>
          <p>
            Drag <strong>data parallel</strong> from 1 to 64. DDP's bar stands still: every replica
            keeps everything. ZeRO-3's shrinks with every doubling.
          </p>
          <p>
            Then choose <strong>by name</strong>, llama2-7b, and raise the micro-batch: what grows
            now is the activations, and no stage of ZeRO shards those. Recompute does.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Most of the 16 bytes of a parameter are optimizer state, so <strong>stage 1</strong>{" "}
            already brings most of the saving, and sends no more than DDP. Stage 3 sends half as
            much again.
          </p>
        </>
      }
    >
      <Card
        title="One GPU's memory"
        note={
          data?.capacity
            ? `dashed: ${bytes(data.capacity)} that ${at.hardware} can fill`
            : undefined
        }
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
            Dotted: what a model of about this size needs besides for activations and buffers, a
            guess. “Fits” counts it.
          </p>
        )}
      </Card>
      {data && chosen && ddp && (
        <Card title={`${chosen.name}, in figures`}>
          <Figures
            items={[
              {
                label: "On each GPU",
                key: "total",
                value: bytes(chosen.memory.total),
                tone: chosen.fits ? "good" : "bad",
                note: chosen.fits ? "fits" : `more than ${bytes(data.capacity)}`,
              },
              { label: "Parameters", key: "params", value: bytes(chosen.memory.params) },
              { label: "Gradients", key: "grads", value: bytes(chosen.memory.grads) },
              { label: "Optimizer state", key: "optimizer", value: bytes(chosen.memory.optimizer) },
              ...(chosen.memory.activations == null
                ? []
                : [
                    {
                      label: "Activations",
                      key: "activations",
                      value: bytes(chosen.memory.activations),
                    },
                  ]),
              {
                label: "Sent per step",
                key: "sent",
                value: bytes(chosen.sent.total),
                note: `DDP: ${bytes(ddp.sent.total)}`,
              },
              {
                label: "Copies of the state",
                key: "copies",
                value: chosen.copies.toFixed(2),
                note: `${bytes(chosen.state_in_all)} in all`,
              },
            ]}
          />
        </Card>
      )}
      <div class="two">
        <Card title="The formula, with the numbers in it">
          <ul class="formula">
            {data?.formula.map((f) => (
              <li key={f.stage} class={String(f.stage) === at.zero ? "on" : ""}>
                <b>{data.stages[f.stage]?.name}</b> {f.text}
              </li>
            ))}
          </ul>
        </Card>
        <Card title="Which rank holds what" note={chosen?.name}>
          {data && chosen && (
            <Owners stage={chosen} owners={data.owners} parameters={data.parameters_on_a_rank} />
          )}
          <Legend items={MEMORY_PARTS.slice(0, 3)} />
        </Card>
      </div>
    </View>
  );
}
