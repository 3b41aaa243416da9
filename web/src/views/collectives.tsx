// An all-reduce, step by step with its values, and what each ZeRO stage sends in a step.
import { useEffect, useMemo, useState } from "preact/hooks";
import { question, useAbout, useAnswer } from "../api";
import { bytes, count, rate, seconds } from "../format";
import { Choice, doublings, range, Segments, Slider } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { Ring } from "../parts/ring";
import { useFields } from "../route";
import type { ZeroAnswer } from "./memory";

export interface Transfer {
  from: number;
  to: number;
  chunk: number;
  adds: boolean;
}
export interface Step {
  phase: string;
  transfers: Transfer[];
  values: number[][];
  seconds?: number;
  bytes?: number;
}
export interface Collective {
  ranks: number;
  chunks: number;
  start: number[][];
  steps: Step[];
  bytes_per_rank: number;
  seconds: number;
  closed_form_seconds?: number | null;
  command?: string | null;
}

const DEFAULTS = {
  algorithm: "ring",
  ranks: "8",
  bytes: "200000000",
  bandwidth: "100000000000",
  latency: "0",
  per_node: "4",
  between_bandwidth: "25000000000",
  step: "0",
  model: "llama2-7b",
  dp: "8",
  grad_accum: "1",
};
const ALGORITHMS = [
  ["ring", "Ring"],
  ["tree", "Tree"],
  ["two-level", "Two levels"],
] as const;

// How many ranks' values are in each cell before each step: for its colour only.
function contributions(c: Collective): number[][][] {
  const states = [c.start.map((row) => row.map(() => 1))];
  for (const step of c.steps) {
    const before = states.at(-1) ?? [];
    const after = before.map((row) => [...row]);
    for (const t of step.transfers) {
      const row = after[t.to];
      const sent = before[t.from]?.[t.chunk] ?? 0;
      if (row) row[t.chunk] = t.adds ? (row[t.chunk] ?? 0) + sent : sent;
    }
    states.push(after);
  }
  return states;
}

export function CollectivesView() {
  const { at, set } = useFields("collectives", DEFAULTS);
  const about = useAbout();
  const [playing, setPlaying] = useState(false);
  const asked = (algorithm: string) =>
    question({
      algorithm,
      ranks: at.ranks,
      bytes: at.bytes,
      bandwidth: at.bandwidth,
      latency: at.latency,
      ...(algorithm === "two-level"
        ? { per_node: at.per_node, between_bandwidth: at.between_bandwidth }
        : {}),
    });
  const body = useMemo(() => asked(at.algorithm), [JSON.stringify(at)]);
  const { data, error, busy } = useAnswer<Collective>("api/collective", body);
  const ring = useAnswer<Collective>(
    "api/collective",
    useMemo(() => asked("ring"), [JSON.stringify(at)]),
  );
  const tree = useAnswer<Collective>(
    "api/collective",
    useMemo(() => asked("tree"), [JSON.stringify(at)]),
  );
  const levels = useAnswer<Collective>(
    "api/collective",
    useMemo(() => asked("two-level"), [JSON.stringify(at)]),
  );
  const traffic = useAnswer<ZeroAnswer>(
    "api/zero",
    useMemo(
      () => question({ model: at.model, dp: at.dp, grad_accum: at.grad_accum }),
      [at.model, at.dp, at.grad_accum],
    ),
  );

  const last = data?.steps.length ?? 0;
  const step = Math.min(Math.max(0, Number(at.step) || 0), last);
  useEffect(() => {
    if (!playing) return;
    const timer = setTimeout(() => {
      if (step >= last) setPlaying(false);
      else set({ step: String(step + 1) });
    }, 1100);
    return () => clearTimeout(timer);
  }, [playing, step, last]);

  const inCells = useMemo(() => (data ? contributions(data) : []), [data]);
  // Shown: the state after `step` steps, with what the step just made moving.
  const doing = step > 0 ? data?.steps[step - 1] : undefined;
  const values = step > 0 ? doing?.values : data?.start;
  const most = Math.max(1, ...(traffic.data?.stages.map((s) => s.sent.total) ?? [1]));

  return (
    <View
      title="Collectives"
      lead="How N ranks come to hold the same sum, with the values that travel."
      error={error ?? traffic.error}
      busy={busy}
      command={data?.command ?? undefined}
      controls={
        <>
          <Segments
            label="Algorithm"
            name="algorithm"
            value={at.algorithm}
            options={ALGORITHMS.map(([a, b]): [string, string] => [a, b])}
            onChange={(algorithm) => set({ algorithm, step: "0" })}
          />
          <Slider
            label="Ranks"
            name="ranks"
            value={at.ranks}
            stops={range(2, 16)}
            onChange={(ranks) => set({ ranks, step: "0" })}
          />
          <Slider
            label="Size"
            name="bytes"
            value={at.bytes}
            show={(v) => (Number.isFinite(Number(v)) ? bytes(Number(v)) : v)}
            stops={[1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8, 2e8, 5e8, 1e9, 1.4e10, 2e10]}
            onChange={(v) => set({ bytes: v })}
          />
          <Slider
            label="Bandwidth"
            name="bandwidth"
            value={at.bandwidth}
            show={(v) => (Number.isFinite(Number(v)) ? rate(Number(v)) : v)}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 3e11, 4.5e11, 6e11, 9e11]}
            onChange={(bandwidth) => set({ bandwidth })}
          />
          <Slider
            label="Latency"
            name="latency"
            value={at.latency}
            show={(v) => (Number.isFinite(Number(v)) ? seconds(Number(v)) : v)}
            stops={[0, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4]}
            onChange={(latency) => set({ latency })}
          />
          <Slider
            label="Ranks in a node"
            name="per_node"
            value={at.per_node}
            stops={[1, 2, 4, 8]}
            disabled={at.algorithm !== "two-level"}
            onChange={(per_node) => set({ per_node, step: "0" })}
          />
          <Slider
            label="Between nodes"
            name="between_bandwidth"
            value={at.between_bandwidth}
            show={(v) => (Number.isFinite(Number(v)) ? rate(Number(v)) : v)}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11]}
            disabled={at.algorithm !== "two-level"}
            onChange={(between_bandwidth) => set({ between_bandwidth })}
          />
        </>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Press <strong>Play</strong>, or step with the slider. First each rank gathers the whole
            sum of <em>one</em> chunk (reduce-scatter), then the finished chunks go round
            (all-gather).
          </p>
          <p>
            Shrink the <strong>size</strong> to 10 kB with 5 µs of latency, and compare ring with
            tree.
          </p>
          <h2>Notice</h2>
          <p>
            Every link carries the same at every step, so the time hardly depends on{" "}
            <strong>how many ranks</strong> there are: each sends a little less than twice the
            buffer. ZeRO-1 cuts the same all-reduce in two halves, and pays nothing for it.
          </p>
        </>
      }
    >
      <Card
        title={`${ALGORITHMS.find(([a]) => a === at.algorithm)?.[1] ?? ""} all-reduce`}
        note={
          <span data-figure="phase">
            {step === 0 ? "at the start" : `step ${step} of ${last}: ${doing?.phase ?? ""}`}
          </span>
        }
      >
        {data && values && (
          <>
            <div class="two">
              <Ring
                ranks={data.ranks}
                transfers={doing?.transfers ?? []}
                step={step}
                algorithm={at.algorithm}
              />
              <Cells data={data} values={values} amounts={inCells[step] ?? []} doing={doing} />
            </div>
            <div class="player">
              <button
                type="button"
                class="main"
                onClick={() => {
                  if (!playing && step >= last) set({ step: "0" });
                  setPlaying(!playing);
                }}
              >
                {playing ? "Pause" : step >= last && last > 0 ? "Play again" : "Play"}
              </button>
              <button
                type="button"
                disabled={step <= 0}
                onClick={() => set({ step: String(step - 1) })}
                aria-label="One step back"
              >
                ◂
              </button>
              <button
                type="button"
                disabled={step >= last}
                onClick={() => set({ step: String(step + 1) })}
                aria-label="One step on"
              >
                ▸
              </button>
              <input
                type="range"
                min={0}
                max={last}
                value={step}
                aria-label="Step"
                aria-valuetext={`step ${step} of ${last}`}
                onInput={(e) => set({ step: e.currentTarget.value })}
              />
            </div>
          </>
        )}
        <Legend
          items={[
            ["grads", "partial sum"],
            ["activations", "complete"],
            ["dp", "being sent"],
          ]}
        />
      </Card>
      <div class="two">
        <Card title="What it costs">
          <Figures
            items={[
              {
                label: "Each rank sends",
                key: "bytes-per-rank",
                value: bytes(data?.bytes_per_rank),
              },
              {
                label: "It takes",
                key: "seconds",
                value: seconds(data?.seconds),
                note:
                  data?.closed_form_seconds != null
                    ? `closed form: ${seconds(data.closed_form_seconds)}`
                    : undefined,
              },
              { label: "Steps", value: last },
            ]}
          />
          <div class="scroll" tabIndex={0} role="region" aria-label="Algorithms compared">
            <table>
              <thead>
                <tr>
                  <th>algorithm</th>
                  <th>steps</th>
                  <th>sent by a rank</th>
                  <th>time</th>
                </tr>
              </thead>
              <tbody>
                {(
                  [
                    ["ring", ring],
                    ["tree", tree],
                    ["two-level", levels],
                  ] as const
                ).map(([name, a]) => (
                  <tr key={name} class={name === at.algorithm ? "on" : ""}>
                    <td>{ALGORITHMS.find(([id]) => id === name)?.[1]}</td>
                    <td>{a.error ? "–" : (a.data?.steps.length ?? "–")}</td>
                    <td>{a.error ? "–" : bytes(a.data?.bytes_per_rank)}</td>
                    <td>{a.error ? "–" : seconds(a.data?.seconds)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
        <Card title="What a training step sends" note="by each rank">
          <div class="controls">
            <Choice
              label="Model"
              name="model"
              value={at.model}
              options={(about?.models ?? []).map((m) => [m.name, `${m.name} · ${count(m.params)}`])}
              onChange={(model) => set({ model })}
            />
            <Slider
              label="Data parallel"
              name="dp"
              value={at.dp}
              stops={doublings(1, 1024)}
              onChange={(dp) => set({ dp })}
            />
            <Slider
              label="Micro-batches"
              name="grad_accum"
              value={at.grad_accum}
              stops={[1, 2, 4, 8, 16, 32]}
              onChange={(grad_accum) => set({ grad_accum })}
            />
          </div>
          <div class="hbars">
            {traffic.data?.stages.map((s) => (
              <div key={s.stage}>
                <b>{s.name}</b>
                <span
                  class="stack"
                  role="img"
                  aria-label={`forward ${bytes(s.sent.forward)}, backward ${bytes(s.sent.backward)}, optimizer step ${bytes(s.sent.optimizer_step)}`}
                >
                  {(
                    [
                      ["forward", s.sent.forward],
                      ["backward", s.sent.backward],
                      ["step", s.sent.optimizer_step],
                    ] as const
                  ).map(([kind, v]) => (
                    <i
                      key={kind}
                      class={`c-${kind}`}
                      style={{ width: `${(100 * v) / most}%` }}
                      title={`${kind}: ${bytes(v)}`}
                    />
                  ))}
                </span>
                <span class="value" data-sent={s.stage}>
                  {bytes(s.sent.total)}
                </span>
              </div>
            ))}
          </div>
          <Legend
            items={[
              ["forward", "forward"],
              ["backward", "backward"],
              ["step", "optimizer step"],
            ]}
          />
        </Card>
      </div>
    </View>
  );
}

function Cells({
  data,
  values,
  amounts,
  doing,
}: {
  data: Collective;
  values: number[][];
  amounts: number[][];
  doing: Step | undefined;
}) {
  const show = (v: number) => (Math.abs(v) >= 1000 ? count(v) : String(Number(v.toFixed(2))));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Values on each rank">
      <table class="cells">
        <thead>
          <tr>
            <th scope="col">
              <span class="note">rank</span>
            </th>
            {range(0, data.chunks - 1).map((c) => (
              <th scope="col" key={c}>
                {data.chunks > 1 ? (
                  <>
                    <span class="unseen">chunk </span>
                    {c}
                  </>
                ) : (
                  "buffer"
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {values.map((row, r) => (
            <tr key={r}>
              <th scope="row">{r}</th>
              {row.map((v, c) => {
                const in_it = amounts[r]?.[c] ?? 1;
                const gets = doing?.transfers.some((t) => t.to === r && t.chunk === c);
                const sends = doing?.transfers.some((t) => t.from === r && t.chunk === c);
                return (
                  <td
                    key={c}
                    class={`${in_it >= data.ranks ? "whole" : in_it > 1 ? "part" : ""}${gets ? " gets" : sends ? " sends" : ""}`}
                    style={{ "--done": `${Math.round((80 * in_it) / data.ranks)}%` }}
                  >
                    {show(v)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
