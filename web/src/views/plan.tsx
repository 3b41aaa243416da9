// The search: every way to train a model on so many GPUs, as a table and as a scatter.
import { useMemo } from "preact/hooks";
import type { Plan, WaysAnswer } from "../answers";
import { HEAVY, question, useAnswer } from "../api";
import { bytes, count, seconds, share } from "../format";
import { doublings, Slider } from "../parts/controls";
import { Card, Copy, Legend, View } from "../parts/frame";
import { HardwareChoice, LayoutChoice, ModelChoice, SequenceSlider } from "../parts/model";
import { Picked, Way } from "../parts/picked";
import { Scatter } from "../parts/scatter";
import { Scroll } from "../parts/table";
import { Ways } from "../parts/ways";
import { useFields } from "../route";

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
  compare: "true",
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
  const { at, set, field } = useFields("plan", DEFAULTS);
  const compare = at.compare === "true";
  const asked = {
    model: at.model,
    gpus: at.gpus,
    hardware: at.hardware,
    global_batch: at.global_batch,
    seq: at.seq,
    layout: at.layout,
  };
  const { data, error, busy } = useAnswer<SearchAnswer>(
    "api/search",
    question({ ...asked, top: at.top }),
    true,
    HEAVY,
  );
  const ways = useAnswer<WaysAnswer>("api/compare", question(asked), compare, HEAVY);
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
          <ModelChoice {...field("model", { pick: "0" })} />
          <Slider
            label="GPUs"
            {...field("gpus", { pick: "0" })}
            also={["dp", "nodes"]}
            stops={doublings(1, 65536)}
          />
          <HardwareChoice {...field("hardware", { pick: "0" })} />
          <Slider
            label="Global batch"
            {...field("global_batch", { pick: "0" })}
            stops={doublings(8, 65536)}
          />
          <SequenceSlider {...field("seq", { pick: "0" })} />
          <LayoutChoice {...field("layout", { pick: "0" })} />
          <Slider label="Rows" {...field("top")} stops={[10, 20, 40, 80]} />
        </>
      }
      tries={
        <>
          <p>
            Halve the <strong>GPUs</strong> until only deep cuts fit. Click a row or a dot, and
            carry it to the other views, or copy the <code>tessera train</code> line that runs it.
          </p>
        </>
      }
      notices={
        <>
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
        <Scroll label="Plans, best first">
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
        </Scroll>
      </Card>
      <Card
        title="Data, tensor and pipeline parallelism on the same GPUs"
        note={
          <span class="buttons">
            {compare && ways.data?.command && (
              <Copy small text={ways.data.command} label="Copy command" />
            )}
            <button
              type="button"
              class="small"
              aria-pressed={compare}
              onClick={() => set({ compare: String(!compare) })}
            >
              {compare ? "Hide" : "Show"}
            </button>
          </span>
        }
      >
        {compare && ways.data && <Ways answer={ways.data} />}
        {compare && ways.error && <p class="reason">{ways.error.message}</p>}
      </Card>
    </View>
  );
}
