// Responses of the server that more than one module reads.
export interface Memory {
  params: number;
  grads: number;
  optimizer: number;
  activations: number | null;
  buffers: number | null;
  temporary: number | null;
  total: number;
  on_disk?: number; // optimizer state in files, which the total does not count
}
export interface Stage {
  stage: number;
  name: string;
  sharded: { params: boolean; grads: boolean; optimizer: boolean };
  memory: Memory;
  needed: number; // memory.total, or that of the estimate
  fits: boolean;
  // Along dp only, by phase of the step.
  sent: { forward: number; backward: number; optimizer_step: number; total: number };
  // Along every axis. Null: unknown, because only the size of the model is given.
  sent_by_axis: Record<string, number | null> & { total: number };
  copies: number;
  state_in_all: number;
  assumed?: { activations: number; buffers: number; temporary: number; total: number } | null;
}
// Shard of a rank. Ranks of context parallelism have shards of their own.
export interface Owner {
  dp_rank: number;
  cp_rank?: number;
  first: number;
  last: number;
}
export interface ZeroResponse {
  parameters: number;
  parameters_on_a_rank: number;
  stages: Stage[];
  capacity: number | null;
  capacity_total: number | null;
  seq: number | null;
  fits_from_dp: Record<string, number | null>;
  owners: Owner[];
  formula: { stage: number; text: string }[];
  command: string;
}

export interface Plan {
  memory: Memory;
  time: {
    step: number;
    compute: number;
    comm_exposed: number;
    bubble: number;
    interval?: { low: number; high: number; basis: string } | null;
  } | null;
  tokens_per_s: number | null;
  mfu: number | null;
  fits: boolean;
  margin?: number;
  bound?: string;
  remedy?: string;
  advice?: string[];
  notes?: string[];
  as_good_as_the_best?: boolean;
  train_command?: string;
  settings?: Record<string, string>; // of a request that repeats this plan
  traffic?: { total: number };
  launch?: { launcher: string; command: string }[]; // on several hosts
  question: {
    [axis: string]: unknown; // sizes of the axes, by name
    model: { name: string };
    seq: number;
    gpus: number;
    nodes: number;
    dp: number;
    dp_replicate: number;
    tp: number;
    cp: number;
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
export interface CompareResponse {
  ways: { name: string; plan?: Plan | null; error?: string; why?: string }[];
  command?: string;
}

// Chunks of each rank and its causal attention work, in squares of a chunk.
export interface ContextWork {
  chunks: number[][];
  work: number[][]; // [rank][step of the ring]
  total: number[]; // by rank
  longest: number;
}
export interface ContextKind {
  kind: string;
  formula: string;
  error?: string; // why it is not possible; then the rest is missing
  messages?: number; // of a ring
  message?: number; // bytes of one
  heads?: number; // for which a rank computes attention
  tokens?: number;
  // Bytes in one layer per micro-batch.
  sent?: { forward: number; recompute: number; backward: number; total: number };
  kept?: number;
  memory?: Memory;
  fits?: boolean | null;
  sent_per_step?: number;
  waiting?: number; // seconds per step
  step?: number;
}
export interface ContextResponse {
  cp: number;
  kind: string; // of the plan: ring or ulysses
  seq: number;
  padded: number;
  tokens: number; // of a rank
  chunks: number;
  chunk_tokens: number;
  owners: number[][]; // of the keys that a rank has: [rank][step of the ring]
  zigzag: ContextWork;
  in_order: ContextWork;
  slowdown: number;
  kinds: ContextKind[];
  without_cp: { kept: number; memory: Memory; fits: boolean };
  capacity: number;
  hardware: string;
  command: string;
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
  bytes_per_rank: number; // of the busiest rank
  bytes_by_rank: number[];
  seconds: number;
  closed_form_seconds?: number | null;
  command?: string | null;
}

export interface PhaseRow extends Partial<Record<string, number>> {
  rank: number;
}
// Rank that is slower than the others of its pipeline stage, with its slowest phase and the factor.
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
// Use of experts in columns of steps, of one layer or of all.
export interface ExpertLoads {
  layers: string[];
  layer: string; // "": all
  from: number[]; // first step of each column
  to: number[];
  tokens: number[][]; // [expert][column]
  mean: number[]; // over the experts
  imbalance: number[]; // tokens of the busiest expert over the mean; a mean over the layers
  dropped: number[];
  entropy: number[];
}

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
  experts?: ExpertLoads | { layers: string[]; tokens?: undefined }; // without tokens: unknown layer
  marks?: { step: number; kind: string; text?: string }[];
  gpu_utilization?: Column;
  gpu_memory?: Column;
  mem_bytes?: Column;
  mem_peak_bytes?: Column;
  eval_loss?: Column;
  tokens_total?: Column; // since the first line
  elapsed_s?: Column; // seconds in steps since the first line
  eta_s?: number; // while the run is running
  reason?: string; // cause of a failure
  steps_in_all?: number;
  stragglers?: Straggler[];
  config?: Record<string, unknown>;
  command?: string;
}

// Interval on one lane of a rank's timeline, in seconds.
export interface Span {
  rank: number;
  lane: string;
  what: string;
  begin: number;
  end: number;
}

// Memory of a rank in the course of a step, by category: bytes throughout, or at each time.
export interface MemoryCurve {
  step: number; // seconds
  seconds: number[];
  peak: number;
  peak_at: number;
  params: number | number[];
  grads: number | number[];
  optimizer: number | number[];
  buffers: number | number[];
  activations: number | number[];
  temporary: number | number[];
}
// Memory of a traced step of a run.
export interface TracedMemory {
  rank: number;
  step: number;
  measured: MemoryCurve;
  predicted?: MemoryCurve | undefined;
}
