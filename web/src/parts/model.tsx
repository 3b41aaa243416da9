// What several views share: the fields of a question, and the parts of memory.
import type { Memory } from "../answers";
import { useAbout } from "../api";
import { bytes, count } from "../format";
import type { Bound } from "../route";
import { Choice, type Common, doublings, Segments, Slider } from "./controls";

export const SHAPE = {
  model: "llama2-7b",
  by: "model",
  layers: "32",
  hidden: "4096",
  heads: "32",
  vocab: "32000",
};
export const PARALLEL = { dp: "8", dp_replicate: "1", tp: "1", pp: "1" };
export const BATCH = { micro_batch: "1", seq: "", recompute: "none", sequence_parallel: "false" };

export const MEMORY_PARTS = [
  ["params", "parameters"],
  ["grads", "gradients"],
  ["optimizer", "optimizer state"],
  ["activations", "activations"],
  ["rest", "buffers, temporary"],
] as const;

// Buffers and temporaries share a colour, so they share a piece: what the parts before leave.
export function pieces(m: Memory): [string, string, number][] {
  let rest = m.total;
  return MEMORY_PARTS.map(([part, what]) => {
    const size = part === "rest" ? Math.max(0, rest) : (m[part] ?? 0);
    rest -= size;
    return [part, what, size];
  });
}

type Shape = typeof SHAPE;

export function modelQuestion(at: Shape): Record<string, string> {
  if (at.by !== "shape") return { model: at.model };
  return { layers: at.layers, hidden: at.hidden, heads: at.heads, vocab: at.vocab };
}

type Named = Bound & Partial<Pick<Common, "label">>;

export function ModelChoice({ label = "Model", ...bound }: Named) {
  const models = useAbout()?.models ?? [];
  return (
    <Choice
      label={label}
      {...bound}
      options={models.map((m): [string, string] => [m.name, `${m.name} · ${count(m.params)}`])}
    />
  );
}

export function HardwareChoice(bound: Bound) {
  const hardware = useAbout()?.hardware ?? [];
  return (
    <Choice
      label="GPU"
      {...bound}
      options={hardware.map((h): [string, string] => [h.name, `${h.name} · ${bytes(h.memory)}`])}
    />
  );
}

export function LayoutChoice(bound: Bound) {
  const layouts = useAbout()?.layouts ?? [];
  return (
    <Choice
      label="State layout"
      {...bound}
      options={layouts.map((l): [string, string] => [l.name, `${l.name} · ${l.total} B`])}
    />
  );
}

export function StageChoice({ label = "ZeRO stage", ...bound }: Named) {
  return <Segments label={label} {...bound} options={[["0", "DDP"], "1", "2", "3"]} />;
}

// Hybrid sharding. Questions leave one replica out, as stage 0 has to.
export function ReplicasSlider(bound: Bound) {
  return <Slider label="Replicas" {...bound} stops={doublings(1, 64)} />;
}
export function replicas(at: { dp_replicate: string }): Record<string, string> {
  return at.dp_replicate === "1" ? {} : { dp_replicate: at.dp_replicate };
}

export function SequenceSlider(bound: Bound & Pick<Common, "disabled">) {
  return (
    <Slider
      label="Sequence"
      {...bound}
      show={(v) => v || "the model's"}
      stops={["", 512, 1024, 2048, 4096, 8192, 16384, 32768]}
    />
  );
}

export function ModelFields({ by, field }: { by: string; field: (name: keyof Shape) => Bound }) {
  if (by !== "shape") return <ModelChoice label="Name" {...field("model")} />;
  return (
    <>
      <Slider
        label="Layers"
        {...field("layers")}
        stops={[2, 4, 6, 8, 12, 16, 24, 32, 36, 40, 48, 64, 80, 96, 126]}
      />
      <Slider
        label="Hidden"
        {...field("hidden")}
        stops={[256, 512, 768, 1024, 1600, 2048, 2560, 4096, 5120, 6144, 8192, 12288, 16384]}
      />
      <Slider
        label="Heads"
        {...field("heads")}
        stops={[2, 4, 8, 12, 16, 25, 32, 40, 48, 64, 96, 128]}
      />
      <Slider label="Vocabulary" {...field("vocab")} stops={[256, 32000, 50257, 128256, 151936]} />
    </>
  );
}
