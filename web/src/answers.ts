// What the server answers, where more than one module reads it.
export interface Memory {
  params: number;
  grads: number;
  optimizer: number;
  activations: number | null;
  buffers: number | null;
  temporary: number | null;
  total: number;
}
export interface Stage {
  stage: number;
  name: string;
  sharded: { params: boolean; grads: boolean; optimizer: boolean };
  memory: Memory;
  fits: boolean;
  sent: { forward: number; backward: number; optimizer_step: number; total: number };
  copies: number;
  state_in_all: number;
  assumed?: { activations: number; buffers: number; temporary: number; total: number } | null;
}
export interface ZeroAnswer {
  parameters: number;
  parameters_on_a_rank: number;
  stages: Stage[];
  capacity: number | null;
  capacity_total?: number | null;
  fits_from_dp: Record<string, number | null>;
  owners: { dp_rank: number; first: number; last: number }[];
  formula: { stage: number; text: string }[];
  command: string;
}

export interface Plan {
  memory: Memory;
  time: { step: number; compute: number; comm_exposed: number; bubble: number } | null;
  tokens_per_s: number | null;
  mfu: number | null;
  fits: boolean;
  margin?: number;
  bound?: string;
  remedy?: string;
  train_command?: string;
  traffic?: { total: number };
  question: {
    model: { name: string };
    seq: number;
    gpus: number;
    dp: number;
    dp_replicate: number;
    tp: number;
    pp: number;
    sequence_parallel: boolean;
    zero: number;
    layout: string;
    micro_batch: number;
    grad_accum: number;
    global_batch: number;
    recompute: string;
    schedule: string;
    chunks: number;
    hardware: string;
  };
}
export interface WaysAnswer {
  ways: { name: string; plan?: Plan | null; error?: string; why?: string }[];
  command?: string;
}

export interface Transfer {
  from: number;
  to: number;
  chunk: number;
  adds: boolean;
}
export interface Step {
  phase: string;
  transfers: Transfer[];
  values: number[][];
  seconds?: number;
  bytes?: number;
}
export interface Collective {
  ranks: number;
  chunks: number;
  start: number[][];
  steps: Step[];
  bytes_per_rank: number;
  seconds: number;
  closed_form_seconds?: number | null;
  command?: string | null;
}

export interface PhaseRow extends Partial<Record<string, number>> {
  rank: number;
}
// A rank that takes longer than others of its stage, where, and by which factor.
export interface Straggler {
  rank: number;
  phase?: string;
  factor: number;
}
export interface RunRow {
  id: string;
  name: string;
  state: string;
  steps: number;
  started?: string | number | null;
  config?: Record<string, unknown>;
  command?: string;
}
export type Column = (number | null)[];
export interface RunSeries extends Partial<Record<string, unknown>> {
  id?: string;
  name?: string;
  state?: string;
  steps: number[];
  loss: Column;
  lr?: Column;
  grad_norm?: Column;
  tokens_per_s?: Column;
  step_s?: Column;
  comm_s?: Column;
  comm_exposed_s?: Column;
  memory?: Record<string, number | null> | null;
  predicted?:
    { memory?: Record<string, number | null> | null } | Record<string, number | null> | null;
  phases?: PhaseRow[];
  marks?: { step: number; kind: string; text?: string }[];
  gpu_utilisation?: Column;
  gpu_memory?: Column;
  mem_bytes?: Column;
  mem_peak_bytes?: Column;
  eval_loss?: Column;
  steps_in_all?: number;
  stragglers?: Straggler[];
  config?: Record<string, unknown>;
  command?: string;
}

// A stretch of time on a lane of a rank.
export interface Span {
  rank: number;
  lane: string;
  what: string;
  begin: number;
  end: number;
}
