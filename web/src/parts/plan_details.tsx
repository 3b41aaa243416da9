// Details of one plan, with links that open it in the other views.
import type { Plan } from "../responses";
import { requestBody, useRequest } from "../api";
import { bytes, count, seconds, share } from "../format";
import { address, type OpenPlan, planText, type Values, type ViewId } from "../route";
import { axisColor, useAxes, usedAxes } from "./axes";
import { Card, Copy, type Figure, Figures } from "./frame";

export function Parallelism({ q }: { q: Plan["question"] }) {
  const chunks = q.schedule === "interleaved" ? `×${q.chunks}` : "";
  const more: Record<string, string> = {
    dp: q.dp_replicate > 1 ? ` (${q.dp_replicate} replicas)` : "",
    tp: q.sequence_parallel ? "+sp" : "",
    pp: q.schedule !== "1f1b" ? ` ${q.schedule}${chunks}` : "",
  };
  return (
    <span>
      {usedAxes(useAxes(), q).map((axis) => (
        <span key={axis} class={`chip c-${axisColor(axis)}`}>
          {axis} {String(q[axis])}
          {more[axis] ?? ""}
        </span>
      ))}
      {q.zero > 0 ? `ZeRO-${q.zero}` : "DDP"}
    </span>
  );
}

// Views that can show a plan.
const SHOWN_IN: [ViewId, string][] = [
  ["memory", "Memory"],
  ["scaling", "Scaling"],
  ["collectives", "Collectives"],
  ["pipeline", "Pipeline"],
  ["context", "Context"],
  ["trace", "Trace"],
];

function PlanLinks({ settings, except }: { settings: Values; except?: ViewId }) {
  const plan = planText(settings);
  return (
    <>
      {SHOWN_IN.filter(([view]) => view !== except).map(([view, name]) => (
        <a key={view} class="button" href={address(view, { plan })}>
          {name}
        </a>
      ))}
    </>
  );
}

// The plan that is open in a view: the settings that have no control there, and links.
export function PlanNote({ plan, view }: { plan: OpenPlan; view: ViewId }) {
  if (Object.keys(plan.settings).length === 0) return null;
  const others = Object.entries(plan.others);
  return (
    <div class="control" data-plan>
      {others.length > 0 && <p class="hint">Settings of the plan without a control here:</p>}
      <p class="buttons">
        {others.map(([key, value]) => (
          <button
            key={key}
            type="button"
            class="small"
            data-setting={key}
            aria-label={`Remove ${key} ${value}`}
            onClick={() => plan.remove(key)}
          >
            {key.replace(/_/g, " ")} {value} ×
          </button>
        ))}
      </p>
      <p class="hint">Open the plan in</p>
      <p class="buttons">
        <PlanLinks settings={plan.settings} except={view} />
        <button type="button" onClick={plan.close}>
          Close plan
        </button>
      </p>
    </div>
  );
}

// Exposed communication of each axis on which there is any, of a simulated step.
export function useExposed(time: Record<string, number> | undefined): Figure[] {
  return useAxes()
    .filter((axis) => (time?.[axis] ?? 0) > 0)
    .map((axis) => ({
      label: `Exposed ${axis.replace("_", " ")}`,
      key: `exposed-${axis}`,
      value: seconds(time?.[axis]),
    }));
}

// Simulated step of the open plan, for views that draw only a part of it.
export function PlanStep({ settings }: { settings: Values }) {
  const open = Object.keys(settings).length > 0;
  const { data, error } = useRequest<{ tokens_per_s: number; time: Record<string, number> }>(
    "api/simulate",
    requestBody(settings),
    open,
  );
  const exposed = useExposed(data?.time);
  if (!open) return null;
  return (
    <Card title="Simulated step of the plan">
      {error && <p class="reason">{error.message}</p>}
      {!error && data && (
        <Figures
          items={[
            { label: "Step", key: "step", value: seconds(data.time.step) },
            { label: "Bubble", key: "bubble", value: seconds(data.time.bubble) },
            ...exposed,
            { label: "Tokens/s", key: "tokens", value: count(data.tokens_per_s) },
          ]}
        />
      )}
    </Card>
  );
}

const RANGE = "four of five such runs: ";
function stepRange(plan: Plan): string | undefined {
  const i = plan.time?.interval;
  return i ? `${RANGE}${seconds(i.low)} to ${seconds(i.high)}` : undefined;
}
// Throughputs at the ends of the interval of the step, lowest first.
export function tokensRange(plan: Plan): [number, number] | undefined {
  const i = plan.time?.interval;
  if (!i || !plan.time || plan.tokens_per_s == null) return undefined;
  const tokens = plan.tokens_per_s * plan.time.step;
  return [tokens / i.high, tokens / i.low];
}

export function PlanDetails({ plan, settings }: { plan: Plan; settings: Values }) {
  const q = plan.question;
  const launch = plan.launch ?? [];
  const range = tokensRange(plan);
  return (
    <Card
      title={<Parallelism q={q} />}
      name="Selected plan"
      note={plan.bound ? `bound by ${plan.bound}` : undefined}
    >
      <Figures
        items={[
          {
            label: "Memory",
            key: "plan-memory",
            value: bytes(plan.memory.total),
            tone: plan.fits ? "good" : "bad",
            note: plan.margin != null ? `${bytes(plan.margin)} free` : undefined,
          },
          {
            label: "Tokens/s",
            key: "plan-tokens",
            value: count(plan.tokens_per_s),
            note: range && `${RANGE}${count(range[0])} to ${count(range[1])}`,
          },
          { label: "Step", key: "plan-step", value: seconds(plan.time?.step), note: stepRange(plan) },
          { label: "Exposed communication", value: seconds(plan.time?.comm_exposed) },
          { label: "Bubble", key: "plan-bubble", value: seconds(plan.time?.bubble) },
          { label: "MFU", value: share(plan.mfu) },
        ]}
      />
      {plan.time?.interval && (
        <p class="note spaced" data-figure="basis">
          Intervals: {plan.time.interval.basis}.
        </p>
      )}
      {plan.settings?.axis_order && (
        <p class="note spaced">
          Axis order {plan.settings.axis_order} is a prediction only: the train command uses
          tp,cp,dp,pp.
        </p>
      )}
      <p class="note spaced">Open in</p>
      <div class="buttons">
        {plan.settings && <PlanLinks settings={settings} />}
        {plan.train_command && launch.length === 0 && (
          <Copy text={plan.train_command} label="Copy train command" />
        )}
      </div>
      {launch.length > 0 && (
        <>
          <p class="note spaced">
            Train on {q.nodes} hosts. Replace DATA by the training data, HOST0 by the name of the
            first host, NODE by the number of the host from 0, and SECRET by a file of random bytes.
          </p>
          {launch.map(({ launcher, command }) => (
            <p key={launcher} class="launch">
              <Copy small text={command} label={`Copy for ${launcher}`} />
              <code data-launch={launcher}>{command}</code>
            </p>
          ))}
        </>
      )}
    </Card>
  );
}
