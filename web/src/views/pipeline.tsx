// Pipeline schedules as Gantt charts, side by side.
import { useMemo } from "preact/hooks";
import { question, useAbout, useAnswer } from "../api";
import { plain, share } from "../format";
import { range, Refused, Slider } from "../parts/controls";
import { Card, Copy, Legend, useWidth, View } from "../parts/frame";
import { useFields } from "../route";
import { useContext } from "preact/hooks";

interface Pass {
  kind: string;
  micro: number;
  chunk: number;
  begin: number;
  end: number;
}
interface Schedule {
  schedule: string;
  error?: string;
  ranks: number;
  micros: number;
  chunks: number;
  actions: Pass[][];
  step: number;
  bubble: number;
  in_flight: number[];
  command?: string | null;
}

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
  const { at, set } = useFields("pipeline", DEFAULTS);
  const about = useAbout();
  const shown = at.shown.split(",").filter(Boolean);
  const { shown: _shown, chunks, ...rest } = at;
  const plainOnes = shown.filter((s) => !CHUNKED.includes(s));
  const chunkedOnes = shown.filter((s) => CHUNKED.includes(s));
  const one = useMemo(() => ({ ...question(rest), schedules: plainOnes }), [JSON.stringify(at)]);
  const two = useMemo(
    () => ({ ...question({ ...rest, chunks }), schedules: chunkedOnes }),
    [JSON.stringify(at)],
  );
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
          <Slider
            label="Stages"
            name="pp"
            value={at.pp}
            stops={range(1, 16)}
            onChange={(pp) => set({ pp })}
          />
          <Slider
            label="Micro-batches"
            name="micros"
            also={["grad_accum"]}
            value={at.micros}
            stops={[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]}
            onChange={(micros) => set({ micros })}
          />
          <Slider
            label="Chunks, interleaved"
            name="chunks"
            value={at.chunks}
            stops={range(1, 8)}
            onChange={(v) => set({ chunks: v })}
          />
          <Slider
            label="Forward time"
            name="forward"
            value={at.forward}
            stops={[0.5, 1, 1.5, 2, 3, 4]}
            onChange={(forward) => set({ forward })}
          />
          <Slider
            label="Backward time"
            name="backward"
            value={at.backward}
            stops={[0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 8]}
            onChange={(backward) => set({ backward })}
          />
          <Slider
            label="Hop between stages"
            name="hop"
            value={at.hop}
            stops={[0, 0.05, 0.1, 0.2, 0.5, 1]}
            onChange={(hop) => set({ hop })}
          />
          <fieldset>
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
            <RefusedSchedules />
          </fieldset>
        </>
      }
      tries={
        <>
          <h2>Try</h2>
          <p>
            Raise the <strong>micro-batches</strong>: the idle corners stay as large, but the step
            grows around them, so the bubble's share falls. Then give interleaved{" "}
            <strong>more chunks</strong>.
          </p>
          <h2>Notice</h2>
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

function RefusedSchedules() {
  const refusal = useContext(Refused);
  return refusal?.field === "schedules" || refusal?.field === "schedule" ? (
    <p class="reason" role="alert">
      {refusal.message}
    </p>
  ) : null;
}

const CLASS: Record<string, string> = {
  forward: "forward",
  backward: "backward",
  backward_input: "backward",
  backward_weight: "weight",
};

function Gantt({ schedule, longest }: { schedule: Schedule; longest: number }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const left = 34;
  const right = width < 520 ? 44 : 74;
  const row = Math.max(13, Math.min(26, 300 / schedule.ranks));
  const scale = Math.max(1, width - left - right) / longest;
  const held = Math.max(...schedule.in_flight, 1);
  const tall = row * schedule.ranks;
  return (
    <div ref={ref} class="gantt">
      {width > 0 && (
        <svg
          width={width}
          height={tall + 4}
          viewBox={`0 0 ${width} ${tall + 4}`}
          role="img"
          aria-label={`${schedule.schedule}: step ${plain(schedule.step)}, bubble ${share(schedule.bubble)}, micro-batches held by stage ${schedule.in_flight.join(", ")}`}
        >
          {schedule.actions.map((passes, r) => (
            <g key={r}>
              <text class="soft" x={0} y={r * row + row / 2 + 4}>
                {r}
              </text>
              <rect
                class="empty"
                x={left}
                y={r * row + 1}
                width={schedule.step * scale}
                height={row - 2}
              />
              {passes.map((p) => {
                const kind = CLASS[p.kind];
                if (!kind) return null;
                const x = left + p.begin * scale;
                const wide = (p.end - p.begin) * scale;
                const label = String(p.micro);
                return (
                  <g key={`${p.kind}${p.micro}.${p.chunk}`}>
                    <rect
                      class={`pass f-${kind}`}
                      x={x}
                      y={r * row + 1}
                      width={Math.max(0.3, wide)}
                      height={row - 2}
                      fill-opacity={1 - (0.45 * p.chunk) / Math.max(1, schedule.chunks)}
                    >
                      <title>{`${p.kind.replace("_", " of ")}, micro-batch ${p.micro}${schedule.chunks > 1 ? `, chunk ${p.chunk}` : ""}: ${plain(p.begin)} to ${plain(p.end)}`}</title>
                    </rect>
                    {wide > 7 * label.length + 3 && row > 12 && (
                      <text
                        class="on-mark"
                        x={x + wide / 2}
                        y={r * row + row / 2 + 4}
                        text-anchor="middle"
                        pointer-events="none"
                      >
                        {label}
                      </text>
                    )}
                  </g>
                );
              })}
              <rect
                class="f-activations"
                x={width - right + 12}
                y={r * row + 2}
                height={row - 4}
                rx={2}
                width={((right - 38) * (schedule.in_flight[r] ?? 0)) / held}
                fill-opacity={0.85}
              />
              <text class="soft" x={width} y={r * row + row / 2 + 4} text-anchor="end">
                {schedule.in_flight[r]}
              </text>
            </g>
          ))}
        </svg>
      )}
    </div>
  );
}
