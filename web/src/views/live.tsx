// Live runs: the server reads their metrics files and pushes new points.
import { useRef } from "preact/hooks";
import type { ErrorInfo } from "../api";
import type { Column, RunRow, RunSeries } from "../responses";
import { count, plain, seconds, share, whole } from "../format";
import { useAxes } from "../parts/axes";
import { Choice, GroupMessage, Slider, Toggle } from "../parts/controls";
import { Card, type Figure, Figures, View } from "../parts/frame";
import {
  type Axis,
  Exposure,
  MemoryOverSteps,
  memoryOf,
  RUN_COLORS,
  RunChart,
  some,
} from "../parts/run_charts";
import { ExpertCards } from "../parts/expert_loads";
import { MemoryCompared, Phases, slowness } from "../parts/run_bars";
import { Table } from "../parts/table";
import { useFields } from "../route";
import { useFollowed, useRuns } from "../runs";

const DEFAULTS = { runs: "", axis: "step", smoothing: "0", log: "false", layer: "", table: "false" };
const CURVES = [
  {
    title: "Loss",
    column: "loss",
    also: "eval_loss",
    alsoLabel: "validation",
    show: plain,
    smooths: true,
    logs: true,
  },
  { title: "Tokens/s", column: "tokens_per_s", show: count, zero: true, smooths: true },
  { title: "Gradient norm", column: "grad_norm", show: plain, smooths: true, logs: true },
  { title: "Learning rate", column: "lr", show: plain, zero: true },
];
const AXES: [Axis, string][] = [
  ["step", "step"],
  ["tokens", "tokens"],
  ["time", "time in steps"],
];
const ENDED = ["done", "stopped", "failed"];

export function LiveView() {
  const { at, set, field } = useFields("live", DEFAULTS);
  const rows = useRuns();
  const requested = at.runs ? at.runs.split(",") : [];
  // The newest run when the view was opened: another one may be the newest a moment later.
  const first = useRef<string | undefined>(undefined);
  first.current ??= rows[0]?.id;
  const chosen = requested.length > 0 ? requested : first.current ? [first.current] : [];
  const { series, error, lost } = useFollowed(chosen, at.layer);
  const shown = chosen
    .map((id) => [id, series[id]] as const)
    .filter((p): p is [string, RunSeries] => !!p[1]);
  const nameOf = (id: string) => rows.find((r) => r.id === id)?.name ?? id;
  const main = shown[0]?.[1];
  const last = (key: string): number | null => lastOf(main, key);
  const wrong = wrongSetting(at, main);
  const axis = wrong ? "step" : (at.axis as Axis);
  const smoothing = wrong ? 0 : Number(at.smoothing);
  // The list is polled; the series of a followed run are newer.
  const shownState = (r: RunRow): string => {
    const state = series[r.id]?.state ?? r.state;
    return lost && !ENDED.includes(state) ? "unknown" : state;
  };
  const toggle = (id: string) => {
    const next = chosen.includes(id) ? chosen.filter((c) => c !== id) : [...chosen, id];
    set({ runs: next.join(",") });
  };
  const compared = comparison(
    shown.map(([id, s]): RunSeries => ({ ...rows.find((r) => r.id === id), ...s })),
    useAxes(),
  );

  return (
    <View
      title="Live run"
      lead="Metrics of training runs as they are written, across interruptions and restarts."
      error={
        lost
          ? { message: "Connection to the server lost. Retrying." }
          : (wrong ?? error)
      }
      stale={lost}
      command={main?.command}
      controls={
        <>
        <fieldset data-field="runs">
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
                  <i class={`c-${RUN_COLORS[chosen.indexOf(r.id) % RUN_COLORS.length]}`} />
                )}
                <span>
                  {r.name}{" "}
                  <span class="note">
                    {shownState(r)}, step {whole(series[r.id]?.steps.at(-1) ?? r.steps)}
                  </span>
                </span>
              </label>
            ))}
            {rows.length === 0 && (
              <p class="hint">
                No runs yet. Start one with <code>tessera train --dashboard</code>, or pass a
                metrics file or a folder: <code>tessera dashboard --runs run.jsonl</code>.
              </p>
            )}
          </div>
          <GroupMessage names={["runs"]} />
        </fieldset>
        <Choice label="Horizontal axis" {...field("axis")} options={AXES} />
        <Slider
          label="Smoothing"
          {...field("smoothing")}
          stops={[0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99]}
        />
        <Toggle label="Log scale of loss and gradient norm" {...field("log")} />
        {main?.experts && (
          <>
            <Choice
              label="Experts of"
              {...field("layer")}
              options={[["", "all layers, mean"], ...main.experts.layers.map((l): [string, string] => [l, l])]}
            />
            <Toggle label="Experts as a table" {...field("table")} />
          </>
        )}
        </>
      }
      tries={
        <>
          <p>
            Kill the training process and restart it: a mark shows where it resumed, and the curve
            continues. Select a <strong>second run</strong> to overlay it.
          </p>
          <p>
            Slow one rank down (pause its process repeatedly, or load its core): its bar is
            marked <strong>slow</strong>, and the other ranks show exposed communication.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Measured memory is shown next to the <strong>prediction</strong> made before the run.
            Communication that overlaps with computation adds no time;{" "}
            <strong>exposed</strong> communication does.
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
                  ...stateFigure(main, lost),
                },
                {
                  label: "Step",
                  key: "live-step",
                  value: whole(main.steps.at(-1)),
                  note: main.steps_in_all ? `of ${whole(main.steps_in_all)}` : undefined,
                },
                ...(main.eta_s == null || lost
                  ? []
                  : [
                      {
                        label: "Time left",
                        key: "eta",
                        value: seconds(main.eta_s),
                        note: `until ${clock(main.eta_s)}`,
                      },
                    ]),
                { label: "Loss", key: "loss", value: plain(last("loss")) },
                ...(some(main.eval_loss)
                  ? [{ label: "Validation loss", key: "eval-loss", value: plain(last("eval_loss")) }]
                  : []),
                { label: "Tokens/s", value: count(last("tokens_per_s")) },
                { label: "Step time", value: seconds(last("step_s")) },
                { label: "Gradient norm", value: plain(last("grad_norm")) },
                ...(main.stragglers ?? []).slice(0, 2).map((s) => ({
                  label: "Slow",
                  key: `slow-${s.rank}`,
                  value: `rank ${s.rank}`,
                  note: slowness(s),
                  tone: "bad" as const,
                })),
              ]}
            />
            {main.reason && (
              <p class="bad-text" data-reason>
                Failed: {main.reason}
              </p>
            )}
          </Card>
          <div class="two">
            {CURVES.map(({ smooths, logs, ...curve }) => (
              <RunChart
                key={curve.column}
                {...curve}
                runs={shown}
                nameOf={nameOf}
                axis={axis}
                smoothing={smooths ? smoothing : 0}
                log={!!logs && at.log === "true"}
              />
            ))}
          </div>
          <div class="two">
            <MemoryCompared measured={main.memory} predicted={memoryOf(main.predicted)} />
            <MemoryOverSteps run={main} />
            <Exposure run={main} />
            {main.phases && main.phases.length > 0 && (
              <Phases rows={main.phases} stragglers={main.stragglers ?? []} />
            )}
          </div>
          <ExpertCards run={main} table={at.table === "true"} />
          {some(main.gpu_utilization) && (
            <RunChart
              title="GPU utilization"
              column="gpu_utilization"
              runs={shown}
              nameOf={nameOf}
              show={(v) => share(v, 0)}
              zero
            />
          )}
          <Card
            title={shown.length > 1 ? "Configurations compared" : "Configuration"}
            note={shown.length > 1 ? "with all settings that differ" : undefined}
          >
            <Table label="Configurations" heads={["setting", ...shown.map(([id]) => nameOf(id))]}>
              {compared.map(([key, values]) => (
                <tr key={key} data-setting={key}>
                  <td>{key}</td>
                  {values.map((v, i) => (
                    <td key={i}>{new Set(values).size > 1 ? <strong>{v}</strong> : v}</td>
                  ))}
                </tr>
              ))}
            </Table>
          </Card>
        </>
      ) : (
        <Card>
          <p class="empty-note">{rows.length ? "Select a run." : "No runs yet."}</p>
        </Card>
      )}
    </View>
  );
}

function wrongSetting(at: typeof DEFAULTS, run: RunSeries | undefined): ErrorInfo | undefined {
  const name = AXES.find(([id]) => id === at.axis)?.[1];
  if (!name) return { field: "axis", message: "must be step, tokens or time" };
  const x = at.axis === "tokens" ? run?.tokens_total : run?.elapsed_s;
  if (run && at.axis !== "step" && !some(x))
    return { field: "axis", message: `The metrics of this run have no ${name}.` };
  if (run?.experts && !run.experts.tokens && at.layer)
    return { field: "layer", message: "The run has no such layer with experts." };
  const smoothing = Number(at.smoothing);
  if (!(smoothing >= 0 && smoothing < 1))
    return { field: "smoothing", message: "must be from 0 to less than 1" };
  return undefined;
}

function lastOf(run: RunSeries | undefined, key: string): number | null {
  const list = (run?.[key] as Column | undefined) ?? [];
  return list.findLast((v) => v != null) ?? null;
}

// Time of day after `ahead` seconds, with the day if it is another one.
function clock(ahead: number): string {
  const then = new Date(Date.now() + ahead * 1000);
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return ahead < 20 * 3600 ? time : `${then.toLocaleDateString()} ${time}`;
}

function stateFigure(run: RunSeries, lost: boolean): Pick<Figure, "value" | "note" | "tone"> {
  const state = run.state ?? "";
  const unknown = lost && !ENDED.includes(state);
  return {
    value: (
      <span>
        <i class={`dot ${unknown ? "lost" : state}`} />
        {unknown ? "connection lost" : state}
      </span>
    ),
    note: unknown ? `last state: ${state}; retrying` : undefined,
    tone: unknown || state === "failed" ? "bad" : undefined,
  };
}

// Settings that are always compared, with their names in the configuration of a run.
const HYPERPARAMETERS: [string, (config: Record<string, unknown>, axes: string[]) => unknown][] = [
  ["learning rate", (c) => c.lr],
  ["global batch", (c) => c.global_batch],
  ["seed", (c) => c.seed],
  [
    "mesh",
    (c, axes) =>
      axes
        .filter((axis) => c[axis] != null && (axis === "dp" || c[axis] !== "1"))
        .map((axis) => `${axis}=${String(c[axis])}`)
        .join(","),
  ],
  ["layout", (c) => c.layout],
];
const COVERED = ["lr", "global_batch", "seed", "layout"];

function comparison(runs: RunSeries[], axes: string[]): [string, string[]][] {
  const text = (v: unknown) => (v == null || v === "" ? "–" : String(v));
  const configs = runs.map((r) => r.config ?? {});
  const others = [...new Set(configs.flatMap((c) => Object.keys(c)))]
    .filter((k) => !COVERED.includes(k) && !axes.includes(k))
    .sort()
    .map((k): [string, string[]] => [k, configs.map((c) => text(c[k]))])
    .filter(([, values]) => new Set(values).size > 1);
  return [
    ...HYPERPARAMETERS.map(([name, of]): [string, string[]] => [name, configs.map((c) => text(of(c, axes)))]),
    ...others,
    ["loss", runs.map((r) => plain(lastOf(r, "loss")))],
    ["validation loss", runs.map((r) => plain(lastOf(r, "eval_loss")))],
  ];
}
