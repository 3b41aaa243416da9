// Requests to the planner and simulator, which compute every number on the page.
import { answers } from "#answers";
import type { Answer, Progress } from "./answers";
import { modelFields } from "./route";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface ErrorInfo {
  message: string;
  field?: string | undefined;
}
export class ApiError extends Error {
  constructor(
    readonly info: ErrorInfo,
    readonly status: number,
  ) {
    super(info.message);
  }
}

function read<T>({ status, text }: Answer): T {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw new ApiError({ message: text.slice(0, 300) || `status ${status}` }, status);
  }
  if (status >= 400) {
    const error = (body as { error?: ErrorInfo }).error;
    throw new ApiError(error ?? { message: `status ${status}` }, status);
  }
  return body as T;
}

export async function get<T>(path: string): Promise<T> {
  return read<T>(await answers.ask("GET", path));
}

export async function post<T>(
  path: string,
  body: unknown,
  onProgress?: (progress: Progress) => void,
): Promise<T> {
  return read<T>(await answers.ask("POST", path, JSON.stringify(body), onProgress));
}

export interface RequestState<T> {
  data: T | undefined;
  error: ErrorInfo | undefined;
  busy: boolean;
  progress?: Progress | undefined; // of a long calculation, if it reports any
}

const errorInfo = (error: unknown): ErrorInfo =>
  error instanceof ApiError ? error.info : { message: answers.unreachable };

// Number of pending requests. The page becomes visible when the first responses have arrived.
let openRequests = 0;
const idle = new Set<() => void>();
async function tracked<T>(request: Promise<T>): Promise<T> {
  openRequests++;
  try {
    return await request;
  } finally {
    // Deferred so that the response is rendered first.
    setTimeout(() => {
      if (--openRequests === 0) for (const notify of [...idle]) notify();
    });
  }
}
export const settled = (): Promise<void> =>
  new Promise((done) => {
    if (openRequests === 0) done();
    else idle.add(done);
  });

// Debounce time in milliseconds for requests that take the server about a second.
export const DEBOUNCE_MS = 150;

// Posts `body` whenever it changes and returns the latest response. While a request is pending,
// only the newest body waits, so dragging a slider neither queues requests nor starves. The last
// good response stays until the next one. `debounce` (milliseconds) delays expensive requests until the
// body stops changing.
export function useRequest<T>(
  path: string,
  body: unknown,
  when = true,
  debounce = 0,
): RequestState<T> {
  const [state, setState] = useState<RequestState<T>>({
    data: undefined,
    error: undefined,
    busy: false,
  });
  const newest = useRef<string>("");
  const pending = useRef(false);
  const alive = useRef(true);
  const first = useRef(true);
  const key = when ? JSON.stringify(body) : "";

  useEffect(() => {
    alive.current = true;
    return () => {
      alive.current = false;
    };
  }, []);
  // A layout effect runs before the paint, so the response is shown one frame earlier.
  useLayoutEffect(() => {
    if (!key) return;
    newest.current = key;
    if (pending.current) return;
    const run = async () => {
      pending.current = true;
      // `busy` only after 200 ms: most responses arrive within a frame.
      const slow = setTimeout(() => setState((last) => ({ ...last, busy: true })), 200);
      let sent = "";
      let next: RequestState<T> | undefined;
      while (sent !== newest.current && alive.current) {
        while (debounce > 0 && !first.current) {
          const latest = newest.current;
          await new Promise((done) => setTimeout(done, debounce));
          if (latest === newest.current) break;
        }
        first.current = false;
        sent = newest.current;
        try {
          next = {
            data: await tracked(
              post<T>(path, JSON.parse(sent), (progress) => {
                if (alive.current) setState((last) => ({ ...last, progress }));
              }),
            ),
            error: undefined,
            busy: false,
          };
        } catch (error) {
          next = { data: undefined, error: errorInfo(error), busy: false };
        }
        const got = next;
        if (alive.current) {
          setState((last) => ({
            data: got.data ?? last.data,
            error: got.error,
            busy: false,
          }));
        }
      }
      clearTimeout(slow);
      pending.current = false;
    };
    void run();
  }, [key, path]);
  return state;
}

// Returns the request body for typed values: numbers as numbers, everything else as text for the
// server to validate. Omits empty values.
export function requestBody(values: Record<string, string | boolean>): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(values)) {
    if (value === "") continue;
    if (value === "true" || value === true) out[key] = true;
    else if (value === "false" || value === false) out[key] = false;
    else {
      const number = /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value) ? Number(value) : NaN;
      out[key] = Number.isFinite(number) ? number : value;
    }
  }
  return out;
}

export interface About {
  version: string;
  models: {
    name: string;
    params: number;
    layers: number;
    hidden: number;
    heads: number;
    experts: number; // in a layer; 0: none
  }[];
  hardware: { name: string; memory: number; per_node: number }[];
  layouts: { name: string; param: number; grad: number; optimizer: number; total: number }[];
  schedules: string[];
  axes: string[];
  settings: Setting[];
}
// Setting of the planner, as in `tessera plan --help`.
export interface Setting {
  name: string;
  group: string;
  type: string;
  default: string;
  help: string;
  choices: string[];
  least?: number;
  most?: number;
}

// Axes with a slider in the views that have a use for them.
const OWN_AXES = ["dp", "dp_replicate", "ep", "cp", "tp", "pp"];
// Settings that every view with a model has controls for, without code of its own: further axes of
// the mesh, and the experts.
export const furtherSettings = (about: About | undefined): Setting[] =>
  (about?.settings ?? []).filter((s) =>
    about?.axes.includes(s.name)
      ? !OWN_AXES.includes(s.name)
      : s.group === "Experts",
  );

// Requested at startup: every view lists the models, hardware or schedules.
let about: Promise<About> | undefined = tracked(get<About>("api/about"));
let known: About | undefined;
function knows(it: About): void {
  known = it;
  modelFields.value = Object.fromEntries(furtherSettings(it).map((s) => [s.name, ""]));
}
about.then((it) => knows(it)).catch(() => (about = undefined));
export function useAbout(): About | undefined {
  const [value, setValue] = useState<About | undefined>(known);
  useEffect(() => {
    if (value) return;
    about ??= get<About>("api/about");
    about.then((it) => {
      knows(it);
      setValue(it);
    }, () => {
      about = undefined;
    });
  }, []);
  return value;
}
