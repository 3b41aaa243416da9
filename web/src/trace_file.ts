// Trace of a run, as written by tessera train --trace: Chrome's format, with times in microseconds.
import type { MemoryCurve, Span, TracedMemory } from "./responses";

interface Event {
  name: string;
  ph: string;
  pid: number; // rank
  tid: number;
  ts?: number;
  dur?: number;
  step?: number;
  args?: Record<string, unknown>;
}
export interface TraceFile {
  traceEvents: Event[];
}

export function spansOf(file: TraceFile): Span[] {
  const lanes = new Map<string, string>();
  for (const e of file.traceEvents) {
    if (e.ph === "M" && e.name === "thread_name")
      lanes.set(`${e.pid}/${e.tid}`, String(e.args?.name ?? ""));
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

const KEYS = ["params", "grads", "optimizer", "activations", "buffers", "temporary"] as const;

// `holds`: a value lasts until the next point. Otherwise values between points are interpolated.
function curve(points: Event[], holds: boolean): MemoryCurve {
  const began = points[0]?.ts ?? 0;
  const out = {
    seconds: [] as number[],
    params: [] as number[],
    grads: [] as number[],
    optimizer: [] as number[],
    activations: [] as number[],
    buffers: [] as number[],
    temporary: [] as number[],
  };
  const value = (point: Event, key: (typeof KEYS)[number]) => Number(point.args?.[key] ?? 0);
  let [peak, peakAt] = [0, 0];
  let last: Event | undefined;
  for (const point of points) {
    const seconds = ((point.ts ?? 0) - began) / 1e6;
    for (const each of holds && last ? [last, point] : [point]) {
      out.seconds.push(seconds);
      for (const key of KEYS) out[key].push(value(each, key));
    }
    const total = KEYS.reduce((sum, key) => sum + value(point, key), 0);
    if (total > peak) [peak, peakAt] = [total, seconds];
    last = point;
  }
  return { ...out, step: out.seconds.at(-1) ?? 0, peak, peak_at: peakAt };
}

// Returns the memory of each rank and traced step.
export function memoryOf(file: TraceFile): TracedMemory[] {
  const groups = new Map<string, { measured: Event[]; predicted: Event[] }>();
  for (const e of file.traceEvents) {
    if (e.ph !== "C" || e.step === undefined) continue;
    const key = `${e.pid}/${e.step}`;
    const group = groups.get(key) ?? { measured: [], predicted: [] };
    groups.set(key, group);
    if (e.name === "memory") group.measured.push(e);
    if (e.name === "predicted memory") group.predicted.push(e);
  }
  return [...groups.values()].flatMap(({ measured, predicted }) => {
    const first = measured[0];
    if (first?.step === undefined) return [];
    const beside = predicted.length > 0 ? curve(predicted, false) : undefined;
    return [{ rank: first.pid, step: first.step, measured: curve(measured, true), predicted: beside }];
  });
}
