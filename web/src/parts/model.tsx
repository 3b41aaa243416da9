// Controls and memory categories that several views share.
import type { ComponentChildren } from "preact";
import { useContext, useState } from "preact/hooks";
import type { Memory } from "../responses";
import { furtherSettings, type Setting, useAbout, useRequest } from "../api";
import { bytes, count, INTEGER, NUMBER, withDefault } from "../format";
import { type FieldProps, modelFields, type Values } from "../route";
import { Choice, type ControlProps, doublings, FieldError, Segments, Slider, TextArea, Toggle } from "./controls";

export const SHAPE = {
  model: "llama2-7b",
  by: "model",
  layers: "32",
  hidden: "4096",
  heads: "32",
  kv_heads: "",
  ffn: "",
  gated: "false",
  vocab: "32000",
  config: "",
};
export const PARALLEL = { dp: "8", dp_replicate: "1", cp: "1", ep: "1", tp: "1", pp: "1" };
export const BATCH = { micro_batch: "1", seq: "", recompute: "none", sequence_parallel: "false" };

export const MEMORY_PARTS = [
  ["params", "parameters"],
  ["grads", "gradients"],
  ["optimizer", "optimizer state"],
  ["activations", "activations"],
  ["rest", "buffers, temporary"],
] as const;

// Buffers and temporaries share a color and a piece: the total minus the other categories.
export function pieces(m: Memory): [string, string, number][] {
  let rest = m.total;
  return MEMORY_PARTS.map(([part, what]) => {
    const size = part === "rest" ? Math.max(0, rest) : (m[part] ?? 0);
    rest -= size;
    return [part, what, size];
  });
}

type Shape = typeof SHAPE;

// Model with Llama's blocks, whose sizes are replaced.
const GATED = "llama2-7b";

export function modelBody(at: Shape): Record<string, string> {
  // An empty config.json is sent too, so that the server explains what it needs.
  const further = furtherOf(at);
  if (at.by === "config") return { config: at.config || "{}", ...further };
  if (at.by !== "shape") return { model: at.model, ...further };
  const { layers, hidden, heads, kv_heads, ffn, vocab } = at;
  const sizes = { layers, hidden, heads, kv_heads, ffn, vocab, ...further };
  return at.gated === "true" ? { model: GATED, ...sizes } : sizes;
}

function furtherOf(at: Values): Values {
  return Object.fromEntries(
    Object.keys(modelFields.value).flatMap((key) => (at[key] ? [[key, at[key]]] : [])),
  );
}

// Returns the model controls of a plan that is opened in a view.
export function modelOfPlan(settings: Values): { by: string; gated: string } {
  const by = settings.config ? "config" : settings.layers ? "shape" : "model";
  return { by, gated: String(settings.model === GATED) };
}
// Returns the fields of a view that do not choose the model.
export function shapeless<T extends Values>(at: T): Values {
  return Object.fromEntries(Object.entries(at).filter(([key]) => !(key in SHAPE)));
}
// Settings of a plan with its pasted model, for the other views.
export const withModel = (settings: Values, at: Shape): Values =>
  at.by === "config" ? { ...settings, config: at.config } : settings;

type Named = FieldProps & Partial<Pick<ControlProps, "label">>;

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

export function HardwareChoice(bound: FieldProps) {
  const hardware = useAbout()?.hardware ?? [];
  return (
    <Choice
      label="GPU"
      {...bound}
      options={hardware.map((h): [string, string] => [h.name, `${h.name} · ${bytes(h.memory)}`])}
    />
  );
}

export function LayoutChoice(bound: FieldProps) {
  const layouts = useAbout()?.layouts ?? [];
  return (
    <Choice
      label="State layout"
      {...bound}
      options={layouts.map((l): [string, string] => [l.name, `${l.name} · ${l.total} B/param`])}
    />
  );
}

export function StageChoice({ label = "ZeRO stage", ...bound }: Named) {
  return <Segments label={label} {...bound} options={[["0", "DDP"], "1", "2", "3"]} />;
}

// Hybrid sharding. Requests omit dp_replicate = 1, the default.
export function ReplicasSlider(bound: FieldProps) {
  return <Slider label="Replicas (HSDP)" {...bound} stops={doublings(1, 64)} />;
}
export function replicas(at: { dp_replicate: string }): Record<string, string> {
  return at.dp_replicate === "1" ? {} : { dp_replicate: at.dp_replicate };
}
// Context and expert parallelism of a request, if there is any.
export function contextAndExperts(at: { cp: string; ep: string }): Record<string, string> {
  return { ...(at.cp === "1" ? {} : { cp: at.cp }), ...(at.ep === "1" ? {} : { ep: at.ep }) };
}

// Expert parallelism, for models with experts and for pasted ones.
export function ExpertSlider({ at, ...bound }: FieldProps & { at: Pick<Shape, "by" | "model"> & Values }) {
  const model = useAbout()?.models.find((m) => m.name === at.model);
  const named = at.by === "model" && (model?.experts ?? 0) > 0;
  const possible = at.by === "config" || named || (at.by !== "size" && Number(at.experts) > 0);
  if (!possible && bound.value === "1") return null;
  return (
    <Slider
      label="Expert parallel"
      {...bound}
      stops={doublings(1, 64)}
      hint="GPUs that share the experts of a layer. They are those of data and context parallelism."
    />
  );
}

// `used` is the sequence length of the last response, which states the default as a number.
export function SequenceSlider({
  used,
  label = "Sequence length",
  longest = 32768,
  ...bound
}: Named & Pick<ControlProps, "disabled"> & { used: number | undefined; longest?: number }) {
  return (
    <Slider
      label={label}
      {...bound}
      unit={withDefault(INTEGER, used ? `${used} (default)` : "default")}
      stops={["", ...doublings(512, longest)]}
    />
  );
}

const SOURCES: [string, string][] = [
  ["model", "name"],
  ["shape", "shape"],
  ["config", "config.json"],
];

// Controls that choose a model. With `children`, the control of a number of parameters, a model may
// also be given by its size.
export function ModelFields({
  field,
  children,
}: {
  field: (name: keyof Shape) => FieldProps;
  children?: ComponentChildren;
}) {
  const by = field("by");
  const about = useAbout();
  const further = furtherSettings(about);
  const axes = further.filter((s) => about?.axes.includes(s.name));
  const others = further.filter((s) => !axes.includes(s));
  const fieldOf = field as (name: string) => FieldProps;
  return (
    <>
      <Segments
        label="Model by"
        {...by}
        options={children ? [["size", "size"], ...SOURCES] : SOURCES}
      />
      {by.value === "size" && children}
      {by.value === "model" && <ModelChoice label="Name" {...field("model")} />}
      {by.value === "shape" && <ShapeFields field={field} />}
      {by.value === "config" && <ConfigField {...field("config")} />}
      {by.value !== "size" && others.length > 0 && <Further settings={others} field={fieldOf} />}
      {by.value !== "size" && axes.map((s) => <SettingControl key={s.name} setting={s} field={fieldOf} />)}
    </>
  );
}

// Controls of settings as the server describes them, closed unless one is set or refused.
function Further({ settings, field }: { settings: Setting[]; field: (name: string) => FieldProps }) {
  const error = useContext(FieldError);
  const set = settings.some((s) => field(s.name).value !== "" || error?.field === s.name);
  const [opened, setOpened] = useState(false); // stays open when a setting is removed
  return (
    <details class="further" open={set || opened} onToggle={(e) => setOpened(e.currentTarget.open)}>
      <summary>Experts</summary>
      {settings.map((s) => (
        <SettingControl key={s.name} setting={s} field={field} />
      ))}
    </details>
  );
}

function SettingControl({ setting: s, field }: { setting: Setting; field: (name: string) => FieldProps }) {
  const shared = { label: titleOf(s), hint: s.help, ...field(s.name) };
  return s.choices.length > 0 ? (
    <Choice {...shared} options={[["", defaultOf(s)], ...s.choices.map((c): [string, string] => [c, c])]} />
  ) : (
    <Slider
      {...shared}
      stops={stopsOf(s)}
      unit={withDefault(s.type === "INT" ? INTEGER : NUMBER, defaultOf(s))}
    />
  );
}
const titleOf = (s: Setting): string => {
  const words = s.name.replace(/_/g, " ");
  return words.length <= 2 ? words : words.charAt(0).toUpperCase() + words.slice(1);
};
const defaultOf = (s: Setting): string => s.default || "model's";
const NUMBERS = [0, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 4];
const stopsOf = (s: Setting): (number | string)[] => {
  const all = s.type === "INT" ? [0, ...doublings(1, 16384)] : NUMBERS;
  return ["", ...all.filter((v) => v >= (s.least ?? 0) && v <= (s.most ?? Infinity))];
};

function ShapeFields({ field }: { field: (name: keyof Shape) => FieldProps }) {
  return (
    <>
      <Slider
        label="Layers"
        {...field("layers")}
        stops={[2, 4, 6, 8, 12, 16, 24, 32, 36, 40, 48, 64, 80, 96, 126]}
      />
      <Slider
        label="Hidden size"
        {...field("hidden")}
        stops={[256, 512, 768, 1024, 1600, 2048, 2560, 4096, 5120, 6144, 8192, 12288, 16384]}
      />
      <Slider
        label="Heads"
        {...field("heads")}
        stops={[2, 4, 8, 12, 16, 25, 32, 40, 48, 64, 96, 128]}
      />
      <Slider
        label="KV heads"
        {...field("kv_heads")}
        unit={withDefault(INTEGER, "heads")}
        stops={["", 1, 2, 4, 8, 16, 32, 64]}
        hint="heads of keys and values; fewer than heads: grouped-query attention"
      />
      <Slider
        label="FFN width"
        {...field("ffn")}
        unit={withDefault(INTEGER, field("gated").value === "true" ? "2.69 · hidden" : "4 · hidden")}
        stops={["", 1024, 2048, 4096, 8192, 11008, 13824, 14336, 16384, 28672, 53248]}
      />
      <Toggle
        label="Gated MLP"
        {...field("gated")}
        hint="Llama's blocks: three MLP matrices, rotary positions, no biases, an untied head. Off: GPT-2's"
      />
      <Slider label="Vocabulary" {...field("vocab")} stops={[256, 32000, 50257, 128256, 151936]} />
    </>
  );
}

interface ParsedModel {
  params: number;
  layers: number;
  hidden: number;
  heads: number;
  kv_heads: number;
  ffn: number;
  vocab: number;
  context: number;
  experts: number;
  family: string;
  gated: boolean;
  notes: string[];
}

function ConfigField(bound: FieldProps) {
  const { value, onChange } = bound;
  const { data, error } = useRequest<ParsedModel>("api/model", { config: value }, value !== "");
  const m = error || value === "" ? undefined : data;
  return (
    <>
      <TextArea
        label="config.json of Hugging Face"
        {...bound}
        onChange={(text) => onChange(compact(text))}
        placeholder={'{"model_type": "llama", …}'}
        hint={value === "" ? "Paste the file. It stays in the URL." : undefined}
      />
      {m && (
        <p class="hint" data-figure="parsed-model">
          {count(m.params)} parameters, {m.family}: {m.layers} layers × {m.hidden}, {m.heads} heads
          {m.kv_heads !== m.heads ? ` (${m.kv_heads} KV)` : ""}, {m.gated ? "gated MLP" : "MLP"}{" "}
          {m.ffn}, {m.experts > 0 ? `${m.experts} experts, ` : ""}vocabulary {m.vocab}, context {m.context}.{" "}
          {m.notes.map((note) => `${note}. `)}Commands expect the file in the folder <code>./model</code>.
        </p>
      )}
    </>
  );
}

// Removes the white space of valid JSON.
function compact(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text.trim();
  }
}
