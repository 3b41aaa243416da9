// An all-reduce step by step with its values, and the bytes that each ZeRO stage sends per step.
import { useMemo } from "preact/hooks";
import type { Collective, ZeroResponse } from "../responses";
import { type RequestState, requestBody, useRequest } from "../api";
import { BYTES, bytes, RATE, seconds, TIME } from "../format";
import { Cells, contributions } from "../parts/cells";
import { doublings, range, Segments, Slider } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { modelBody, ModelFields, modelOfPlan, SHAPE } from "../parts/model";
import { PlanNote } from "../parts/plan_details";
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
  ...SHAPE,
  dp: "8",
  grad_accum: "1",
};
const ALGORITHMS = [
  ["ring", "Ring"],
  ["tree", "Tree"],
  ["two-level", "Two-level"],
] as const;

const SENT = [
  ["forward", "forward", "forward"],
  ["backward", "backward", "backward"],
  ["optimizer_step", "step", "optimizer step"],
] as const;

export function CollectivesView() {
  const { at, plan, set, field } = useFields("collectives", DEFAULTS, modelOfPlan);
  const bodyFor = (algorithm: string) =>
    requestBody({
      algorithm,
      ranks: at.ranks,
      bytes: at.bytes,
      bandwidth: at.bandwidth,
      latency: at.latency,
      per_node: at.per_node,
      between_bandwidth: at.between_bandwidth,
    });
  // All three are requested for the comparison; one of them is shown.
  const answers: Record<string, RequestState<Collective>> = {
    ring: useRequest<Collective>("api/collective", bodyFor("ring")),
    tree: useRequest<Collective>("api/collective", bodyFor("tree")),
    "two-level": useRequest<Collective>("api/collective", bodyFor("two-level")),
  };
  // An unknown algorithm in the URL is sent too, so that the server returns the error message.
  const known = answers[at.algorithm];
  const unknown = useRequest<Collective>("api/collective", bodyFor(at.algorithm), !known);
  const { data, error, busy } = known ?? unknown;
  const traffic = useRequest<ZeroResponse>(
    "api/zero",
    requestBody({ ...plan.others, ...modelBody(at), dp: at.dp, grad_accum: at.grad_accum }),
  );

  const last = data?.steps.length ?? 0;
  const step = Math.min(Math.max(0, Number(at.step) || 0), last);
  const amounts = useMemo(() => (data ? contributions(data) : []), [data]);
  // Shows the state after `step` steps, and animates the transfers of the last one.
  const current = step > 0 ? data?.steps[step - 1] : undefined;
  const values = step > 0 ? current?.values : data?.start;
  const equal = data?.bytes_by_rank.every((sent) => sent === data.bytes_per_rank) ?? true;

  return (
    <View
      title="Collectives"
      lead="An all-reduce step by step, with the values that each rank holds and sends."
      error={error ?? traffic.error}
      stale={false}
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
            unit={BYTES}
            stops={[1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8, 2e8, 5e8, 1e9, 1.4e10, 2e10]}
          />
          <Slider
            label="Bandwidth"
            {...field("bandwidth")}
            unit={RATE}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 3e11, 4.5e11, 6e11, 9e11]}
          />
          <Slider
            label="Latency"
            {...field("latency")}
            unit={TIME}
            stops={[0, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4]}
          />
          <Slider
            label="Ranks per node"
            {...field("per_node", { step: "0" })}
            stops={[1, 2, 4, 8]}
          />
          <Slider
            label="Inter-node bandwidth"
            {...field("between_bandwidth")}
            unit={RATE}
            stops={[1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11]}
          />
        </>
      }
      tries={
        <>
          <p>
            Press <strong>Play</strong> or move the slider. After the reduce-scatter, each rank has
            the complete sum of <em>one</em> chunk. The all-gather then passes the complete chunks
            around the ring.
          </p>
          <p>
            Set the <strong>size</strong> to 10 kB and the latency to 5 µs, and compare ring with
            tree. Then lower the <strong>inter-node bandwidth</strong>: a ring is as slow as its
            slowest link, and two-level sends less over it.
          </p>
        </>
      }
      notices={
        <>
          <p>
            In a ring, each rank sends slightly less than twice the buffer, for any{" "}
            <strong>number of ranks</strong>. Without latency, the time hardly depends on that
            number. ZeRO-1 runs the same reduce-scatter and all-gather as two calls and sends no
            more.
          </p>
        </>
      }
    >
      <Card
        stale={!!error}
        title={`${ALGORITHMS.find(([a]) => a === at.algorithm)?.[1] ?? ""} all-reduce`}
        note={
          <span data-figure="phase">
            {step === 0 ? "initial values" : `step ${step} of ${last}: ${current?.phase ?? ""}`}
          </span>
        }
      >
        {data && values && (
          <>
            <div class="two">
              <Ring
                ranks={data.ranks}
                transfers={current?.transfers ?? []}
                step={step}
                algorithm={at.algorithm}
              />
              <Cells data={data} values={values} amounts={amounts[step] ?? []} current={current} />
            </div>
            <Player step={step} last={last} go={(to) => set({ step: String(to) })} />
          </>
        )}
        <Legend
          items={[
            ["grads", "partial sum"],
            ["activations", "complete sum"],
            ["dp", "being sent"],
          ]}
        />
      </Card>
      <div class="two">
        <Card title="Cost" pinned stale={!!error}>
          <Figures
            items={[
              {
                label: equal ? "Sent per rank" : "Sent by the busiest rank",
                key: "bytes-per-rank",
                value: bytes(data?.bytes_per_rank),
              },
              {
                label: "Time",
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
            label="Comparison of algorithms"
            heads={["algorithm", "steps", "sent per rank, at most", "time"]}
          >
            {ALGORITHMS.map(([id, name]) => {
              const got = answers[id]?.error ? undefined : answers[id]?.data;
              return (
                <tr key={id} class={id === at.algorithm ? "on" : ""}>
                  <td>{name}</td>
                  <td>{got?.steps.length ?? "–"}</td>
                  <td data-value={got?.bytes_per_rank ?? ""}>{bytes(got?.bytes_per_rank)}</td>
                  <td data-value={got?.seconds ?? ""}>{seconds(got?.seconds)}</td>
                </tr>
              );
            })}
          </Table>
          {data && !equal && (
            <>
              <p class="note spaced">Sent by each rank</p>
              <Bars
                show={bytes}
                rows={data.bytes_by_rank.map((sent, rank) => ({
                  name: `rank ${rank}`,
                  pieces: [["dp", "sent", sent] as const],
                  value: <span data-sent-by={rank}>{bytes(sent)}</span>,
                }))}
              />
            </>
          )}
        </Card>
        <Card title="Bytes sent in a training step" note="per rank" stale={!!traffic.error}>
          <div class="controls">
            <PlanNote plan={plan} view="collectives" />
            <ModelFields field={field} />
            <Slider label="Data parallel" {...field("dp")} stops={doublings(1, 1024)} />
            <Slider
              label="Micro-batches per step"
              {...field("grad_accum")}
              stops={[1, 2, 4, 8, 16, 32]}
            />
          </div>
          <Bars
            show={bytes}
            rows={(traffic.data?.stages ?? []).map((s) => ({
              name: s.name,
              pieces: SENT.map(([key, color, what]) => [color, what, s.sent[key]] as const),
              value: <span data-sent={s.stage}>{bytes(s.sent.total)}</span>,
            }))}
          />
          <Legend items={SENT.map(([, color, what]) => [color, what] as const)} />
        </Card>
      </div>
    </View>
  );
}
