// Runs that the server watches: their list, series and traces.
import { useEffect, useState } from "preact/hooks";
import type { RunRow, RunSeries, Span, TracedMemory } from "./responses";
import { answers } from "#answers";
import { get, type ErrorInfo, ApiError } from "./api";
import { memoryOf, spansOf, type TraceFile } from "./trace_file";

export function useRuns(): RunRow[] {
  const [rows, setRows] = useState<RunRow[]>([]);
  useEffect(() => {
    if (!answers.live) return;
    let alive = true;
    const poll = () => {
      get<RunRow[] | { runs: RunRow[] }>("api/runs").then(
        (r) => alive && setRows(Array.isArray(r) ? r : r.runs),
        () => undefined, // retried in 3 s
      );
    };
    poll();
    const timer = setInterval(poll, 3000);
    return () => {
      alive = false;
      clearInterval(timer);
    };
  }, []);
  return rows;
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

export interface Followed {
  series: Record<string, RunSeries>;
  error: ErrorInfo | undefined;
  lost: boolean; // the connection to the server has dropped; it is retried
}

// Returns the series of the selected runs, read again whenever the server reports new points. All
// runs share one event stream, and are read one after the other: browsers open few connections.
// `layer` selects the experts that the first run's series describe.
export function useFollowed(ids: string[], layer = ""): Followed {
  const [series, setSeries] = useState<Record<string, RunSeries>>({});
  const [errors, setErrors] = useState<Record<string, ErrorInfo | undefined>>({});
  const [lost, setLost] = useState(false);
  useEffect(() => {
    setErrors({});
    if (ids.length === 0) return;
    let over = false;
    let reading = false;
    const dirty = new Set<string>();
    // Returns false if the server does not respond.
    const readOne = async (id: string): Promise<boolean> => {
      let problem: ErrorInfo | undefined;
      try {
        const one = id === ids[0] && layer ? `&layer=${encodeURIComponent(layer)}` : "";
        const got = await get<RunSeries>(`api/runs/${encodeURIComponent(id)}?points=1000${one}`);
        if (over) return true;
        setSeries((all) => ({ ...all, [id]: got }));
        setLost(false);
      } catch (e) {
        if (over) return true;
        setLost(!(e instanceof ApiError));
        if (!(e instanceof ApiError)) return false;
        problem = { field: "runs", ...e.info };
        if (e.status === 503) dirty.add(id);
      }
      setErrors((all) => ({ ...all, [id]: problem }));
      return true;
    };
    const read = async (changed: string[]): Promise<void> => {
      for (const id of changed) dirty.add(id);
      if (reading) return;
      reading = true;
      while (dirty.size > 0 && !over) {
        let responds = true;
        for (const id of [...dirty]) {
          dirty.delete(id);
          responds = await readOne(id);
          if (over) return;
          if (responds) continue;
          dirty.add(id);
          break;
        }
        await pause(responds ? 400 : 1000); // each run at most twice a second
      }
      reading = false;
    };
    void read(ids);
    let events: EventSource | undefined;
    let retry = 0;
    const follow = () => {
      events = new EventSource(`api/runs/events?runs=${ids.map(encodeURIComponent).join(",")}`);
      const idOf = (e: MessageEvent<string>) => (JSON.parse(e.data) as { id: string }).id;
      for (const kind of ["points", "again"])
        events.addEventListener(kind, (e: MessageEvent<string>) => void read([idOf(e)]));
      events.addEventListener("state", (e: MessageEvent<string>) => {
        // Applied at once: the last event of a server cannot be followed by a request.
        const { id, ...news } = JSON.parse(e.data) as { id: string; state: string };
        setSeries((all) => (all[id] ? { ...all, [id]: { ...all[id], ...news } } : all));
        void read([id]);
      });
      events.onopen = () => {
        setLost(false);
        void read(ids);
      };
      events.onerror = () => {
        if (over) return;
        // The browser does not reopen a source that was refused, so open a new one.
        if (events?.readyState === EventSource.CLOSED) {
          void read(ids); // polls while the stream is refused
          retry = window.setTimeout(follow, 1000);
        } else {
          setLost(true);
        }
      };
    };
    follow();
    return () => {
      over = true;
      clearTimeout(retry);
      events?.close();
    };
  }, [ids.join(","), layer]);
  return { series, error: ids.map((id) => errors[id]).find((e) => e), lost };
}

export interface TraceState {
  spans?: Span[];
  memory?: TracedMemory[];
  error?: ErrorInfo;
  note?: string;
}

export function useTrace(id: string): TraceState {
  const [state, setState] = useState<TraceState>({});
  useEffect(() => {
    setState({});
    if (!id) return;
    let alive = true;
    let retry = 0;
    const read = () => {
      get<TraceFile>(`api/runs/${encodeURIComponent(id)}/trace`).then(
        (t) => alive && setState({ spans: spansOf(t), memory: memoryOf(t) }),
        (e: unknown) => {
          if (!alive) return;
          const missing = e instanceof ApiError && e.status === 404;
          if (missing) {
            setState({ note: e.message });
            retry = window.setTimeout(read, 3000); // a run writes its trace when it ends
          } else
            setState({
              error: { message: e instanceof Error ? e.message : String(e), field: "source" },
            });
        },
      );
    };
    read();
    return () => {
      alive = false;
      clearTimeout(retry);
    };
  }, [id]);
  return state;
}
