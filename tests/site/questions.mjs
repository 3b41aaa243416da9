// Random questions for the calculators. The same seed gives the same questions.

// Mulberry32: a generator of 32 bits of state.
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Settings that say where something is, or repeat others.
const SKIPPED = /file|runs|dir|path|gpus|nodes|^params$|^dp$|^cp$|^ep$|^tp$|^pp$|^model$|^hardware$|^layout$|^schedule$|^layers$|^hidden$|^heads$|^vocab$/;

// Returns n questions: {method, path, body}. `about`: the answer of /api/about.
export function questions(n, seed, about) {
  const random = generator(seed);
  const below = (most) => Math.floor(random() * most);
  const pick = (list) => list[below(list.length)];
  const chance = (p) => random() < p;
  const power = (most) => 2 ** below(Math.log2(most) + 1);
  // A number of several orders of magnitude with up to 15 digits.
  const real = (least, most) =>
    Number((least * (most / least) ** random()).toPrecision(1 + below(15)));
  const models = about.models.map((m) => m.name);
  const sparse = about.models.filter((m) => m.experts > 0).map((m) => m.name);
  const small = about.models.filter((m) => m.params < 2e10).map((m) => m.name);
  const hardware = about.hardware.map((h) => h.name);
  const layouts = about.layouts.map((l) => l.name);
  const others = about.settings.filter((s) => !SKIPPED.test(s.name));

  const valueOf = (s) => {
    if (s.type === "BOOL") return chance(0.5);
    if (s.choices.length > 0) return pick(s.choices);
    if (s.type === "INT") return Math.max(s.least ?? 1, Math.min(s.most ?? 4096, power(4096)));
    if (s.type === "NUMBER") {
      const [least, most] = [s.least ?? 0.001, Math.min(s.most ?? 10, 1e6)];
      return Number((least + (most - least) * random() ** 3).toPrecision(1 + below(15)));
    }
    return undefined;
  };
  // A config.json of Hugging Face. Some are refused, others have fields that Tessera ignores.
  const config = () => {
    const heads = power(64);
    const context = 1024 * power(32);
    const type = pick(["gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe", "dots1", "opt"]);
    const sizes =
      type === "gpt2"
        ? { n_embd: 64 * heads, n_layer: 1 + below(96), n_head: heads, n_positions: context }
        : {
            hidden_size: 64 * heads,
            num_hidden_layers: 1 + below(96),
            num_attention_heads: heads,
            num_key_value_heads: power(heads),
            intermediate_size: 256 * (1 + below(160)),
            max_position_embeddings: context,
            ...(chance(0.3) ? { head_dim: pick([32, 64, 128, 256]) } : {}),
            ...(chance(0.3) ? { rope_theta: real(100, 1e7) } : {}),
            ...(chance(0.2) ? { rope_scaling: { rope_type: "linear", factor: real(1, 32) } } : {}),
            ...(chance(0.3) ? { sliding_window: pick([null, 0, 512, 4096]) } : {}),
          };
    const experts = {
      mixtral: { num_local_experts: power(64), num_experts_per_tok: 1 + below(4) },
      qwen3_moe: {
        num_experts: power(128),
        num_experts_per_tok: 1 + below(8),
        moe_intermediate_size: 64 * (1 + below(32)),
        norm_topk_prob: chance(0.5),
        ...(chance(0.3) ? { mlp_only_layers: pick([[], [0], [0, 1], [1]]) } : {}),
      },
      dots1: {
        n_routed_experts: power(128),
        num_experts_per_tok: 1 + below(8),
        n_shared_experts: 1 + below(2),
        moe_intermediate_size: 64 * (1 + below(32)),
        first_k_dense_replace: below(3),
      },
    };
    return {
      model_type: type,
      vocab_size: pick([32000, 50257, 128256, 262144]),
      ...sizes,
      ...experts[type],
      ...(chance(0.5) ? { tie_word_embeddings: chance(0.5) } : {}),
      ...(chance(0.2) ? { initializer_range: real(1e-4, 1) } : {}),
      ...(chance(0.3) ? { [pick(["bos_token_id", "my_field", "num_local_experts", "quantization_config"])]: below(3) } : {}),
    };
  };
  const pasted = () => (chance(0.5) ? config() : JSON.stringify(config()));
  // `sized`: the number of parameters is enough.
  const model = (names = models, sized = false) =>
    chance(0.7)
      ? { model: pick(names) }
      : sized && chance(0.5)
        ? { params: chance(0.5) ? `${real(0.01, 900)}B` : Math.round(real(1e7, 1e12)) }
        : {
            layers: 1 + below(96),
            hidden: 128 * (1 + below(96)),
            heads: pick([1, 2, 4, 8, 16, 32]),
            vocab: pick([32000, 50257, 128256]),
          };
  // A model of a request for a plan: `model`, or a pasted one.
  const planned = (names, sized) => (chance(0.12) ? { config: pasted() } : model(names, sized));
  const settings = (count) => {
    const all = {};
    for (let i = below(count + 1); i > 0; --i) {
      const s = pick(others);
      const value = valueOf(s);
      if (value !== undefined) all[s.name] = value;
    }
    return all;
  };
  // A model with experts, by name or by its shape.
  const mixture = (most) => ({
    ...(chance(0.6)
      ? { model: pick(sparse) }
      : { ...model([pick(small)]), experts: power(64), experts_per_token: 1 + below(3), expert_ffn: 64 * (1 + below(64)) }),
    ep: power(8),
    dp: power(most),
    ...(chance(0.3) ? { expert_imbalance: real(1, 4) } : {}),
  });
  const pipeline = () => {
    const pp = power(8);
    return { pp, schedule: pick(about.schedules), grad_accum: pp * (1 + below(4)) };
  };
  const run = (most = 64, names = models, sized = false) => ({
    ...planned(names, sized),
    dp: power(most),
    ...(chance(0.12) ? { config: undefined, ...mixture(most) } : {}),
    ...(chance(0.4) ? { tp: power(8) } : {}),
    ...(chance(0.2) ? { cp: power(8) } : {}),
    ...(chance(0.7) ? { zero: below(4) } : {}),
    ...(chance(0.7) ? { hardware: pick(hardware) } : {}),
    ...(chance(0.4) ? { layout: pick(layouts) } : {}),
    ...(chance(0.5) ? { micro_batch: power(16) } : {}),
    ...(chance(0.5) ? { grad_accum: 1 + below(16) } : {}),
    ...(chance(0.4) ? pipeline() : {}),
    ...(chance(0.4) ? { seq: 256 * (1 + below(32)) } : {}),
    ...(chance(0.1) ? { offload: pick(["optimizer", "optimizer", "none", "params"]) } : {}),
    ...settings(4),
  });
  const gpus = () => (chance(0.9) ? 1 + below(64) : pick([96, 128, 256, 512, 1024]));
  const kinds = {
    "/api/plan": () => run(256),
    "/api/zero": () => run(256, models, true),
    "/api/traffic": () => run(256, models, true),
    "/api/scaling": () => ({
      ...run(16, small),
      dp: pick([1, 2, 3, 8, 24, 100]),
      max_dp: power(64),
      overhead: real(0.001, 1),
      ...(chance(0.5) ? { jitter: real(0.01, 0.5) } : {}),
      ...(chance(0.3) ? { bandwidth: real(1e8, 1e12), overlap: chance(0.5) } : {}),
    }),
    "/api/collective": () => ({
      algorithm: pick(["ring", "tree", "two-level"]),
      ranks: 1 + below(16),
      per_node: power(8),
      bytes: real(1, 1e12),
      bandwidth: real(1e6, 1e13),
      latency: chance(0.5) ? 0 : real(1e-9, 1),
      ...(chance(0.5) ? { between_bandwidth: real(1e6, 1e13) } : {}),
    }),
    "/api/schedule": () => ({
      ...(chance(0.5)
        ? { schedule: pick(about.schedules) }
        : { schedules: [pick(about.schedules), pick(about.schedules)] }),
      pp: 1 + below(12),
      micros: 1 + below(48),
      chunks: 1 + below(4),
      forward: real(1e-4, 10),
      backward: real(1e-4, 10),
      ...(chance(0.5) ? { hop: real(1e-6, 1) } : {}),
    }),
    "/api/context": () => ({
      ...run(8),
      cp: chance(0.9) ? 1 + below(16) : pick([32, 64, 65]),
      ...(chance(0.5) ? { cp_kind: pick(["auto", "ring", "ulysses"]) } : {}),
      seq: chance(0.5) ? 512 * power(256) : 64 + below(20000),
    }),
    "/api/model": () => ({ config: pasted() }),
    "/api/cost": () => ({
      tokens: real(1e6, 1e14),
      hardware: pick(hardware),
      gpus: [power(1024), power(1024)],
      tokens_per_s: [real(1, 1e8), real(1, 1e8)],
      ...(chance(0.3) ? { watts: real(10, 2000), price_per_hour: real(0.1, 20) } : {}),
    }),
    "/api/memory_over_step": () => ({ ...run(32, small), ...(chance(0.3) ? { pipeline_rank: below(4) - 1 } : {}) }),
    "/api/questions": () => run(64),
    "/api/search": () => ({
      ...planned(),
      gpus: gpus(),
      global_batch: pick([32, 64, 96, 256, 512]),
      hardware: pick(hardware),
      top: 1 + below(60),
      ...(chance(0.3) ? { layout: pick(layouts), seq: 512 * (1 + below(8)) } : {}),
    }),
    "/api/compare": () => ({ ...model(), gpus: 2 * power(32), hardware: pick(hardware) }),
    "/api/simulate": () => ({
      ...run(32, small),
      trace_ranks: below(4),
      ...(chance(0.5) ? { jitter: real(0.001, 1), seed: below(1e6) } : {}),
      ...(chance(0.3) ? { stragglers: [{ rank: below(2), factor: real(0.5, 4) }] } : {}),
    }),
  };
  const weights = {
    "/api/plan": 24,
    "/api/model": 6,
    "/api/cost": 2,
    "/api/memory_over_step": 5,
    "/api/questions": 4,
    "/api/zero": 8,
    "/api/traffic": 6,
    "/api/scaling": 8,
    "/api/collective": 10,
    "/api/context": 8,
    "/api/schedule": 9,
    "/api/search": 4,
    "/api/compare": 3,
    "/api/simulate": 16,
  };
  const drawn = Object.entries(weights).flatMap(([path, weight]) => Array(weight).fill(path));
  const list = [{ method: "GET", path: "/api/about", body: "" }];
  while (list.length < n) {
    const path = pick(drawn);
    let body = JSON.stringify(kinds[path]());
    // Some are damaged, for the error messages.
    if (chance(0.02)) body = body.slice(0, below(body.length));
    if (chance(0.02)) body = body.replace(/"(\w+)":/, '"$1x":');
    list.push({ method: "POST", path, body });
  }
  return list;
}
