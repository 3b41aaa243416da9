// Runs as they go: read from their metrics by the server, pushed here when something new comes.
import { useMemo } from "preact/hooks";
import type { Column, RunSeries } from "../answers";
import { count, plain, seconds, share, whole } from "../format";
import { ReasonOf } from "../parts/controls";
import { Card, Figures, View } from "../parts/frame";
import { Exposure, INKS, MemoryOverSteps, memoryOf, RunChart, some } from "../parts/run_charts";
import { MemoryCompared, Phases, slowness } from "../parts/run_pictures";
import { Table } from "../parts/table";
import { useFields } from "../route";
import { useFollowed, useRuns } from "../runs";

const DEFAULTS = { runs: "" };
const CURVES = [
  { title: "Loss", column: "loss", show: plain },
  { title: "Tokens a second", column: "tokens_per_s", show: count, zero: true },
  { title: "Gradient norm", column: "grad_norm", show: plain },
  { title: "Learning rate", column: "lr", show: plain, zero: true },
];

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
          <ReasonOf names={["runs"]} />
        </fieldset>
      }
      tries={
        <>
          <p>
            Kill the training process and start it again: a mark shows where it resumed, and the
            curve goes on. Tick a <strong>second run</strong> to lay it over the first.
          </p>
          <p>
            Slow one rank down (stop its process for moments, or load its core): its bar says{" "}
            <strong>slow</strong>, and the others' say that they wait.
          </p>
        </>
      }
      notices={
        <>
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
                ...(main.stragglers ?? []).slice(0, 2).map((s) => ({
                  label: "Slow",
                  key: `slow-${s.rank}`,
                  value: `rank ${s.rank}`,
                  note: slowness(s),
                  tone: "bad" as const,
                })),
              ]}
            />
          </Card>
          <div class="two">
            {CURVES.map((curve) => (
              <RunChart key={curve.column} {...curve} runs={shown} nameOf={nameOf} />
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
              <Table label="Configurations" heads={["setting", ...shown.map(([id]) => nameOf(id))]}>
                {differing.map(([key, values]) => (
                  <tr key={key}>
                    <td>{key}</td>
                    {values.map((v, i) => (
                      <td key={i}>{v}</td>
                    ))}
                  </tr>
                ))}
              </Table>
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

function differences(runs: [string, Record<string, unknown>][]): [string, string[]][] {
  if (runs.length < 2) return [];
  const keys = [...new Set(runs.flatMap(([, c]) => Object.keys(c)))].sort();
  return keys
    .map((k): [string, string[]] => [k, runs.map(([, c]) => (c[k] == null ? "–" : String(c[k])))])
    .filter(([, values]) => new Set(values).size > 1);
}
