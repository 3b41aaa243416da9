// The fields of a question that several views share.
import { useAbout } from "../api";
import { count } from "../format";
import { Choice, Slider } from "./controls";

export const SHAPE = {
  model: "llama2-7b",
  by: "model",
  layers: "32",
  hidden: "4096",
  heads: "32",
  vocab: "32000",
};
export const PARALLEL = { dp: "8", tp: "1", pp: "1" };
export const BATCH = { micro_batch: "1", seq: "", recompute: "none", sequence_parallel: "false" };

export const MEMORY_PARTS = [
  ["params", "parameters"],
  ["grads", "gradients"],
  ["optimizer", "optimizer state"],
  ["activations", "activations"],
  ["rest", "buffers, temporary"],
] as const;

type Shape = typeof SHAPE;

export function modelQuestion(at: Shape): Record<string, string> {
  if (at.by !== "shape") return { model: at.model };
  return { layers: at.layers, hidden: at.hidden, heads: at.heads, vocab: at.vocab };
}

export function ModelFields({ at, set }: { at: Shape; set: (changes: Partial<Shape>) => void }) {
  const about = useAbout();
  if (at.by !== "shape") {
    const options = (about?.models ?? []).map((m): [string, string] => [
      m.name,
      `${m.name} · ${count(m.params)}`,
    ]);
    return (
      <Choice
        label="Name"
        name="model"
        value={at.model}
        options={options}
        onChange={(model) => set({ model })}
      />
    );
  }
  return (
    <>
      <Slider
        label="Layers"
        name="layers"
        value={at.layers}
        stops={[2, 4, 6, 8, 12, 16, 24, 32, 36, 40, 48, 64, 80, 96, 126]}
        onChange={(layers) => set({ layers })}
      />
      <Slider
        label="Hidden"
        name="hidden"
        value={at.hidden}
        stops={[256, 512, 768, 1024, 1600, 2048, 2560, 4096, 5120, 6144, 8192, 12288, 16384]}
        onChange={(hidden) => set({ hidden })}
      />
      <Slider
        label="Heads"
        name="heads"
        value={at.heads}
        stops={[2, 4, 8, 12, 16, 25, 32, 40, 48, 64, 96, 128]}
        onChange={(heads) => set({ heads })}
      />
      <Slider
        label="Vocabulary"
        name="vocab"
        value={at.vocab}
        stops={[256, 32000, 50257, 128256, 151936]}
        onChange={(vocab) => set({ vocab })}
      />
    </>
  );
}
