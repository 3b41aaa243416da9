// Asking the server. Every number on the page comes from here.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Refusal {
  message: string;
  field?: string | undefined;
}
export class RefusedError extends Error {
  constructor(
    readonly refusal: Refusal,
    readonly status: number,
  ) {
    super(refusal.message);
  }
}

async function read<T>(answer: Response): Promise<T> {
  const text = await answer.text();
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw new RefusedError({ message: text.slice(0, 300) || answer.statusText }, answer.status);
  }
  if (!answer.ok) {
    const error = (body as { error?: Refusal }).error;
    throw new RefusedError(error ?? { message: answer.statusText }, answer.status);
  }
  return body as T;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return read<T>(await fetch(path, signal ? { signal } : {}));
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return read<T>(
    await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      ...(signal ? { signal } : {}),
    }),
  );
}

export interface Answer<T> {
  data: T | undefined;
  error: Refusal | undefined;
  busy: boolean;
}

const refusal = (error: unknown): Refusal =>
  error instanceof RefusedError
    ? error.refusal
    : { message: "The server does not answer. Is `tessera dashboard` still running?" };

// Questions under way or answered, so that a page may be shown when its first answers are there.
let open = 0;
const idle = new Set<() => void>();
async function counted<T>(asking: Promise<T>): Promise<T> {
  open++;
  try {
    return await asking;
  } finally {
    // What was waited for is drawn first.
    setTimeout(() => {
      if (--open === 0) for (const tell of [...idle]) tell();
    });
  }
}
export const answered = (): Promise<void> =>
  new Promise((done) => {
    if (open === 0) done();
    else idle.add(done);
  });

// The pause before questions that take the server a second.
export const HEAVY = 150;

// The answer to the latest question. While one is under way the newest waits and the others are
// dropped, so a slider that is dragged neither queues requests nor starves. The last good answer
// stays until the next. A question that costs the server long is asked when the reader's hand rests
// (`pause`, in milliseconds): what it passes over is not computed.
export function useAnswer<T>(path: string, body: unknown, when = true, pause = 0): Answer<T> {
  const [state, setState] = useState<Answer<T>>({ data: undefined, error: undefined, busy: false });
  const wanted = useRef<string>("");
  const asking = useRef(false);
  const alive = useRef(true);
  const first = useRef(true);
  const key = when ? JSON.stringify(body) : "";

  useEffect(() => {
    alive.current = true;
    return () => {
      alive.current = false;
    };
  }, []);
  // Before the frame is painted, not after: a slider's answer comes a frame earlier.
  useLayoutEffect(() => {
    if (!key) return;
    wanted.current = key;
    if (asking.current) return;
    const ask = async () => {
      asking.current = true;
      // Told only of what takes long enough to wonder about: most answers come within a frame.
      const slow = setTimeout(() => setState((last) => ({ ...last, busy: true })), 200);
      let asked = "";
      let next: Answer<T> | undefined;
      while (asked !== wanted.current && alive.current) {
        while (pause > 0 && !first.current) {
          const latest = wanted.current;
          await new Promise((done) => setTimeout(done, pause));
          if (latest === wanted.current) break;
        }
        first.current = false;
        asked = wanted.current;
        try {
          next = {
            data: await counted(post<T>(path, JSON.parse(asked))),
            error: undefined,
            busy: false,
          };
        } catch (error) {
          next = { data: undefined, error: refusal(error), busy: false };
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
      asking.current = false;
    };
    void ask();
  }, [key, path]);
  return state;
}

// Values as they were typed: numbers as numbers, the rest as text, so that the server can say what
// is wrong with it. Empty ones are left out.
export function question(values: Record<string, string | boolean>): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(values)) {
    if (value === "") continue;
    if (value === "true" || value === true) out[key] = true;
    else if (value === "false" || value === false) out[key] = false;
    else out[key] = /^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(value) ? Number(value) : value;
  }
  return out;
}

export interface About {
  version: string;
  models: { name: string; params: number; layers: number; hidden: number; heads: number }[];
  hardware: { name: string; memory: number; per_node: number }[];
  layouts: { name: string; param: number; grad: number; optimizer: number; total: number }[];
  schedules: string[];
}

// Asked for at once: every view has lists of what there is.
let about: Promise<About> | undefined = counted(get<About>("api/about"));
let known: About | undefined;
about.then((it) => (known = it)).catch(() => (about = undefined));
export function useAbout(): About | undefined {
  const [value, setValue] = useState<About | undefined>(known);
  useEffect(() => {
    if (value) return;
    about ??= get<About>("api/about");
    about.then(setValue, () => {
      about = undefined;
    });
  }, []);
  return value;
}
