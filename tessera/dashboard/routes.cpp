#include "tessera/dashboard/api.h"
#include "tessera/schedule/schedule.h"

namespace tessera::dashboard {
namespace {

Json number(double least, double most, const char* help) {
  return {{"type", "number"}, {"minimum", least}, {"maximum", most}, {"description", help}};
}
Json integer(std::int64_t least, std::int64_t most, const char* help) {
  return {{"type", "integer"}, {"minimum", least}, {"maximum", most}, {"description", help}};
}
Json truth(const char* help) { return {{"type", "boolean"}, {"description", help}}; }
Json one_of(const std::vector<std::string>& words, const char* help) {
  return {{"type", "string"}, {"enum", words}, {"description", help}};
}

std::function<std::string(const Knowledge&, Ask&)> printed(Json (*answer)(const Knowledge&, Ask&)) {
  return [answer](const Knowledge& known, Ask& ask) {
    return answer(known, ask).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
}

const char* const kSeconds = "seconds of a rank's layers for one micro-batch";

Json schedule_body() {
  const Json word = one_of(schedule::names(), "schedule");
  return {{"schedule", word},
          {"schedules", {{"type", "array"}, {"maxItems", 8}, {"items", word}}},
          {"pp", integer(1, 64, "ranks of the pipeline")},
          {"micros", integer(1, 16384, "micro-batches per step")},
          {"chunks", integer(1, 1024, "interleaved: stages per rank")},
          {"forward", number(1e-6, 1e6, kSeconds)},
          {"backward", number(1e-6, 1e6, kSeconds)},
          {"backward_input", number(1e-6, 1e6, kSeconds)},
          {"backward_weight", number(1e-6, 1e6, kSeconds)},
          {"hop", number(0, 1e6, "seconds from one stage to the next")}};
}

Json collective_body() {
  return {{"algorithm", one_of({"ring", "tree", "two-level"}, "algorithm")},
          {"ranks", integer(1, 16, "number of ranks")},
          {"per_node", integer(1, 1024, "ranks per node")},
          {"elements", number(0, 1e15, "elements of the buffer, 4 bytes each")},
          {"bytes", number(1, 1e15, "size of the buffer")},
          {"bandwidth", number(1, 1e15, "bytes/s of a link, one direction")},
          {"latency", number(0, 3600, "seconds of latency per step")},
          {"between_bandwidth", number(1, 1e15, "bytes/s of a link between nodes")},
          {"between_latency", number(0, 3600, "seconds of latency per step between nodes")}};
}

Json scaling_body() {
  return {{"overhead", number(0, 1, "c of the simple law 1/(1 + c log2 N)")},
          {"jitter", number(0, 2, "spread of computing times")},
          {"overlap", truth("overlap communication with computation")},
          {"bandwidth", number(1, 1e15, "bytes/s of an adapter; absent: the hardware's")},
          {"max_dp", integer(1, 4096, "largest dp")}};
}

Json simulate_body() {
  const Json straggler = {{"type", "object"},
                          {"properties",
                           {{"rank", integer(0, 1 << 30, "number of the rank")},
                            {"factor", number(1e-6, 1e6, "factor of its computing times")}}},
                          {"required", {"rank", "factor"}}};
  return {{"jitter", number(0, 2, "spread of computing times")},
          {"seed", integer(0, 1 << 30, "seed of the jitter")},
          {"trace_ranks", integer(0, 64, "ranks whose spans to return")},
          {"stragglers", {{"type", "array"}, {"maxItems", 64}, {"items", straggler}}}};
}

Json config_schema() {
  return {{"type", "object"}, {"description", "a model: config.json of Hugging Face"}};
}
Json example_config() {
  return {{"model_type", "llama"},       {"num_hidden_layers", 32},
          {"hidden_size", 4096},         {"num_attention_heads", 32},
          {"num_key_value_heads", 8},    {"intermediate_size", 14336},
          {"vocab_size", 128256},        {"max_position_embeddings", 8192},
          {"tie_word_embeddings", false}};
}

Json cost_body() {
  const auto list = [](const char* help) {
    return Json{{"type", "array"},
                {"maxItems", 64},
                {"items", {{"type", "number"}, {"minimum", 1e-9}, {"maximum", 1e18}}},
                {"description", help}};
  };
  return {{"tokens", number(1, 1e18, "tokens to train on")},
          {"hardware", {{"type", "string"}, {"description", "name of the GPU"}}},
          {"watts", number(0, 1e6, "of one GPU; left out: the hardware's")},
          {"price_per_hour", number(0, 1e6, "of one GPU; left out: the hardware's")},
          {"gpus", list("numbers of GPUs")},
          {"tokens_per_s", list("throughput of each number of GPUs")}};
}

// Routes about a model and the plan of a run.
std::vector<Route> plan_routes() {
  const Json none = Json::object();
  return {
      {"GET",
       "/api/about",
       "the available models, hardware, layouts, schedules and settings",
       nullptr,
       false,
       {"version", "models", "hardware", "layouts", "schedules", "settings"},
       nullptr,
       false,
       printed(about_answer)},
      {"POST",
       "/api/plan",
       "memory, traffic and time of a run, as tessera plan --json",
       none,
       true,
       {"parameters", "memory", "traffic", "fits", "question", "command"},
       {{"model", "gpt2-xl"}, {"dp", 8}, {"zero", 1}},
       false,
       printed(plan_answer)},
      {"POST",
       "/api/zero",
       "DDP and ZeRO-1, 2, 3 side by side, as tessera explain zero --json",
       none,
       true,
       {"stages", "owners", "capacity", "fits_from_dp", "formula", "command"},
       {{"params", "7B"}, {"dp", 8}},
       false,
       printed(zero_answer)},
      {"POST",
       "/api/model",
       "the model of a config.json of Hugging Face",
       {{"config", config_schema()}},
       false,
       {"params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "notes"},
       {{"config", example_config()}},
       false,
       printed(model_answer)},
      {"POST",
       "/api/cost",
       "duration, energy and price of a training at given throughputs",
       cost_body(),
       false,
       {"tokens", "watts", "watts_basis", "price_per_hour", "price_basis", "rows"},
       {{"tokens", 1e12}, {"gpus", {8}}, {"tokens_per_s", {34000}}},
       false,
       printed(cost_answer)},
      {"POST",
       "/api/memory_over_step",
       "memory of a pipeline rank in the course of a step, by category",
       {{"pipeline_rank", integer(-1, 1 << 20, "-1: the one that needs most")}},
       true,
       {"pipeline_rank", "step", "peak", "peak_at", "seconds", "activations", "temporary"},
       {{"model", "gpt2-xl"}, {"dp", 8}, {"grad_accum", 2}},
       true,
       printed(memory_over_step_answer)},
      {"POST",
       "/api/questions",
       "questions about a plan, with answers and explanations",
       none,
       true,
       {"questions", "batch", "command"},
       {{"model", "gpt2-xl"}, {"dp", 8}, {"zero", 1}},
       false,
       printed(questions_answer)},
  };
}

// Routes about the steps of a run, their communication, and other configurations.
std::vector<Route> step_routes() {
  const Json none = Json::object();
  return {
      {"POST",
       "/api/scaling",
       "throughput against dp, by the simple law and by the simulator",
       scaling_body(),
       true,
       {"dp", "step", "simple", "simulated", "ideal", "stops_paying_at", "command"},
       {{"model", "gpt2-xl"}, {"max_dp", 64}, {"overhead", 0.05}},
       true,
       printed(scaling_answer)},
      {"POST",
       "/api/collective",
       "an all-reduce step by step, with values in the cells",
       collective_body(),
       false,
       {"ranks", "chunks", "start", "steps", "bytes_per_rank", "seconds", "closed_form_seconds"},
       {{"algorithm", "ring"}, {"ranks", 4}, {"bytes", 200000000}},
       false,
       printed(collective_answer)},
      {"POST",
       "/api/traffic",
       "bytes that a rank sends in a step, by stage and phase",
       none,
       true,
       {"parameters", "dp", "stages", "command"},
       {{"params", "7B"}, {"dp", 8}},
       false,
       printed(traffic_answer)},
      {"POST",
       "/api/context",
       "context parallelism: keys and work of each rank, bytes and memory, as tessera explain "
       "context",
       none,
       true,
       {"cp", "tokens", "owners", "zigzag", "in_order", "kinds", "without_cp", "command"},
       {{"model", "llama3-8b"}, {"cp", 4}, {"seq", 32768}},
       false,
       printed(context_answer)},
      {"POST",
       "/api/schedule",
       "the schedule of a pipeline with its times, or several",
       schedule_body(),
       false,
       {"ranks", "actions", "step", "bubble", "in_flight", "held_micro_batches", "command"},
       {{"schedule", "1f1b"}, {"pp", 4}, {"micros", 8}},
       false,
       printed(schedule_answer)},
      {"POST",
       "/api/search",
       "all ways to train on a number of GPUs, as tessera plan --search --json",
       {{"top", integer(1, 500, "number of rows")}},
       true,
       {"best", "tried", "fitting", "ruled_out", "command"},
       {{"model", "gpt2-xl"}, {"gpus", 8}, {"global_batch", 64}},
       true,
       printed(search_answer)},
      {"POST",
       "/api/compare",
       "DP, TP and PP side by side, as tessera explain parallel --json",
       none,
       true,
       {"ways", "conclusion", "command"},
       {{"model", "gpt2-xl"}, {"gpus", 8}},
       true,
       printed(compare_answer)},
      {"POST",
       "/api/simulate",
       "a step event by event, as tessera simulate --json",
       simulate_body(),
       true,
       {"step", "tokens_per_s", "bubble", "time", "ranks", "command"},
       {{"model", "gpt2-xl"}, {"dp", 8}, {"trace_ranks", 2}},
       true,
       printed(simulate_answer)},
  };
}

}  // namespace

std::vector<Route> calculator_routes() {
  std::vector<Route> routes = plan_routes();
  for (Route& route : step_routes()) routes.push_back(std::move(route));
  for (Route& route : routes) {
    if (!route.question) continue;
    route.body["config"] = config_schema();
    route.answer = with_pasted_model(std::move(route.answer));
  }
  return routes;
}

}  // namespace tessera::dashboard
