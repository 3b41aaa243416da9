// Runs as they go: read from their metrics by the server, pushed here when something new comes.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, type Refusal, RefusedError } from "../api";
import { bytes, count, plain, seconds, share, whole } from "../format";
import { Chart, type Mark, type Series } from "../parts/chart";
import { Card, Figures, Legend, View } from "../parts/frame";
import { MemoryCompared, Phases, type PhaseRow } from "../parts/run_pictures";
import { useFields } from "../route";
import { useRuns } from "./trace";

export interface RunRow {
  id: string;
  name: string;
  state: string;
  steps: number;
  started?: string | number | null;
  config?: Record<string, unknown>;
}
type Column = (number | null)[];
export interface RunSeries extends Partial<Record<string, unknown>> {
  id?: string;
  name?: string;
  state?: string;
  steps: number[];
  loss: Column;
  lr?: Column;
  grad_norm?: Column;
  tokens_per_s?: Column;
  step_s?: Column;
  comm_s?: Column;
  comm_exposed_s?: Column;
  memory?: Record<string, number | null> | null;
  predicted?:
    { memory?: Record<string, number | null> | null } | Record<string, number | null> | null;
  phases?: PhaseRow[];
  marks?: { step: number; kind: string; text?: string }[];
  gpu_utilisation?: Column;
  gpu_memory?: Column;
  mem_bytes?: Column;
  mem_peak_bytes?: Column;
  eval_loss?: Column;
  steps_in_all?: number;
  stragglers?: { rank: number; factor: number }[];
  config?: Record<string, unknown>;
  command?: string;
}

const DEFAULTS = { runs: "", smooth: "0" };
const INKS = ["params", "dp", "optimizer", "activations", "pp", "backward"];

export function LiveView() {
  const { at, set } = useFields("live", DEFAULTS);
  const rows = useRuns();
  const wanted = at.runs ? at.runs.split(",") : [];
  const first = rows[0];
  const chosen = wanted.length > 0 ? wanted : first ? [first.id] : [];
  const { series, error } = useFollowed(chosen);
  const shown = chosen
    .map((id) => [id, series[id]] as const)
    .filter((p): p is [string, RunSeries] => !!p[1]);
  const nameOf = (id: string) => rows.find((r) => r.id === id)?.name ?? id;
  const main = shown[0]?.[1];
  const row = rows.find((r) => r.id === chosen[0]);
  const last = <K extends string>(key: K): number | null => {
    const list = main?.[key] as Column | undefined;
    return list?.at(-1) ?? null;
  };
  const toggle = (id: string) => {
    const next = chosen.includes(id) ? chosen.filter((c) => c !== id) : [...chosen, id];
    set({ runs: next.join(",") });
  };
  const differing = useMemo(
    () =>
      differences(
        shown.map(([id, s]) => [
          nameOf(id),
          s.config ?? rows.find((r) => r.id === id)?.config ?? {},
        ]),
      ),
    [shown.length, rows],
  );

  return (
    <View
      title="Live run"
      lead="A training run while it goes: the page follows its metrics, through kills and restarts."
      error={error}
      command={main?.command}
      controls={
        <fieldset>
          <legend class="note">Runs</legend>
          <div class="runs">
            {rows.map((r) => (
              <label key={r.id}>
                <input
                  type="checkbox"
                  checked={chosen.includes(r.id)}
                  onChange={() => toggle(r.id)}
                />
                {chosen.includes(r.id) && (
                  <i class={`c-${INKS[chosen.indexOf(r.id) % INKS.length]}`} />
                )}
                <span>
                  {r.name}{" "}
                  <span class="note">
                    {r.state}, step {whole(r.steps)}
                  </span>
                </span>
              </label>
            ))}
            {rows.length === 0 && (
              <p class="hint">
                None yet. Start one with <code>tessera train --dashboard</code>, or give the
                dashboard a metrics file or a folder:{" "}
                <code>tessera dashboard --runs run.jsonl</code>.
              </p>
            )}
          </div>
        </fieldset>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Kill the training process and start it again: a mark shows where it resumed, and the
            curve goes on. Tick a <strong>second run</strong> to lay it over the first.
          </p>
          <h2>Notice</h2>
          <p>
            Memory by category stands beside what was <strong>predicted</strong> before the run
            began. Communication that hides behind computation costs nothing; what is{" "}
            <strong>exposed</strong> is time lost.
          </p>
        </>
      }
    >
      {main ? (
        <>
          <Card>
            <Figures
              items={[
                {
                  label: "State",
                  key: "state",
                  value: (
                    <span>
                      <i class={`dot ${main.state ?? row?.state ?? ""}`} />
                      {main.state ?? row?.state}
                    </span>
                  ),
                },
                {
                  label: "Step",
                  key: "live-step",
                  value: whole(main.steps.at(-1)),
                  note: main.steps_in_all ? `of ${whole(main.steps_in_all)}` : undefined,
                },
                { label: "Loss", key: "loss", value: plain(last("loss")) },
                { label: "Tokens a second", value: count(last("tokens_per_s")) },
                { label: "Step time", value: seconds(last("step_s")) },
                { label: "Gradient norm", value: plain(last("grad_norm")) },
              ]}
            />
          </Card>
          <div class="two">
            <RunChart title="Loss" column="loss" runs={shown} nameOf={nameOf} show={plain} />
            <RunChart
              title="Tokens a second"
              column="tokens_per_s"
              runs={shown}
              nameOf={nameOf}
              show={count}
              zero
            />
            <RunChart
              title="Gradient norm"
              column="grad_norm"
              runs={shown}
              nameOf={nameOf}
              show={plain}
            />
            <RunChart
              title="Learning rate"
              column="lr"
              runs={shown}
              nameOf={nameOf}
              show={plain}
              zero
            />
          </div>
          <div class="two">
            <MemoryCompared measured={main.memory} predicted={memoryOf(main.predicted)} />
            <MemoryOverSteps run={main} />
            <Exposure run={main} />
            {main.phases && main.phases.length > 0 && (
              <Phases rows={main.phases} stragglers={main.stragglers ?? []} />
            )}
          </div>
          {some(main.gpu_utilisation) && (
            <RunChart
              title="GPU use"
              column="gpu_utilisation"
              runs={shown}
              nameOf={nameOf}
              show={(v) => share(v, 0)}
              zero
            />
          )}
          {differing.length > 0 && (
            <Card title="Configurations compared" note="what differs">
              <div class="scroll" tabIndex={0} role="region" aria-label="Configurations">
                <table>
                  <thead>
                    <tr>
                      <th>setting</th>
                      {shown.map(([id]) => (
                        <th key={id}>{nameOf(id)}</th>
                      ))}
                    </tr>
                  </thead>
                  <tbody>
                    {differing.map(([key, values]) => (
                      <tr key={key}>
                        <td>{key}</td>
                        {values.map((v, i) => (
                          <td key={i}>{v}</td>
                        ))}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </Card>
          )}
        </>
      ) : (
        <Card>
          <p class="empty-note">{rows.length ? "Choose a run." : "No run is being watched."}</p>
        </Card>
      )}
    </View>
  );
}

const memoryOf = (p: RunSeries["predicted"]): Record<string, number | null> | undefined => {
  if (!p) return undefined;
  return "memory" in p && p.memory && typeof p.memory === "object"
    ? p.memory
    : (p as Record<string, number | null>);
};

// Columns of several runs over the union of their steps.
function joined(runs: [string, RunSeries][], column: string): { x: number[]; values: Column[] } {
  const x = [...new Set(runs.flatMap(([, r]) => r.steps))].sort((a, b) => a - b);
  const values = runs.map(([, r]) => {
    const at = new Map<number, number | null>();
    const list = (r[column] as Column | undefined) ?? [];
    r.steps.forEach((s, i) => at.set(s, list[i] ?? null));
    return x.map((s) => at.get(s) ?? null);
  });
  return { x, values };
}

const MARKS: Record<string, string> = {
  checkpoint: "activations",
  restart: "limit",
  skipped: "limit",
  evaluation: "soft",
  end: "soft",
};

function RunChart({
  title,
  column,
  runs,
  nameOf,
  show,
  zero = false,
}: {
  title: string;
  column: string;
  runs: [string, RunSeries][];
  nameOf: (id: string) => string;
  show: (v: number | null) => string;
  zero?: boolean;
}) {
  const { x, values } = joined(runs, column);
  if (!values.some((v) => v.some((n) => n != null))) return null;
  const series: Series[] = runs.map(([id], i) => ({
    label: nameOf(id),
    colour: INKS[i % INKS.length] ?? "params",
    values: values[i] ?? [],
  }));
  const marks: Mark[] = (runs[0]?.[1].marks ?? []).map((m) => ({
    x: m.step,
    label: m.kind,
    colour: MARKS[m.kind] ?? "soft",
  }));
  return (
    <Card title={title}>
      <Chart
        label={`${title} over steps`}
        x={x}
        xLabel="step"
        series={series}
        show={show}
        zero={zero}
        marks={marks}
        height={210}
        showX={whole}
      />
    </Card>
  );
}

function Exposure({ run }: { run: RunSeries }) {
  if (!some(run.comm_s)) return null;
  return (
    <Card title="Communication" note="seconds a step">
      <Chart
        label="Communication over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={seconds}
        showX={whole}
        series={[
          { label: "in collectives", colour: "dp", values: run.comm_s ?? [] },
          { label: "exposed", colour: "limit", values: run.comm_exposed_s ?? [] },
        ]}
      />
      <Legend
        items={[
          ["dp", "time in collectives, hidden or not"],
          ["limit", "exposed: computation waits"],
        ]}
      />
    </Card>
  );
}

const some = (column: Column | undefined): boolean => !!column?.some((v) => v != null);

function MemoryOverSteps({ run }: { run: RunSeries }) {
  if (!some(run.mem_peak_bytes)) return null;
  const peak = memoryOf(run.predicted)?.peak;
  return (
    <Card title="Memory over steps" note="of the rank that writes">
      <Chart
        label="Memory over steps"
        x={run.steps}
        xLabel="step"
        zero
        height={190}
        show={bytes}
        showX={whole}
        series={[
          { label: "peak", colour: "activations", values: run.mem_peak_bytes ?? [] },
          { label: "between steps", colour: "params", values: run.mem_bytes ?? [] },
          ...(peak == null
            ? []
            : [
                {
                  label: "predicted peak",
                  colour: "soft",
                  dash: [5, 5],
                  width: 1.5,
                  values: run.steps.map(() => peak),
                },
              ]),
        ]}
      />
    </Card>
  );
}

function differences(runs: [string, Record<string, unknown>][]): [string, string[]][] {
  if (runs.length < 2) return [];
  const keys = [...new Set(runs.flatMap(([, c]) => Object.keys(c)))].sort();
  return keys
    .map((k): [string, string[]] => [k, runs.map(([, c]) => (c[k] == null ? "–" : String(c[k])))])
    .filter(([, values]) => new Set(values).size > 1);
}

// The series of the chosen runs, read again whenever the server says that there is more.
function useFollowed(ids: string[]): {
  series: Record<string, RunSeries>;
  error: Refusal | undefined;
} {
  const [series, setSeries] = useState<Record<string, RunSeries>>({});
  const [error, setError] = useState<Refusal>();
  const alive = useRef(true);
  useEffect(() => () => void (alive.current = false), []);
  useEffect(() => {
    const closes = ids.map((id) => {
      let reading = false;
      let again = false;
      let over = false;
      const read = async (): Promise<void> => {
        if (reading) {
          again = true;
          return;
        }
        reading = true;
        try {
          const got = await get<RunSeries>(`api/runs/${encodeURIComponent(id)}?points=1000`);
          if (alive.current && !over) {
            setSeries((all) => ({ ...all, [id]: got }));
            setError(undefined);
          }
        } catch (e) {
          if (alive.current && !over)
            setError(
              e instanceof RefusedError
                ? e.refusal
                : { message: "The server does not answer; trying again." },
            );
        }
        await new Promise((done) => setTimeout(done, 400)); // at most twice a second
        reading = false;
        if (again && !over) {
          again = false;
          void read();
        }
      };
      void read();
      let events: EventSource | undefined;
      let retry = 0;
      const follow = () => {
        events = new EventSource(`api/runs/${encodeURIComponent(id)}/events`);
        for (const kind of ["points", "state", "again", "open"])
          events.addEventListener(kind, () => void read());
        events.onerror = () => {
          // A closed source stays closed: when the server comes back, begin anew.
          if (events?.readyState !== EventSource.CLOSED || over) return;
          retry = window.setTimeout(follow, 1000);
        };
      };
      follow();
      return () => {
        over = true;
        clearTimeout(retry);
        events?.close();
      };
    });
    return () => closes.forEach((close) => close());
  }, [ids.join(",")]);
  return { series, error };
}
