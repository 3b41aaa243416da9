// One plan: its way, its figures, and the ways to carry it elsewhere.
import type { Plan } from "../answers";
import { bytes, count, seconds, share } from "../format";
import { address, type Values } from "../route";
import { Card, Copy, Figures } from "./frame";

export function Way({ q }: { q: Plan["question"] }) {
  return (
    <span>
      {q.dp > 1 && (
        <span class="chip c-dp">
          dp {q.dp}
          {q.dp_replicate > 1 ? ` in ${q.dp_replicate} replicas` : ""}
        </span>
      )}
      {q.tp > 1 && (
        <span class="chip c-tp">
          tp {q.tp}
          {q.sequence_parallel ? "+sp" : ""}
        </span>
      )}
      {q.pp > 1 && (
        <span class="chip c-pp">
          pp {q.pp}
          {q.schedule !== "1f1b" ? ` ${q.schedule}` : ""}
          {q.schedule === "interleaved" ? `×${q.chunks}` : ""}
        </span>
      )}
      {q.zero > 0 ? `ZeRO-${q.zero}` : "DDP"}
    </span>
  );
}

export function Picked({ plan }: { plan: Plan }) {
  const q = plan.question;
  const text = (v: unknown) => String(v);
  const common: Values = {
    model: q.model.name,
    dp: text(q.dp),
    tp: text(q.tp),
    pp: text(q.pp),
    zero: text(q.zero),
    micro_batch: text(q.micro_batch),
    hardware: q.hardware,
  };
  const hybrid: Values = { ...common, dp_replicate: text(q.dp_replicate) };
  const links: [string, string][] = [
    [
      "Memory",
      address("memory", {
        ...hybrid,
        by: "model",
        layout: q.layout,
        seq: text(q.seq),
        recompute: q.recompute,
        sequence_parallel: text(q.sequence_parallel),
        plan_pp: text(q.pp),
        schedule: q.schedule,
        chunks: q.chunks > 1 ? text(q.chunks) : "",
        grad_accum: text(q.grad_accum),
      }),
    ],
    ["Scaling", address("scaling", { ...common, recompute: q.recompute })],
    [
      "Collectives",
      address("collectives", {
        model: q.model.name,
        dp: text(q.dp),
        grad_accum: text(q.grad_accum),
      }),
    ],
    [
      "Pipeline",
      address("pipeline", {
        pp: text(q.pp),
        micros: text(q.grad_accum),
        chunks: text(Math.max(q.chunks, 1)),
        shown: q.schedule,
      }),
    ],
    [
      "Trace",
      address("trace", { ...hybrid, grad_accum: text(q.grad_accum), schedule: q.schedule }),
    ],
  ];
  return (
    <Card title={<Way q={q} />} note={plan.bound ? `bound by ${plan.bound}` : undefined}>
      <Figures
        items={[
          {
            label: "Memory",
            key: "plan-memory",
            value: bytes(plan.memory.total),
            tone: plan.fits ? "good" : "bad",
            note: plan.margin != null ? `${bytes(plan.margin)} to spare` : undefined,
          },
          { label: "Tokens a second", key: "plan-tokens", value: count(plan.tokens_per_s) },
          { label: "Step", key: "plan-step", value: seconds(plan.time?.step) },
          { label: "Exposed communication", value: seconds(plan.time?.comm_exposed) },
          { label: "Bubble", value: seconds(plan.time?.bubble) },
          { label: "MFU", value: share(plan.mfu) },
        ]}
      />
      <p class="note spaced">See it in</p>
      <div class="buttons">
        {links.map(([name, to]) => (
          <a key={name} class="button" href={to}>
            {name}
          </a>
        ))}
        {plan.train_command && <Copy text={plan.train_command} label="Copy tessera train" />}
      </div>
    </Card>
  );
}
