// One step of a small network on several ranks, really run: each gradient before and after, its
// bucket, and when that was ready, sent and done.
import type { Span } from "../answers";
import { HEAVY, question, useAnswer } from "../api";
import { bytes, plain, seconds, typed } from "../format";
import { range, Slider } from "../parts/controls";
import { Card, Legend, View } from "../parts/frame";
import { Lanes } from "../parts/lanes";
import { Table } from "../parts/table";
import { useFields } from "../route";

interface SyncAnswer {
  ranks: number;
  parameters: {
    name: string;
    elements: number;
    bucket: number;
    before: number[][];
    after: number[][] | number[];
  }[];
  buckets: {
    index: number;
    bytes: number;
    parameters: string[];
    ready: number;
    sent: number;
    done: number;
  }[];
  ways: { name: string; seconds: number; spans: Span[] }[];
  bucket_bytes?: number;
  command?: string;
}

const DEFAULTS = { ranks: "2", bucket_size: "150", width: "256", layers: "6" };

export function SyncView() {
  const { at, field } = useFields("sync", DEFAULTS);
  const { data, error, busy } = useAnswer<SyncAnswer>("api/sync", question(at), true, HEAVY);
  const until = Math.max(...(data?.ways.flatMap((w) => w.spans.map((s) => s.end)) ?? [0]), 0);

  return (
    <View
      title="Gradient synchronisation"
      lead="A real step of a small network: what each rank computed alone, and what all hold after."
      error={error}
      busy={busy}
      command={data?.command}
      controls={
        <>
          <Slider label="Ranks" {...field("ranks")} stops={range(2, 4)} />
          <Slider
            label="Bucket size"
            {...field("bucket_size")}
            show={typed(bytes)}
            stops={[16, 64, 100, 150, 200, 300, 500, 1000, 4000]}
            hint="of the small network in the table"
          />
          <Slider
            label="Width, timed network"
            {...field("width")}
            stops={[64, 128, 256, 512, 1024]}
          />
          <Slider label="Layers, timed network" {...field("layers")} stops={[2, 4, 6, 8, 12]} />
          <p class="hint" role="status">
            {busy ? "Running a step on this machine…" : "Each change runs a step on this machine."}
          </p>
        </>
      }
      tries={
        <>
          <p>
            Make the <strong>buckets small</strong>: many calls, each with its own cost. Make them
            huge: one call that cannot start before backward ends.
          </p>
        </>
      }
      notices={
        <>
          <p>
            Backward runs from the last layer to the first, so the <strong>last layer's</strong>{" "}
            bucket is ready first. With overlap it travels while earlier layers still compute.
            Before, every rank has its own gradient; after, all hold the same.
          </p>
        </>
      }
    >
      {data?.ways.map((w) => (
        <Card
          key={w.name}
          title={
            {
              "per-parameter": "One call for each parameter",
              bucketed: "In buckets, after backward",
              overlapped: "In buckets, while backward goes on",
            }[w.name] ?? w.name
          }
          note={<span data-figure={`way-${w.name}`}>{seconds(w.seconds)}</span>}
        >
          <Lanes spans={w.spans} label={w.name} until={until} />
        </Card>
      ))}
      {data && (
        <Card>
          <Legend
            items={[
              ["forward", "forward"],
              ["backward", "backward"],
              ["dp", "all-reduce"],
            ]}
          />
        </Card>
      )}
      {data && (
        <Card title="Gradients before and after" note="the first value of each parameter">
          <Table
            label="Gradients of each parameter"
            heads={["parameter", "elements", "bucket", "before, rank by rank", "after"]}
          >
            {data.parameters.map((p) => (
              <tr key={p.name}>
                <td>
                  <code>{p.name}</code>
                </td>
                <td>{p.elements.toLocaleString("en-US")}</td>
                <td>{p.bucket}</td>
                <td>
                  <Numbers of={p.before.map((v) => v[0])} tone="differs" />
                </td>
                <td>
                  <Numbers of={p.after.map((v) => (Array.isArray(v) ? v[0] : v))} tone="same" />
                </td>
              </tr>
            ))}
          </Table>
        </Card>
      )}
      {data && data.buckets.length > 0 && (
        <Card title="Buckets, overlapped">
          <Table label="Buckets" heads={["bucket", "bytes", "parameters", "ready", "sent", "done"]}>
            {data.buckets.map((b) => (
              <tr key={b.index}>
                <td>{b.index}</td>
                <td>{bytes(b.bytes)}</td>
                <td>{b.parameters.length}</td>
                <td>{seconds(b.ready)}</td>
                <td>{seconds(b.sent)}</td>
                <td>{seconds(b.done)}</td>
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
