// The planner's search over parallel configurations, as a table and a scatter plot.
import { useMemo } from "preact/hooks";
import type { Plan, CompareResponse } from "../responses";
import { DEBOUNCE_MS, requestBody, useRequest } from "../api";
import { bytes, count, seconds, share, whole } from "../format";
import { doublings, Slider } from "../parts/controls";
import { Cost, COST, useCost } from "../parts/cost";
import { Card, Copy, Legend, View } from "../parts/frame";
import {
  HardwareChoice,
  LayoutChoice,
  modelBody,
  ModelFields,
  SequenceSlider,
  SHAPE,
  withModel,
} from "../parts/model";
import { PlanDetails, Parallelism, tokensRange } from "../parts/plan_details";
import { Scatter } from "../parts/scatter";
import { Scroll, Table } from "../parts/table";
import { Strategies } from "../parts/strategies";
import { useFields, type Values } from "../route";

interface SearchResponse {
  best: Plan[];
  tried: number;
  fitting: number;
  ruled_out: Record<string, number>;
  closest?: Plan; // if nothing fits: the plan that needs least memory
  nearest_fit?: Plan; // if nothing fits: the fastest plan on more GPUs
  command?: string;
}

const DEFAULTS = {
  ...SHAPE,
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
  ...COST,
};

type SortKey = "parallelism" | "memory" | "tokens_per_s" | "mfu" | "step";
const COLUMNS: [SortKey, string][] = [
  ["parallelism", "parallelism"],
  ["memory", "memory"],
  ["tokens_per_s", "tokens/s"],
  ["mfu", "MFU"],
  ["step", "step"],
];
const sorted: Record<SortKey, (p: Plan) => number | string> = {
  parallelism: (p) => `${p.question.tp} ${p.question.cp} ${p.question.pp} ${p.question.zero}`,
  memory: (p) => p.memory.total,
  tokens_per_s: (p) => -(p.tokens_per_s ?? 0),
  mfu: (p) => -(p.mfu ?? 0),
  step: (p) => p.time?.step ?? Infinity,
};

export function PlanView() {
  const { at, set, field } = useFields("plan", DEFAULTS);
  const compare = at.compare === "true";
  const settings = {
    ...modelBody(at),
    gpus: at.gpus,
    hardware: at.hardware,
    global_batch: at.global_batch,
    seq: at.seq,
    layout: at.layout,
  };
  const { data, error, busy, progress } = useRequest<SearchResponse>(
    "api/search",
    requestBody({ ...settings, top: at.top }),
    true,
    DEBOUNCE_MS,
  );
  const ways = useRequest<CompareResponse>("api/compare", requestBody(settings), compare, DEBOUNCE_MS);
  const key = (at.sort in sorted ? at.sort : "tokens_per_s") as SortKey;
  const order = useMemo(() => {
    const list = (data?.best ?? []).map((plan, index) => ({ plan, index }));
    const by = sorted[key];
    return list.sort((a, b) => {
      const [x, y] = [by(a.plan), by(b.plan)];
      return x < y ? -1 : x > y ? 1 : a.index - b.index;
    });
  }, [data, key]);
  const found = data?.best.length ?? 0;
  const picked = /^\d+$/.test(at.pick) && (Number(at.pick) < found || found === 0);
  const pick = picked ? Number(at.pick) : 0;
  const wrong =
    data && !picked
      ? { field: "pick", message: `pick: got ${at.pick}; must be from 0 to ${found - 1}, a row of the plans` }
      : at.sort in sorted
        ? undefined
        : { field: "sort", message: `sort: got ${at.sort}; must be one of ${Object.keys(sorted).join(", ")}` };
  const plan = data?.best[pick];
  const cost = useCost(
    at,
    at.hardware,
    plan ? [plan.question.gpus, plan.question.gpus, plan.question.gpus] : [],
    plan?.tokens_per_s == null ? [] : [plan.tokens_per_s, ...(tokensRange(plan) ?? [null, null])],
  );
  const none = !error && data?.fitting === 0;

  return (
    <View
      title="Plan"
      lead="Parallel configurations of this model on these GPUs that fit in memory, fastest first."
      error={error ?? cost.error ?? wrong}
      stale={!!error}
      busy={busy}
      progress={progress}
      command={data?.command}
      controls={
        <>
          <ModelFields field={(name) => field(name, { pick: "0" })} />
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
          <SequenceSlider {...field("seq", { pick: "0" })} used={data?.best[0]?.question.seq} />
          <LayoutChoice {...field("layout", { pick: "0" })} />
          <Slider label="Rows" {...field("top", { pick: "0" })} stops={[10, 20, 40, 80]} />
        </>
      }
      tries={
        <>
          <p>
            Halve the <strong>GPUs</strong> until only plans with tensor or pipeline parallelism
            fit. Click a row or a dot to open its plan in the other views or to copy its{" "}
            <code>tessera train</code> command.
          </p>
        </>
      }
      notices={
        <>
          <p>
            <strong>Saving memory costs time</strong>, so the fastest plans rarely use the least
            memory. Tensor parallelism usually stays within a node; pipeline stages can span nodes.
          </p>
        </>
      }
    >
      {none && <NothingFits
          found={data}
          open={(p) => withModel(p.settings ?? {}, at)}
          setGpus={(gpus) => set({ gpus, pick: "0" })} />}
      {data && plan && (
        <div class="two">
          <Card title="Memory and throughput" note="one dot per plan" pinned>
            <Scatter plans={data.best} pick={pick} choose={(i) => set({ pick: String(i) })} />
            <Legend
              items={[
                ["dp", "data parallel only"],
                ["tp", "with tensor parallel"],
                ["cp", "with context parallel"],
                ["pp", "with pipeline parallel"],
              ]}
            />
            <p class="note spaced">
              Faded: slower than the fastest, beyond the accuracy of the prediction. The bar is the
              interval of the selected plan.
            </p>
          </Card>
          <PlanDetails plan={plan} settings={withModel(plan.settings ?? {}, at)} />
        </div>
      )}
      {plan && (
        <Cost
          response={cost.data}
          hardware={at.hardware}
          field={field}
          range={[2, 1]}
          utilization={{ label: "MFU of the plan", key: "cost-mfu", value: share(plan.mfu) }}
          stale={!!cost.error}
        />
      )}
      <Card
        title="Plans"
        note={
          data && (
            <span data-figure="tried">
              {whole(data.tried)} tried, {data.fitting === 0 ? "none" : whole(data.fitting)} fit,{" "}
              {data.best.length} shown
            </span>
          )
        }
      >
        {!data && !error && (
          <p class="empty-note" role="status">
            Searching…
          </p>
        )}
        {data && data.best.length > 0 && (
          <>
            <p class="note">
              <b>=</b> equal to the fastest within the accuracy of the prediction. The interval of a
              step contains four of five such runs.
            </p>
            <Scroll label="Plans, best first">
              <table data-plans>
                <thead>
                  <tr>
                    {COLUMNS.map(([id, text]) => (
                      <th
                        key={id}
                        aria-sort={
                          id === key
                            ? id === "memory" || id === "step" || id === "parallelism"
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
                    <th data-control>
                      <span class="unseen">select</span>
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
                        <b class="equal">
                          {p.as_good_as_the_best && order.length > 1 ? "=" : ""}
                        </b>
                        <Parallelism q={p.question} />
                      </td>
                      <td class={p.fits ? "" : "bad-text"} data-value={p.memory.total}>{bytes(p.memory.total)}</td>
                      <td data-value={p.tokens_per_s ?? ""}>{count(p.tokens_per_s)}</td>
                      <td data-value={p.mfu ?? ""}>{share(p.mfu)}</td>
                      <td data-value={p.time?.step ?? ""}>
                        {seconds(p.time?.step)}
                        {p.time?.interval && (
                          <div class="note" data-interval>
                            {seconds(p.time.interval.low)} to {seconds(p.time.interval.high)}
                          </div>
                        )}
                      </td>
                      <td>
                        {p.question.micro_batch} × {p.question.grad_accum}
                      </td>
                      <td>{p.question.recompute}</td>
                      <td data-control>
                        <button
                          type="button"
                          class="small"
                          aria-pressed={index === pick}
                          aria-label={`show plan ${index + 1}`}
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
          </>
        )}
        {data && Object.keys(data.ruled_out).length > 0 && (
          <details open={none}>
            <summary>Configurations ruled out, by reason</summary>
            <Table label="Configurations ruled out" heads={["reason", "number"]}>
              {Object.entries(data.ruled_out).map(([reason, number]) => (
                <tr key={reason}>
                  <td>{reason}</td>
                  <td data-ruled-out={reason} data-value={number}>{whole(number)}</td>
                </tr>
              ))}
            </Table>
          </details>
        )}
      </Card>
      <Card
        title="Data, tensor and pipeline parallelism on the same GPUs"
        note={
          <span class="buttons">
            {compare && ways.data?.command && (
              <Copy small text={ways.data.command} label="Copy command" of="comparison" />
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
        {compare && !ways.data && !ways.error && (
          <p class="empty-note" role="status">
            Comparing…
          </p>
        )}
        {compare && ways.data && <Strategies response={ways.data} />}
        {compare && ways.error && <p class="reason">{ways.error.message}</p>}
      </Card>
    </View>
  );
}

// The plan that is closest to fitting, the planner's advice, and the nearest plan that fits.
function NothingFits({
  found,
  open,
  setGpus,
}: {
  found: SearchResponse;
  open: (plan: Plan) => Values; // settings of a plan in other views
  setGpus: (gpus: string) => void;
}) {
  const { closest, nearest_fit: nearest } = found;
  return (
    <>
      <Card title="No configuration fits" note={`${whole(found.tried)} tried`}>
        <div class="prose">
        {closest && (
          <>
            <p>
              The one with the least memory: <Parallelism q={closest.question} />, micro-batch{" "}
              {closest.question.micro_batch}, recompute {closest.question.recompute}.
            </p>
            {closest.notes?.map((line) => (
              <p key={line} data-figure="why">
                {line}
              </p>
            ))}
            {[closest.remedy ?? "", ...(closest.advice ?? [])].filter(Boolean).map((line) => (
              <p key={line} data-figure="advice">
                Advice: {line}
              </p>
            ))}
          </>
        )}
        {nearest ? (
          <p>
            The nearest that fits needs{" "}
            <b data-figure="nearest-gpus">{nearest.question.gpus} GPUs</b>.{" "}
            <button type="button" onClick={() => setGpus(String(nearest.question.gpus))}>
              Plan for {nearest.question.gpus} GPUs
            </button>
          </p>
        ) : (
          <p data-figure="no-nearest">
            {closest
              ? "No plan fits on any larger number of these GPUs that was tried. Select a GPU with more memory."
              : "Every configuration is ruled out, for the reasons below."}
          </p>
        )}
        </div>
      </Card>
      {nearest && <PlanDetails plan={nearest} settings={open(nearest)} />}
    </>
  );
}
