// The search: every way to train a model on so many GPUs, as a table and as a scatter.
import { useMemo, useState } from "preact/hooks";
import { question, useAbout, useAnswer } from "../api";
import { bytes, count, seconds, share } from "../format";
import { Choice, doublings, Slider } from "../parts/controls";
import { Card, Copy, Figures, Legend, View } from "../parts/frame";
import { Scatter } from "../parts/scatter";
import { Ways, type WaysAnswer } from "../parts/ways";
import { address, useFields, type Values } from "../route";
import type { Memory } from "./memory";

export interface Plan {
  memory: Memory;
  time: { step: number; compute: number; comm_exposed: number; bubble: number } | null;
  tokens_per_s: number | null;
  mfu: number | null;
  fits: boolean;
  margin?: number;
  bound?: string;
  remedy?: string;
  train_command?: string;
  question: {
    model: { name: string };
    seq: number;
    gpus: number;
    dp: number;
    tp: number;
    pp: number;
    sequence_parallel: boolean;
    zero: number;
    layout: string;
    micro_batch: number;
    grad_accum: number;
    global_batch: number;
    recompute: string;
    schedule: string;
    chunks: number;
    hardware: string;
  };
}
interface SearchAnswer {
  best: Plan[];
  tried?: number;
  command?: string;
}

const DEFAULTS = {
  model: "llama2-13b",
  gpus: "32",
  hardware: "h100",
  global_batch: "256",
  seq: "",
  layout: "bf16",
  top: "40",
  sort: "tokens_per_s",
  pick: "0",
};

type SortKey = "way" | "memory" | "tokens_per_s" | "mfu" | "step";
const COLUMNS: [SortKey, string][] = [
  ["way", "way"],
  ["memory", "memory"],
  ["tokens_per_s", "tokens/s"],
  ["mfu", "MFU"],
  ["step", "step"],
];
const sorted: Record<SortKey, (p: Plan) => number | string> = {
  way: (p) => `${p.question.tp} ${p.question.pp} ${p.question.zero}`,
  memory: (p) => p.memory.total,
  tokens_per_s: (p) => -(p.tokens_per_s ?? 0),
  mfu: (p) => -(p.mfu ?? 0),
  step: (p) => p.time?.step ?? Infinity,
};

export function PlanView() {
  const { at, set } = useFields("plan", DEFAULTS);
  const about = useAbout();
  const [compare, setCompare] = useState(true);
  const asked = {
    model: at.model,
    gpus: at.gpus,
    hardware: at.hardware,
    global_batch: at.global_batch,
    seq: at.seq,
    layout: at.layout,
  };
  const body = useMemo(() => question({ ...asked, top: at.top }), [JSON.stringify(at)]);
  const { data, error, busy } = useAnswer<SearchAnswer>("api/search", body);
  const ways = useAnswer<WaysAnswer>(
    "api/compare",
    useMemo(() => question(asked), [JSON.stringify(asked)]),
    compare,
  );
  const key = (at.sort in sorted ? at.sort : "tokens_per_s") as SortKey;
  const order = useMemo(() => {
    const list = (data?.best ?? []).map((plan, index) => ({ plan, index }));
    const by = sorted[key];
    return list.sort((a, b) => {
      const [x, y] = [by(a.plan), by(b.plan)];
      return x < y ? -1 : x > y ? 1 : a.index - b.index;
    });
  }, [data, key]);
  const pick = Math.min(Number(at.pick) || 0, Math.max(0, (data?.best.length ?? 1) - 1));
  const plan = data?.best[pick];

  return (
    <View
      title="Plan"
      lead="Every way to train this model on these GPUs that fits, best first."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <Choice
            label="Model"
            name="model"
            value={at.model}
            options={(about?.models ?? []).map((m) => [m.name, `${m.name} · ${count(m.params)}`])}
            onChange={(model) => set({ model, pick: "0" })}
          />
          <Slider
            label="GPUs"
            name="gpus"
            also={["dp", "nodes"]}
            value={at.gpus}
            stops={doublings(1, 1024)}
            onChange={(gpus) => set({ gpus, pick: "0" })}
          />
          <Choice
            label="GPU"
            name="hardware"
            value={at.hardware}
            options={(about?.hardware ?? []).map((h) => [h.name, `${h.name} · ${bytes(h.memory)}`])}
            onChange={(hardware) => set({ hardware, pick: "0" })}
          />
          <Slider
            label="Global batch"
            name="global_batch"
            value={at.global_batch}
            stops={doublings(8, 8192)}
            onChange={(global_batch) => set({ global_batch, pick: "0" })}
          />
          <Slider
            label="Sequence"
            name="seq"
            value={at.seq}
            show={(v) => v || "the model's"}
            stops={["", 512, 1024, 2048, 4096, 8192, 16384, 32768]}
            onChange={(seq) => set({ seq, pick: "0" })}
          />
          <Choice
            label="State layout"
            name="layout"
            value={at.layout}
            options={(about?.layouts ?? []).map((l) => l.name)}
            onChange={(layout) => set({ layout, pick: "0" })}
          />
          <Slider
            label="Rows"
            name="top"
            value={at.top}
            stops={[10, 20, 40, 80]}
            onChange={(top) => set({ top })}
          />
        </>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Halve the <strong>GPUs</strong> until only deep cuts fit. Click a row or a dot, and
            carry it to the other views, or copy the <code>tessera train</code> line that runs it.
          </p>
          <h2>Notice</h2>
          <p>
            The quickest plans are seldom the smallest: memory that is left over was{" "}
            <strong>bought with speed</strong>. Tensor parallelism stays inside a node; pipelines go
            across.
          </p>
        </>
      }
    >
      <div class="two">
        <Card title="Memory against speed" note="each dot a plan">
          {data && (
            <Scatter plans={data.best} pick={pick} choose={(i) => set({ pick: String(i) })} />
          )}
          <Legend
            items={[
              ["dp", "data parallel only"],
              ["tp", "with tensor"],
              ["pp", "with pipeline"],
            ]}
          />
        </Card>
        {plan && <Picked plan={plan} />}
      </div>
      <Card title="Plans" note={data ? `${data.best.length} shown` : undefined}>
        <div class="scroll" tabIndex={0} role="region" aria-label="Plans, best first">
          <table data-plans>
            <thead>
              <tr>
                {COLUMNS.map(([id, text]) => (
                  <th
                    key={id}
                    aria-sort={
                      id === key
                        ? id === "memory" || id === "step" || id === "way"
                          ? "ascending"
                          : "descending"
                        : "none"
                    }
                  >
                    <button type="button" onClick={() => set({ sort: id })}>
                      {text}
                      {id === key ? " ▾" : ""}
                    </button>
                  </th>
                ))}
                <th>micro × accum</th>
                <th>recompute</th>
                <th>
                  <span class="unseen">choose</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {order.map(({ plan: p, index }) => (
                <tr
                  key={index}
                  class={`pick${index === pick ? " on" : ""}`}
                  onClick={() => set({ pick: String(index) })}
                >
                  <td>
                    <Way q={p.question} />
                  </td>
                  <td class={p.fits ? "" : "bad-text"}>{bytes(p.memory.total)}</td>
                  <td>{count(p.tokens_per_s)}</td>
                  <td>{share(p.mfu)}</td>
                  <td>{seconds(p.time?.step)}</td>
                  <td>
                    {p.question.micro_batch} × {p.question.grad_accum}
                  </td>
                  <td>{p.question.recompute}</td>
                  <td>
                    <button
                      type="button"
                      class="small"
                      aria-pressed={index === pick}
                      onClick={(e) => (e.stopPropagation(), set({ pick: String(index) }))}
                    >
                      show
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <Card
        title="Data, tensor and pipeline parallelism on the same GPUs"
        note={
          <button
            type="button"
            class="small"
            aria-pressed={compare}
            onClick={() => setCompare(!compare)}
          >
            {compare ? "Hide" : "Show"}
          </button>
        }
      >
        {compare && ways.data && <Ways answer={ways.data} />}
        {compare && ways.error && <p class="reason">{ways.error.message}</p>}
      </Card>
    </View>
  );
}

export function Way({ q }: { q: Plan["question"] }) {
  return (
    <span>
      {q.dp > 1 && <span class="chip c-dp">dp {q.dp}</span>}
      {q.tp > 1 && (
        <span class="chip c-tp">
          tp {q.tp}
          {q.sequence_parallel ? "+sp" : ""}
        </span>
      )}
      {q.pp > 1 && (
        <span class="chip c-pp">
          pp {q.pp}
          {q.schedule !== "1f1b" ? ` ${q.schedule}` : ""}
        </span>
      )}
      {q.zero > 0 ? `ZeRO-${q.zero}` : "DDP"}
    </span>
  );
}

function Picked({ plan }: { plan: Plan }) {
  const q = plan.question;
  const text = (v: unknown) => String(v);
  const common: Values = {
    model: q.model.name,
    dp: text(q.dp),
    tp: text(q.tp),
    pp: text(q.pp),
    zero: text(q.zero),
    micro_batch: text(q.micro_batch),
    hardware: q.hardware,
  };
  const links: [string, string][] = [
    [
      "Memory",
      address("memory", {
        ...common,
        by: "model",
        layout: q.layout,
        seq: text(q.seq),
        recompute: q.recompute,
        sequence_parallel: text(q.sequence_parallel),
        plan_pp: text(q.pp),
        schedule: q.schedule,
        chunks: q.chunks > 1 ? text(q.chunks) : "",
        grad_accum: text(q.grad_accum),
      }),
    ],
    ["Scaling", address("scaling", { ...common, recompute: q.recompute })],
    [
      "Collectives",
      address("collectives", {
        model: q.model.name,
        dp: text(q.dp),
        grad_accum: text(q.grad_accum),
      }),
    ],
    [
      "Pipeline",
      address("pipeline", {
        pp: text(q.pp),
        micros: text(q.grad_accum),
        chunks: text(Math.max(q.chunks, 1)),
        shown: q.schedule,
      }),
    ],
    [
      "Trace",
      address("trace", { ...common, grad_accum: text(q.grad_accum), schedule: q.schedule }),
    ],
  ];
  return (
    <Card title={<Way q={q} />} note={plan.bound ? `bound by ${plan.bound}` : undefined}>
      <Figures
        items={[
          {
            label: "Memory",
            key: "plan-memory",
            value: bytes(plan.memory.total),
            tone: plan.fits ? "good" : "bad",
            note: plan.margin != null ? `${bytes(plan.margin)} to spare` : undefined,
          },
          { label: "Tokens a second", key: "plan-tokens", value: count(plan.tokens_per_s) },
          { label: "Step", key: "plan-step", value: seconds(plan.time?.step) },
          { label: "Exposed communication", value: seconds(plan.time?.comm_exposed) },
          { label: "Bubble", value: seconds(plan.time?.bubble) },
          { label: "MFU", value: share(plan.mfu) },
        ]}
      />
      <p class="note spaced">See it in</p>
      <div class="buttons">
        {links.map(([name, to]) => (
          <a key={name} class="button" href={to}>
            {name}
          </a>
        ))}
        {plan.train_command && <Copy text={plan.train_command} label="Copy tessera train" />}
      </div>
    </Card>
  );
}
