// Pipeline schedules as Gantt charts, side by side.
import { requestBody, useAbout, useRequest } from "../api";
import { plain, share } from "../format";
import { range, GroupMessage, Slider } from "../parts/controls";
import { Card, Copy, Legend, View } from "../parts/frame";
import { Gantt, type Schedule } from "../parts/gantt";
import { PlanNote, PlanStep } from "../parts/plan_details";
import { useFields, type Values } from "../route";

const DEFAULTS = {
  pp: "4",
  micros: "8",
  chunks: "2",
  forward: "1",
  backward: "2",
  hop: "0",
  shown: "gpipe,1f1b,interleaved,zb-h1",
};
const NAMES: Record<string, string> = {
  gpipe: "GPipe",
  "1f1b": "1F1B",
  interleaved: "Interleaved 1F1B",
  "zb-h1": "Zero bubble H1",
  "zb-v": "Zero bubble V",
};
const CHUNKED = ["interleaved"];

export function PipelineView() {
  const { at, plan, set, field } = useFields("pipeline", DEFAULTS, (settings) => ({
    micros: settings.grad_accum ?? DEFAULTS.micros,
    shown: settings.schedule ?? "1f1b",
  }));
  const about = useAbout();
  const shown = at.shown.split(",").filter(Boolean);
  const opened = openedPlan(plan.settings, at.micros, shown);
  const { shown: _shown, chunks, ...rest } = at;
  const plainOnes = shown.filter((s) => !CHUNKED.includes(s));
  const chunkedOnes = shown.filter((s) => CHUNKED.includes(s));
  const one = { ...requestBody(rest), schedules: plainOnes };
  const two = { ...requestBody({ ...rest, chunks }), schedules: chunkedOnes };
  const first = useRequest<{ schedules: Schedule[] }>("api/schedule", one, plainOnes.length > 0);
  const second = useRequest<{ schedules: Schedule[] }>("api/schedule", two, chunkedOnes.length > 0);
  const responses = [...(first.data?.schedules ?? []), ...(second.data?.schedules ?? [])];
  const listed = shown
    .map((name) => responses.find((a) => a.schedule === name))
    .filter((a): a is Schedule => !!a);
  // All charts share a scale of time and a scale of memory.
  const drawn = listed.filter((s) => !s.error);
  const longest = Math.max(...drawn.map((s) => s.step), 1e-12);
  const most = Math.max(...drawn.flatMap((s) => s.held_micro_batches), 1);
  const toggle = (name: string) => {
    const all = about?.schedules ?? [];
    const next = shown.includes(name)
      ? shown.filter((s) => s !== name)
      : all.filter((s) => s === name || shown.includes(s));
    set({ shown: next.join(",") });
  };

  return (
    <View
      title="Pipeline"
      lead="Pipeline schedules compared. Each row is a GPU, each block a pass of one micro-batch."
      error={first.error ?? second.error}
      stale={false}
      busy={first.busy || second.busy}
      command={listed.find((s) => s.command)?.command ?? undefined}
      controls={
        <>
          <PlanNote plan={{ ...plan, others: {}, settings: opened }} view="pipeline" />
          <Slider label="Stages" {...field("pp")} stops={range(1, 16)} />
          <Slider
            label="Micro-batches"
            {...field("micros")}
            also={["grad_accum"]}
            stops={[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]}
          />
          <Slider label="Chunks per GPU (interleaved)" {...field("chunks")} stops={range(1, 8)} />
          <Slider label="Forward time" {...field("forward")} stops={[0.5, 1, 1.5, 2, 3, 4]} />
          <Slider
            label="Backward time"
            {...field("backward")}
            stops={[0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 8]}
          />
          <Slider
            label="Transfer time"
            {...field("hop")}
            stops={[0, 0.05, 0.1, 0.2, 0.5, 1]}
          />
          <fieldset data-field="schedules">
            <legend class="note">Schedules</legend>
            <div class="checks">
              {(about?.schedules ?? []).map((name) => (
                <label key={name}>
                  <input
                    type="checkbox"
                    checked={shown.includes(name)}
                    onChange={() => toggle(name)}
                  />
                  {NAMES[name] ?? name}
                </label>
              ))}
            </div>
            <GroupMessage names={["schedules", "schedule"]} />
          </fieldset>
        </>
      }
      tries={
        <>
          <p>
            Increase the <strong>micro-batches</strong>: idle time at the start and end stays the
            same while the step gets longer, so the bubble fraction falls. Then increase the{" "}
            <strong>chunks</strong> of interleaved 1F1B.
          </p>
        </>
      }
      notices={
        <>
          <p>
            GPipe and 1F1B have the <strong>same bubble</strong>. They differ in activations (bars
            at the right): GPipe holds all micro-batches, 1F1B at most as many as there are stages.
            Zero-bubble schedules fill idle time with weight gradients, which no other stage waits
            for.
          </p>
        </>
      }
    >
      <Card>
        <Legend
          items={[
            ["forward", "forward"],
            ["backward", "backward (zero bubble: input gradients)"],
            ["weight", "weight gradients"],
            ["chunk", "later chunk of a GPU (interleaved, zero bubble V)"],
            ["activations", "activations held at peak, in micro-batches"],
          ]}
        />
      </Card>
      <PlanStep settings={opened} />
      {listed.map((s) => (
        <Card
          key={s.schedule}
          pinned={s === listed[0]}
          stale={!!(CHUNKED.includes(s.schedule) ? second : first).error}
          title={NAMES[s.schedule] ?? s.schedule}
          note={
            s.error ? undefined : (
              <span>
                step <b data-figure={`step-${s.schedule}`}>{plain(s.step)}</b> · bubble{" "}
                <b data-figure={`bubble-${s.schedule}`}>{share(s.bubble)}</b>
                {s.chunks > 1 ? ` · ${s.chunks} chunks per GPU` : ""}{" "}
                {s.command && <Copy small text={s.command} label="Copy command" of={NAMES[s.schedule]} />}
              </span>
            )
          }
        >
          {s.error ? <p class="reason">{s.error}</p> : <Gantt schedule={s} longest={longest} most={most} />}
        </Card>
      ))}
      {listed.length === 0 && <p class="empty-note">Select a schedule.</p>}
    </View>
  );
}

// Returns the settings of the open plan with the micro-batches and the schedule that are shown.
function openedPlan(plan: Values, micros: string, shown: string[]): Values {
  if (Object.keys(plan).length === 0) return plan;
  const { chunks, schedule: own, ...rest }: Values = { ...plan, grad_accum: micros };
  const schedule = shown.length === 1 ? shown[0] : own;
  if (plan.pp === "1" || !schedule) return rest;
  const chunked = CHUNKED.includes(schedule) && chunks !== undefined;
  return { ...rest, schedule, ...(chunked ? { chunks } : {}) };
}
