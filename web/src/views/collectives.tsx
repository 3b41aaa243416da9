// An all-reduce, step by step with its values, and what each ZeRO stage sends in a step.
import { useMemo } from "preact/hooks";
import type { Collective, ZeroAnswer } from "../answers";
import { type Answer, question, useAnswer } from "../api";
import { bytes, rate, seconds, typed } from "../format";
import { Cells, contributions } from "../parts/cells";
import { doublings, range, Segments, Slider } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { ModelChoice } from "../parts/model";
import { Player } from "../parts/player";
import { Ring } from "../parts/ring";
import { Bars } from "../parts/stack";
import { Table } from "../parts/table";
import { useFields } from "../route";

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

const SENT = [
  ["forward", "forward", "forward"],
  ["backward", "backward", "backward"],
  ["optimizer_step", "step", "optimizer step"],
] as const;

export function CollectivesView() {
  const { at, set, field } = useFields("collectives", DEFAULTS);
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
  // All three are asked for, to compare; one of them is the one that is shown.
  const answers: Record<string, Answer<Collective>> = {
    ring: useAnswer<Collective>("api/collective", asked("ring")),
    tree: useAnswer<Collective>("api/collective", asked("tree")),
    "two-level": useAnswer<Collective>("api/collective", asked("two-level")),
  };
  // An algorithm that is not one (in an address) is asked for to be refused with the reason.
  const known = answers[at.algorithm];
  const unknown = useAnswer<Collective>("api/collective", asked(at.algorithm), !known);
  const { data, error, busy } = known ?? unknown;
  const traffic = useAnswer<ZeroAnswer>(
    "api/zero",
    question({ model: at.model, dp: at.dp, grad_accum: at.grad_accum }),
  );

  const last = data?.steps.length ?? 0;
  const step = Math.min(Math.max(0, Number(at.step) || 0), last);
  const inCells = useMemo(() => (data ? contributions(data) : []), [data]);
  // Shown: the state after `step` steps, with what the step just made moving.
  const doing = step > 0 ? data?.steps[step - 1] : undefined;
  const values = step > 0 ? doing?.values : data?.start;

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
            {...field("algorithm", { step: "0" })}
            options={ALGORITHMS.map(([a, b]): [string, string] => [a, b])}
          />
          <Slider label="Ranks" {...field("ranks", { step: "0" })} stops={range(2, 16)} />
          <Slider
            label="Size"
            {...field("bytes")}
            show={typed(bytes)}
            stops={[1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8, 2e8, 5e8, 1e9, 1.4e10, 2e10]}
          />
          <Slider
            label="Bandwidth"
            {...field("bandwidth")}
            show={typed(rate)}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 3e11, 4.5e11, 6e11, 9e11]}
          />
          <Slider
            label="Latency"
            {...field("latency")}
            show={typed(seconds)}
            stops={[0, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4]}
          />
          <Slider
            label="Ranks in a node"
            {...field("per_node", { step: "0" })}
            stops={[1, 2, 4, 8]}
            disabled={at.algorithm !== "two-level"}
          />
          <Slider
            label="Between nodes"
            {...field("between_bandwidth")}
            show={typed(rate)}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11]}
            disabled={at.algorithm !== "two-level"}
          />
        </>
      }
      tries={
        <>
          <p>
            Press <strong>Play</strong>, or step with the slider. First each rank gathers the whole
            sum of <em>one</em> chunk (reduce-scatter), then the finished chunks go round
            (all-gather).
          </p>
          <p>
            Shrink the <strong>size</strong> to 10 kB with 5 µs of latency, and compare ring with
            tree.
          </p>
        </>
      }
      notices={
        <>
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
            <Player step={step} last={last} go={(to) => set({ step: String(to) })} />
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
          <Table
            label="Algorithms compared"
            heads={["algorithm", "steps", "sent by a rank", "time"]}
          >
            {ALGORITHMS.map(([id, name]) => {
              const got = answers[id]?.error ? undefined : answers[id]?.data;
              return (
                <tr key={id} class={id === at.algorithm ? "on" : ""}>
                  <td>{name}</td>
                  <td>{got?.steps.length ?? "–"}</td>
                  <td>{bytes(got?.bytes_per_rank)}</td>
                  <td>{seconds(got?.seconds)}</td>
                </tr>
              );
            })}
          </Table>
        </Card>
        <Card title="What a training step sends" note="by each rank">
          <div class="controls">
            <ModelChoice {...field("model")} />
            <Slider label="Data parallel" {...field("dp")} stops={doublings(1, 1024)} />
            <Slider label="Micro-batches" {...field("grad_accum")} stops={[1, 2, 4, 8, 16, 32]} />
          </div>
          <Bars
            show={bytes}
            rows={(traffic.data?.stages ?? []).map((s) => ({
              name: s.name,
              pieces: SENT.map(([key, colour, what]) => [colour, what, s.sent[key]] as const),
              value: <span data-sent={s.stage}>{bytes(s.sent.total)}</span>,
            }))}
          />
          <Legend items={SENT.map(([, colour, what]) => [colour, what] as const)} />
        </Card>
      </div>
    </View>
  );
}
