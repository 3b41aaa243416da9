// Pipeline schedules as Gantt charts, side by side.
import { question, useAbout, useAnswer } from "../api";
import { plain, share } from "../format";
import { range, ReasonOf, Slider } from "../parts/controls";
import { Card, Copy, Legend, View } from "../parts/frame";
import { Gantt, type Schedule } from "../parts/gantt";
import { useFields } from "../route";

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
  const { at, set, field } = useFields("pipeline", DEFAULTS);
  const about = useAbout();
  const shown = at.shown.split(",").filter(Boolean);
  const { shown: _shown, chunks, ...rest } = at;
  const plainOnes = shown.filter((s) => !CHUNKED.includes(s));
  const chunkedOnes = shown.filter((s) => CHUNKED.includes(s));
  const one = { ...question(rest), schedules: plainOnes };
  const two = { ...question({ ...rest, chunks }), schedules: chunkedOnes };
  const first = useAnswer<{ schedules: Schedule[] }>("api/schedule", one, plainOnes.length > 0);
  const second = useAnswer<{ schedules: Schedule[] }>("api/schedule", two, chunkedOnes.length > 0);
  const answers = [...(first.data?.schedules ?? []), ...(second.data?.schedules ?? [])];
  const listed = shown
    .map((name) => answers.find((a) => a.schedule === name))
    .filter((a): a is Schedule => !!a);
  const longest = Math.max(...listed.filter((s) => !s.error).map((s) => s.step), 1e-12);
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
      lead="Who computes what when: each row is a GPU, each block a pass of one micro-batch."
      error={first.error ?? second.error}
      busy={first.busy || second.busy}
      command={listed.find((s) => s.command)?.command ?? undefined}
      controls={
        <>
          <Slider label="Stages" {...field("pp")} stops={range(1, 16)} />
          <Slider
            label="Micro-batches"
            {...field("micros")}
            also={["grad_accum"]}
            stops={[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]}
          />
          <Slider label="Chunks, interleaved" {...field("chunks")} stops={range(1, 8)} />
          <Slider label="Forward time" {...field("forward")} stops={[0.5, 1, 1.5, 2, 3, 4]} />
          <Slider
            label="Backward time"
            {...field("backward")}
            stops={[0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 8]}
          />
          <Slider
            label="Hop between stages"
            {...field("hop")}
            stops={[0, 0.05, 0.1, 0.2, 0.5, 1]}
          />
          <fieldset data-field="schedules">
            <legend class="note">Schedules to compare</legend>
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
            <ReasonOf names={["schedules", "schedule"]} />
          </fieldset>
        </>
      }
      tries={
        <>
          <p>
            Raise the <strong>micro-batches</strong>: the idle corners stay as large, but the step
            grows around them, so the bubble's share falls. Then give interleaved{" "}
            <strong>more chunks</strong>.
          </p>
        </>
      }
      notices={
        <>
          <p>
            GPipe and 1F1B idle <strong>equally long</strong>; they differ in what they hold (bars
            at the right): GPipe keeps every micro-batch, 1F1B at most one per stage. Zero-bubble
            schedules fill the gaps with the half of backward that nobody waits for.
          </p>
        </>
      }
    >
      <Card>
        <Legend
          items={[
            ["forward", "forward"],
            ["backward", "backward (of inputs)"],
            ["weight", "backward of weights"],
            ["activations", "micro-batches held at most"],
          ]}
        />
      </Card>
      {listed.map((s) => (
        <Card
          key={s.schedule}
          title={NAMES[s.schedule] ?? s.schedule}
          note={
            s.error ? undefined : (
              <span>
                step <b data-figure={`step-${s.schedule}`}>{plain(s.step)}</b> · bubble{" "}
                <b data-figure={`bubble-${s.schedule}`}>{share(s.bubble)}</b>
                {s.chunks > 1 ? ` · ${s.chunks} chunks a GPU` : ""}{" "}
                {s.command && <Copy small text={s.command} label="Copy command" />}
              </span>
            )
          }
        >
          {s.error ? <p class="reason">{s.error}</p> : <Gantt schedule={s} longest={longest} />}
        </Card>
      ))}
      {listed.length === 0 && <p class="empty-note">Choose a schedule to draw.</p>}
    </View>
  );
}
