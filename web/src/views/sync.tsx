// One real step of a small network on several ranks, synchronized in several ways: lanes of every
// rank on one clock, and each gradient before and after.
import type { Span } from "../responses";
import { DEBOUNCE_MS, requestBody, useRequest } from "../api";
import { BYTES, bytes, plain, seconds } from "../format";
import { range, Slider } from "../parts/controls";
import { Card, Legend, View } from "../parts/frame";
import { Lanes } from "../parts/lanes";
import { Table } from "../parts/table";
import { useFields } from "../route";

interface Way {
  name: string;
  text: string;
  seconds: number;
  wait_seconds: number;
  sent_bytes: number;
  collectives: { op: string; count: number }[];
  spans: Span[];
}
interface SyncResponse {
  ranks: number;
  comparison: string;
  parameters: {
    name: string;
    elements: number;
    bucket: number;
    before: number[][];
    after: number[][];
  }[];
  buckets: {
    index: number;
    bytes: number;
    parameters: string[];
    ready: number;
    sent: number;
    done: number;
  }[];
  ways: Way[];
  command?: string;
}

const DEFAULTS = { ranks: "2", bucket_size: "2000000", width: "512", layers: "8" };

const TITLES: Record<string, string> = {
  "per-parameter": "One all-reduce per parameter",
  bucketed: "Buckets, all-reduced after backward",
  overlapped: "Buckets, all-reduced during backward",
  "zero-2": "ZeRO-2: reduce-scatter, then gather",
  "zero-3": "ZeRO-3: gather, reduce-scatter",
};

export function SyncView() {
  const { at, field } = useFields("sync", DEFAULTS);
  const { data, error, busy } = useRequest<SyncResponse>(
    "api/sync",
    requestBody(at),
    true,
    DEBOUNCE_MS,
  );
  const until = Math.max(...(data?.ways.flatMap((w) => w.spans.map((s) => s.end)) ?? [0]), 0);

  return (
    <View
      title="Gradient synchronization"
      lead="A real step of a small network: the timeline of every rank, and its gradients before and after."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <Slider label="Ranks" {...field("ranks")} stops={range(2, 4)} />
          <Slider
            label="Bucket size"
            {...field("bucket_size")}
            unit={BYTES}
            stops={[1e4, 1e5, 5e5, 1e6, 2e6, 4e6, 8e6, 16e6]}
            hint="a bucket is closed when it holds at least this much"
          />
          <Slider label="Width" {...field("width")} stops={[64, 128, 256, 512, 1024]} />
          <Slider label="Layers" {...field("layers")} stops={[2, 4, 6, 8, 12]} />
          <p class="hint" role="status">
            {busy ? "Running a step on this machine…" : "Each change runs a step on this machine."}
          </p>
        </>
      }
      tries={
        <>
          <p>
            Set a <strong>small bucket size</strong>: many all-reduces, each with its own latency.
            Set a large one: a single all-reduce, which cannot start before backward ends.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Backward runs from the last layer to the first, so the <strong>last layer's</strong>{" "}
            bucket is ready first. With overlap, it is reduced while backward continues with earlier
            layers. Before, each rank has its own gradient; after, all ranks have the same one.
          </p>
          <p>
            ZeRO-2 sends as much as an all-reduce: its <strong>reduce-scatter</strong> is the first
            half, the gather of updated parameters the second. ZeRO-3 gathers the parameters{" "}
            <strong>twice</strong>, so it sends half as much again.
          </p>
        </>
      }
    >
      {data && (
        <Card>
          <p data-figure="comparison">{data.comparison}</p>
          <Legend
            items={[
              ["forward", "forward"],
              ["backward", "backward"],
              ["step", "optimizer"],
              ["rule", "wait for communication"],
              ["dp", "communication"],
            ]}
          />
          <p class="note">
            Time starts when the first rank begins. Each time is of the pass that is drawn, the
            median of five. A collective begins when its rank is ready, so it includes the wait for
            the other ranks.
          </p>
        </Card>
      )}
      {data?.ways.map((w) => (
        <Card
          key={w.name}
          pinned={w === data.ways[0]}
          title={TITLES[w.name] ?? w.name}
          note={<span data-figure={`way-${w.name}`}>{seconds(w.seconds)}</span>}
        >
          <p class="note" data-figure={`sent-${w.name}`}>
            {[
              ...w.collectives.map((c) => `${c.count} × ${c.op}`),
              `${bytes(w.sent_bytes)} sent by each rank`,
              `wait ${seconds(w.wait_seconds)}`,
            ].join(" · ")}
          </p>
          <Lanes spans={w.spans} label={w.text} until={until} />
        </Card>
      ))}
      {data && (
        <Card title="Gradients before and after" note="the first value of each parameter">
          <Table
            label="Gradients of each parameter"
            heads={["parameter", "elements", "bucket", "before, per rank", "after"]}
          >
            {data.parameters.map((p) => (
              <tr key={p.name}>
                <td>
                  <code>{p.name}</code>
                </td>
                <td data-value={p.elements}>{p.elements.toLocaleString("en-US")}</td>
                <td>{p.bucket}</td>
                <td>
                  <Numbers of={p.before.map((v) => v[0])} tone="differs" />
                </td>
                <td>
                  <Numbers of={p.after.map((v) => v[0])} tone="same" />
                </td>
              </tr>
            ))}
          </Table>
        </Card>
      )}
      {data && data.buckets.length > 0 && (
        <Card title="Buckets, during backward" note="times on the last rank">
          <Table label="Buckets" heads={["bucket", "bytes", "parameters", "ready", "sent", "done"]}>
            {data.buckets.map((b) => (
              <tr key={b.index}>
                <td>{b.index}</td>
                <td data-value={b.bytes}>{bytes(b.bytes)}</td>
                <td>{b.parameters.length}</td>
                <td data-value={b.ready}>{seconds(b.ready)}</td>
                <td data-value={b.sent}>{seconds(b.sent)}</td>
                <td data-value={b.done}>{seconds(b.done)}</td>
              </tr>
            ))}
          </Table>
        </Card>
      )}
      {!data && !error && (
        <Card>
          <p class="empty-note">Running a step…</p>
        </Card>
      )}
    </View>
  );
}

function Numbers({ of, tone }: { of: (number | undefined)[]; tone: string }) {
  return (
    <span class="values">
      {of.map((v, i) => (
        <span key={i} class={tone}>
          {plain(v)}
        </span>
      ))}
    </span>
  );
}
