// Context parallelism: the keys of each rank in each step, the causal work of each rank, the bytes
// of both kinds, and memory.
import type { ContextResponse, ContextWork } from "../responses";
import { requestBody, useRequest } from "../api";
import { bytes, plain, seconds, share, whole } from "../format";
import { doublings, Segments, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { HeadGrids, KeyGrid, KeyRing } from "../parts/key_ring";
import {
  BATCH,
  HardwareChoice,
  LayoutChoice,
  MEMORY_PARTS,
  modelBody,
  ModelFields,
  modelOfPlan,
  ExpertSlider,
  PARALLEL,
  pieces,
  ReplicasSlider,
  replicas,
  SequenceSlider,
  SHAPE,
  StageChoice,
} from "../parts/model";
import { PlanNote } from "../parts/plan_details";
import { Player } from "../parts/player";
import { type Bar, Bars } from "../parts/stack";
import { useFields } from "../route";

const DEFAULTS = {
  ...SHAPE,
  model: "llama3-8b",
  ...PARALLEL,
  dp: "2",
  cp: "4",
  cp_kind: "auto",
  ...BATCH,
  seq: "32768",
  zero: "3",
  layout: "bf16",
  hardware: "h100",
  order: "zigzag",
  step: "0",
};
const ORDERS: [string, string][] = [
  ["zigzag", "zig-zag"],
  ["in_order", "in order"],
];
const SENT = [
  ["forward", "forward", "forward"],
  ["recompute", "accent", "recomputed forward"],
  ["backward", "backward", "backward"],
] as const;
// Bars of more ranks would not fit on a screen: the first and the last ones are shown.
const MOST_BARS = 16;

function workBars(work: ContextWork, reach: number): Bar[] {
  const ranks = work.total.map((total, rank) => ({ total, rank }));
  const shown = ranks.length <= MOST_BARS ? ranks : [...ranks.slice(0, 8), ...ranks.slice(-8)];
  return shown.map(({ total, rank }) => ({
    name: `rank ${rank}`,
    pieces: [
      ["cp", "attention", total],
      ["rest", "waiting", work.longest - total],
    ],
    value: <span data-value={total}>{plain(total)}</span>,
    reach,
  }));
}

export function ContextView() {
  const { at, plan, set, field } = useFields("context", DEFAULTS, (settings) => ({
    ...modelOfPlan(settings),
    cp: settings.cp ?? "1",
    cp_kind: settings.cp_kind ?? "auto",
    seq: settings.seq ?? "",
  }));
  const body = requestBody({
    ...plan.others,
    ...modelBody(at),
    dp: at.dp,
    ...replicas(at),
    cp: at.cp,
    ...(at.ep === "1" ? {} : { ep: at.ep }),
    ...(at.cp_kind === "auto" ? {} : { cp_kind: at.cp_kind }),
    tp: at.tp,
    pp: at.pp,
    seq: at.seq,
    micro_batch: at.micro_batch,
    recompute: at.recompute,
    sequence_parallel: at.sequence_parallel,
    zero: at.zero,
    layout: at.layout,
    hardware: at.hardware,
  });
  const { data, error, busy } = useRequest<ContextResponse>("api/context", body);
  const last = Math.max(0, (data?.cp ?? 1) - 1);
  const step = Math.min(Math.max(0, Number(at.step) || 0), last);
  const work = at.order === "in_order" ? data?.in_order : data?.zigzag;
  const chosen = data?.kinds.find((k) => k.kind === data.kind);
  const ring = data?.kinds.find((k) => k.kind === "ring");
  const ulysses = data?.kinds.find((k) => k.kind === "ulysses");
  const reach = Math.max(data?.in_order.longest ?? 0, data?.zigzag.longest ?? 0);
  const recomputes = data?.kinds.some((k) => (k.sent?.recompute ?? 0) > 0);

  return (
    <View
      title="Context parallelism"
      lead="The tokens of each sequence are shared by several ranks. Only attention has to communicate."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <PlanNote plan={plan} view="context" />
          <Slider
            label="Context parallel"
            {...field("cp", { step: "0" })}
            stops={[1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64]}
          />
          <SequenceSlider {...field("seq")} used={data?.seq} longest={1 << 20} />
          <Segments label="Kind" {...field("cp_kind")} options={["auto", "ring", "ulysses"]} />
          <Segments
            label="Chunks of a rank"
            {...field("order")}
            options={ORDERS}
            hint="Runs use zig-zag; in order is drawn for comparison."
          />
          <hr />
          <ModelFields field={field} />
          <hr />
          <Slider label="Data parallel" {...field("dp")} also={["gpus"]} stops={doublings(1, 1024)} />
          <ReplicasSlider {...field("dp_replicate")} />
          <ExpertSlider at={at} {...field("ep")} />
          <Slider label="Tensor parallel" {...field("tp")} stops={doublings(1, 16)} />
          <Slider label="Pipeline parallel" {...field("pp")} stops={doublings(1, 64)} />
          <StageChoice {...field("zero")} />
          <LayoutChoice {...field("layout")} />
          <HardwareChoice {...field("hardware")} />
          <Slider label="Micro-batch" {...field("micro_batch")} stops={[1, 2, 3, 4, 6, 8, 12, 16]} />
          <Segments
            label="Recompute"
            {...field("recompute")}
            also={["checkpoint_activations"]}
            options={["none", "selective", "full"]}
          />
          <Toggle label="Sequence parallel" {...field("sequence_parallel")} />
        </>
      }
      tries={
        <>
          <p>
            Press <strong>Play</strong>: keys and values pass from rank to rank, until every rank
            has seen all of them. Then set the <strong>chunks</strong> to <em>in order</em>: rank 0
            is idle after the first step, and the last rank works in all of them.
          </p>
          <p>
            Double the <strong>sequence length</strong> and <strong>context parallel</strong>{" "}
            together: the activations of a GPU stay about the same.
          </p>
        </>
      }
      notices={
        <>
          <p>
            A late token sees more keys than an early one. In <strong>zig-zag</strong>, a rank has a
            chunk from the front and one from the back, which together have the same work on every
            rank.
          </p>
          <p>
            A ring sends keys and values to all others, while it computes. <strong>Ulysses</strong>{" "}
            sends less with many ranks, but cp must divide the heads, and attention waits for it.
          </p>
        </>
      }
    >
      <Card
        title="Summary"
        note={data && `cp ${data.cp}, ${data.cp === 1 ? "no communication" : data.kind}`}
        pinned
      >
        <Figures
          items={[
            {
              label: "Tokens of a rank",
              key: "tokens",
              value: whole(data?.tokens),
              note:
                data &&
                `${data.chunks} ${data.chunks === 1 ? "chunk" : "chunks"} of ${whole(data.chunk_tokens)}` +
                  (data.padded === data.seq ? "" : `, padded from ${whole(data.seq)}`),
            },
            {
              label: "Without zig-zag",
              key: "slowdown",
              value: data ? `${data.slowdown.toFixed(2)}×` : "–",
              note: "the time of attention: chunks in order",
            },
            {
              label: "Sent along cp",
              key: "sent-per-step",
              value: bytes(chosen?.sent_per_step),
              note: "per step and GPU",
            },
            {
              label: "Waiting for cp",
              key: "waiting",
              value: seconds(chosen?.waiting),
              note: chosen?.step
                ? `${share((chosen.waiting ?? 0) / chosen.step)} of a step of ${seconds(chosen.step)}`
                : undefined,
            },
            {
              label: "Memory of a GPU",
              key: "memory",
              value: bytes(chosen?.memory?.total),
              tone: chosen ? (chosen.fits ? "good" : "bad") : undefined,
              note: data && `of ${bytes(data.capacity)}, ${data.hardware}`,
            },
          ]}
        />
      </Card>
      <Card
        title="Ring: keys and values of each rank"
        note={data && <span data-figure="ring-step">{`step ${step} of ${last}`}</span>}
      >
        {data && work && (
          <>
            <div class={data.cp <= 8 ? "two" : ""}>
              <KeyRing data={data} work={work} step={step} />
              <KeyGrid data={data} work={work} step={step} />
            </div>
            <Player step={step} last={last} go={(to) => set({ step: String(to) })} />
            <p class="note spaced">
              A color is the rank that the keys belong to. Work of 1 is attention of a chunk to an
              earlier chunk; a chunk with itself has ½.
              {data.kind === "ulysses" && data.cp > 1 && " This plan uses ulysses, drawn below."}
            </p>
          </>
        )}
      </Card>
      <Card title="Causal work of each rank" note="in squares of a chunk, over all steps">
        {data && (
          <div class="two">
            {ORDERS.map(([id, name]) => {
              const one = id === "zigzag" ? data.zigzag : data.in_order;
              return (
                <figure key={id} data-order={id}>
                  <figcaption>
                    {name}: the longest rank has {plain(one.longest)}
                  </figcaption>
                  <Bars rows={workBars(one, reach)} show={plain} />
                </figure>
              );
            })}
          </div>
        )}
        <Legend
          items={[
            ["cp", "attention"],
            ["rest", "waiting for the longest rank"],
          ]}
        />
      </Card>
      {data && data.cp > 1 && ulysses?.heads && (
        <Card title="Ulysses: tokens and heads of each rank">
          <HeadGrids data={data} heads={ulysses.heads} />
        </Card>
      )}
      <div class="two">
        <Card title="Sent by one layer" note="bytes per micro-batch and GPU">
          <Bars
            show={bytes}
            rows={(data?.kinds ?? []).map((k) => ({
              name: k.kind,
              pieces: SENT.map(([key, color, what]) => [color, what, k.sent?.[key] ?? 0] as const),
              value: <span data-sent-kind={k.kind}>{k.error ? "–" : bytes(k.sent?.total)}</span>,
            }))}
          />
          <Legend
            items={SENT.filter(([key]) => key !== "recompute" || recomputes).map(([, color, what]) => [color, what])}
          />
          {data && data.cp > 1 && data.kinds.map((k) => (
            <p key={k.kind} class="note spaced" data-formula={k.kind}>
              <b>{k.kind}</b>:{" "}
              {k.error ??
                (k.kind === "ring"
                  ? `${k.messages} messages of ${k.formula} = ${bytes(ring?.message)}; backward sends them again, with their gradients in fp32`
                  : `${k.formula}; backward sends as much`)}
            </p>
          ))}
        </Card>
        <Card
          title="Memory of one GPU"
          note={data && `usable on ${data.hardware}: ${bytes(data.capacity)}`}
        >
          {data && (
            <Bars
              show={bytes}
              rows={[
                { name: "cp 1", ...data.without_cp },
                ...data.kinds.map((k) => ({ name: k.kind, ...k })),
              ].map(({ name, memory, fits }) => ({
                name,
                pieces: memory ? pieces(memory) : [],
                value: <span data-memory={name}>{bytes(memory?.total)}</span>,
                mark: memory && fits === false ? "too much" : undefined,
              }))}
            />
          )}
          <Legend items={MEMORY_PARTS} />
          <p class="note spaced">
            {data && data.cp > 1 && `cp 1 is the same plan on 1/${data.cp} of the GPUs. `}A layer keeps{" "}
            <b data-figure="kept">{bytes(chosen?.kept)}</b> per micro-batch, and{" "}
            <b data-figure="kept-before">{bytes(data?.without_cp.kept)}</b> with cp 1.
          </p>
        </Card>
      </div>
    </View>
  );
}
