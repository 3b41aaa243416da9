// The timeline of a simulated step, or of a run that wrote its trace.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, question, useAbout, useAnswer, type Refusal, RefusedError } from "../api";
import { count, plain, seconds, share } from "../format";
import { Choice, doublings, Segments, Slider, Toggle } from "../parts/controls";
import { Card, Figures, Legend, View } from "../parts/frame";
import { Lanes, type Span } from "../parts/lanes";
import { useFields } from "../route";
import type { RunRow } from "./live";

interface Simulated {
  step: number;
  tokens_per_s: number;
  utilisation: number;
  time: {
    compute: number;
    dp: number;
    tp: number;
    pp: number;
    bubble: number;
    optimizer: number;
    step: number;
  };
  fits?: boolean;
  spans?: Span[];
  command?: string;
}

const DEFAULTS = {
  source: "simulated",
  model: "gpt2-xl",
  dp: "8",
  tp: "1",
  pp: "1",
  zero: "3",
  micro_batch: "1",
  grad_accum: "2",
  schedule: "1f1b",
  overlap: "true",
  jitter: "0",
  hardware: "h100",
  trace_ranks: "2",
};

export function TraceView() {
  const { at, set } = useFields("trace", DEFAULTS);
  const about = useAbout();
  const simulated = at.source === "simulated";
  const runs = useRuns();
  const body = useMemo(() => {
    const { source: _s, overlap, ...rest } = at;
    return question({
      ...rest,
      overlap_grad_reduce: overlap,
      overlap_param_gather: overlap,
      prefetch: overlap,
    });
  }, [JSON.stringify(at)]);
  const answer = useAnswer<Simulated>("api/simulate", body, simulated);
  const run = useTrace(simulated ? "" : at.source);
  const spans = simulated ? answer.data?.spans : run.spans;
  const t = simulated ? answer.data?.time : undefined;

  return (
    <View
      title="Trace"
      lead="One step, rank by rank: what computes, what travels, and who waits."
      error={simulated ? answer.error : run.error}
      busy={answer.busy}
      command={simulated ? answer.data?.command : undefined}
      controls={
        <>
          <Choice
            label="Of"
            name="source"
            value={at.source}
            options={[
              ["simulated", "a simulated step"],
              ...runs.map((r): [string, string] => [r.id, `run ${r.name}`]),
            ]}
            onChange={(source) => set({ source })}
          />
          {simulated && (
            <>
              <Choice
                label="Model"
                name="model"
                value={at.model}
                options={(about?.models ?? []).map((m) => [
                  m.name,
                  `${m.name} · ${count(m.params)}`,
                ])}
                onChange={(model) => set({ model })}
              />
              <Choice
                label="GPU"
                name="hardware"
                value={at.hardware}
                options={(about?.hardware ?? []).map((h) => h.name)}
                onChange={(hardware) => set({ hardware })}
              />
              <Slider
                label="Data parallel"
                name="dp"
                also={["gpus"]}
                value={at.dp}
                stops={doublings(1, 512)}
                onChange={(dp) => set({ dp })}
              />
              <Slider
                label="Tensor parallel"
                name="tp"
                value={at.tp}
                stops={doublings(1, 8)}
                onChange={(tp) => set({ tp })}
              />
              <Slider
                label="Pipeline parallel"
                name="pp"
                value={at.pp}
                stops={doublings(1, 16)}
                onChange={(pp) => set({ pp })}
              />
              <Segments
                label="ZeRO stage"
                name="zero"
                value={at.zero}
                options={[["0", "DDP"], "1", "2", "3"]}
                onChange={(zero) => set({ zero })}
              />
              <Slider
                label="Micro-batch"
                name="micro_batch"
                value={at.micro_batch}
                stops={[1, 2, 4, 8, 16]}
                onChange={(micro_batch) => set({ micro_batch })}
              />
              <Slider
                label="Micro-batches a step"
                name="grad_accum"
                value={at.grad_accum}
                stops={[1, 2, 4, 8, 16, 32]}
                onChange={(grad_accum) => set({ grad_accum })}
              />
              <Choice
                label="Schedule"
                name="schedule"
                value={at.schedule}
                options={about?.schedules ?? []}
                onChange={(schedule) => set({ schedule })}
              />
              <Toggle
                label="Overlap communication"
                name="overlap"
                also={["overlap_grad_reduce", "overlap_param_gather", "prefetch"]}
                value={at.overlap === "true"}
                onChange={(overlap) => set({ overlap })}
              />
              <Slider
                label="Jitter"
                name="jitter"
                value={at.jitter}
                show={(v) => `${plain(Number(v) * 100)}%`}
                stops={[0, 0.01, 0.02, 0.05, 0.1, 0.2]}
                onChange={(v) =>
                  set({ jitter: v.endsWith("%") ? String(Number(v.slice(0, -1)) / 100) : v })
                }
              />
              <Slider
                label="Ranks drawn"
                name="trace_ranks"
                value={at.trace_ranks}
                stops={[1, 2, 4, 8, 16]}
                onChange={(trace_ranks) => set({ trace_ranks })}
              />
            </>
          )}
        </>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Zoom in (<strong>+</strong> and <strong>−</strong>, or Ctrl and the wheel) on a gather
            at stage 3: it lies under the forward of the layer before. Then switch{" "}
            <strong>overlap</strong> off.
          </p>
          <p>Set pipeline parallel to 4 and draw 4 ranks: the gaps are the bubble.</p>
          <h2>Notice</h2>
          <p>
            Communication costs time only where the compute lane has a <strong>hole</strong>. A run
            started with <code>--trace</code> shows up here, too, and can be laid beside this.
          </p>
        </>
      }
    >
      {t && (
        <Card>
          <Figures
            items={[
              { label: "Step", key: "step", value: seconds(t.step) },
              { label: "Computes", value: share(answer.data?.utilisation) },
              { label: "Waits for dp", value: seconds(t.dp) },
              { label: "Waits for tp", value: seconds(t.tp) },
              { label: "Waits for pp", value: seconds(t.pp) },
              { label: "Bubble", value: seconds(t.bubble) },
              { label: "Optimizer", value: seconds(t.optimizer) },
            ]}
          />
        </Card>
      )}
      <Card title="Timeline">
        {spans && spans.length > 0 ? (
          <Lanes spans={spans} label="Timeline of the step" />
        ) : (
          <p class="empty-note">{run.note ?? "Nothing to draw yet."}</p>
        )}
        <Legend
          items={[
            ["forward", "forward"],
            ["backward", "backward"],
            ["weight", "backward of weights"],
            ["step", "optimizer"],
            ["dp", "dp"],
            ["tp", "tp"],
            ["pp", "pp"],
          ]}
        />
      </Card>
    </View>
  );
}

export function useRuns(): RunRow[] {
  const [rows, setRows] = useState<RunRow[]>([]);
  useEffect(() => {
    let alive = true;
    const look = () => {
      get<RunRow[] | { runs: RunRow[] }>("api/runs").then(
        (r) => alive && setRows(Array.isArray(r) ? r : r.runs),
        () => undefined, // the next look may find the server again
      );
    };
    look();
    const timer = setInterval(look, 3000);
    return () => {
      alive = false;
      clearInterval(timer);
    };
  }, []);
  return rows;
}

// As tessera train --trace writes it, for other viewers too: microseconds, tracks by number.
interface TraceFile {
  traceEvents: {
    name: string;
    ph: string;
    pid: number;
    tid: number;
    ts?: number;
    dur?: number;
    args?: { name?: string };
  }[];
}
function spansOf(file: TraceFile): Span[] {
  const lanes = new Map<string, string>();
  for (const e of file.traceEvents) {
    if (e.ph === "M" && e.name === "thread_name")
      lanes.set(`${e.pid}/${e.tid}`, e.args?.name ?? "");
  }
  const events = file.traceEvents.filter((e) => e.ph === "X" && e.ts !== undefined);
  const first = events.reduce((least, e) => Math.min(least, e.ts ?? 0), Infinity);
  return events.map((e) => {
    const begin = ((e.ts ?? 0) - first) / 1e6;
    return {
      rank: e.pid,
      lane: lanes.get(`${e.pid}/${e.tid}`) ?? String(e.tid),
      what: e.name,
      begin,
      end: begin + (e.dur ?? 0) / 1e6,
    };
  });
}

function useTrace(id: string): { spans?: Span[]; error?: Refusal; note?: string } {
  const [state, setState] = useState<{ spans?: Span[]; error?: Refusal; note?: string }>({});
  useEffect(() => {
    setState({});
    if (!id) return;
    let alive = true;
    get<TraceFile>(`api/runs/${encodeURIComponent(id)}/trace`).then(
      (t) => alive && setState({ spans: spansOf(t) }),
      (e: unknown) => {
        if (!alive) return;
        const missing = e instanceof RefusedError && e.status === 404;
        if (missing) setState({ note: e.message });
        else setState({ error: { message: e instanceof Error ? e.message : String(e) } });
      },
    );
    return () => {
      alive = false;
    };
  }, [id]);
  return state;
}
