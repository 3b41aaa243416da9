// Runs that the server watches: which there are, their series, their traces.
import { useEffect, useRef, useState } from "preact/hooks";
import type { RunRow, RunSeries, Span } from "./answers";
import { get, type Refusal, RefusedError } from "./api";

export function useRuns(): RunRow[] {
  const [rows, setRows] = useState<RunRow[]>([]);
  useEffect(() => {
    let alive = true;
    const look = () => {
      get<RunRow[] | { runs: RunRow[] }>("api/runs").then(
        (r) => alive && setRows(Array.isArray(r) ? r : r.runs),
        () => undefined, // the next look may find the server again
      );
    };
    look();
    const timer = setInterval(look, 3000);
    return () => {
      alive = false;
      clearInterval(timer);
    };
  }, []);
  return rows;
}

// The series of the chosen runs, read again whenever the server says that there is more.
export function useFollowed(ids: string[]): {
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
                ? { field: "runs", ...e.refusal }
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

// As tessera train --trace writes it, for other viewers too: microseconds, tracks by number.
interface TraceFile {
  traceEvents: {
    name: string;
    ph: string;
    pid: number;
    tid: number;
    ts?: number;
    dur?: number;
    args?: { name?: string };
  }[];
}
function spansOf(file: TraceFile): Span[] {
  const lanes = new Map<string, string>();
  for (const e of file.traceEvents) {
    if (e.ph === "M" && e.name === "thread_name")
      lanes.set(`${e.pid}/${e.tid}`, e.args?.name ?? "");
  }
  const events = file.traceEvents.filter((e) => e.ph === "X" && e.ts !== undefined);
  const first = events.reduce((least, e) => Math.min(least, e.ts ?? 0), Infinity);
  return events.map((e) => {
    const begin = ((e.ts ?? 0) - first) / 1e6;
    return {
      rank: e.pid,
      lane: lanes.get(`${e.pid}/${e.tid}`) ?? String(e.tid),
      what: e.name,
      begin,
      end: begin + (e.dur ?? 0) / 1e6,
    };
  });
}

export function useTrace(id: string): { spans?: Span[]; error?: Refusal; note?: string } {
  const [state, setState] = useState<{ spans?: Span[]; error?: Refusal; note?: string }>({});
  useEffect(() => {
    setState({});
    if (!id) return;
    let alive = true;
    get<TraceFile>(`api/runs/${encodeURIComponent(id)}/trace`).then(
      (t) => alive && setState({ spans: spansOf(t) }),
      (e: unknown) => {
        if (!alive) return;
        const missing = e instanceof RefusedError && e.status === 404;
        if (missing) setState({ note: e.message });
        else
          setState({
            error: { message: e instanceof Error ? e.message : String(e), field: "source" },
          });
      },
    );
    return () => {
      alive = false;
    };
  }, [id]);
  return state;
}
