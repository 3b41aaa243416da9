// Plans, and what is made of them, as JSON: [Note: JSON without a tree].

#include "tessera/planner/json.h"

namespace tessera::planner {
namespace {

void put_shape(JsonText& out, const ModelShape& m) {
  out.object("model")
      .member("name", m.name)
      .member("layers", m.layers)
      .member("hidden", m.hidden)
      .member("heads", m.heads)
      .member("kv_heads", m.kv_heads)
      .member("ffn", m.ffn)
      .member("vocab", m.vocab)
      .end_object();
}

void put_question(JsonText& out, const Question& q) {
  out.object("question");
  if (q.state_only()) {
    out.member("params", Whole{q.params});
  } else {
    put_shape(out, q.model);
    out.member("seq", q.seq);
  }
  out.member("gpus", q.world());
  for (const Axis axis : kPrintedAxes) out.member(axis_name(axis), q.axes.given(axis));
  out.member("sequence_parallel", q.sequence_parallel);
  out.member("slice_hops", q.slice_hops.value_or(false));
  out.member("order", q.order);
  out.member("zero", q.zero);
  out.member("layout", q.layout.name);
  out.member("grad_reduce", q.policy() == ReducePolicy::each ? "each" : "last");
  if (q.compression() != GradCompression::none) {
    out.member("grad_compression", name(q.compression()));
    if (q.power_sgd_asked()) out.member("powersgd_rank", q.power_sgd.rank);
  }
  out.member("micro_batch", q.micro_batch);
  out.member("grad_accum", q.grad_accum);
  out.member("global_batch", q.global_batch);
  out.member("recompute", name(q.recompute));
  out.member("attention", q.attention == Attention::fused ? "fused" : "unfused");
  if (q.software) out.member("software", name(*q.software));
  out.member("schedule", q.schedule);
  out.member("split", q.split);
  out.member("chunks", q.chunks);
  out.member("hardware", q.hardware.name);
  out.member("nodes", q.nodes);
  out.member("gpus_per_node", q.per_node);
  out.end_object();
}

// Members of the object that is open.
void put_memory(JsonText& out, const Memory& m) {
  out.member("params", Whole{m.params})
      .member("grads", Whole{m.grads})
      .member("optimizer", Whole{m.optimizer})
      .member("activations", Whole{m.activations})
      .member("buffers", Whole{m.buffers})
      .member("temporary", Whole{m.temporary})
      .member("not_at_once", Whole{m.not_at_once})
      .member("total", Whole{m.total()});
}

// Of a size alone nothing is known but the state, which is then the total.
void put_state(JsonText& out, const Memory& m) {
  out.member("params", Whole{m.params})
      .member("grads", Whole{m.grads})
      .member("optimizer", Whole{m.optimizer})
      .member("activations", nullptr)
      .member("buffers", nullptr)
      .member("temporary", nullptr)
      .member("total", Whole{m.total()});
}

void put_memory_of(JsonText& out, const Plan& plan) {
  out.object("memory");
  (plan.question.state_only() ? put_state : put_memory)(out, plan.memory);
  out.end_object();
}

void put_assumed(JsonText& out, const std::optional<Assumed>& assumed) {
  if (!assumed) {
    out.member("assumed", nullptr);
    return;
  }
  out.object("assumed");
  put_shape(out, assumed->model);
  out.member("parameters", assumed->model.params());
  out.member("seq", assumed->seq);
  out.object("memory");
  put_memory(out, assumed->memory);
  out.end_object().end_object();
}

void put_traffic(JsonText& out, const Traffic& t) {
  out.object("traffic");
  for (const Axis axis : kPrintedAxes) out.member(axis_name(axis), Whole{t.sent[axis]});
  out.member("total", Whole{t.total()});
  out.object("dp_by_policy")
      .member("each", Whole{t.dp_each})
      .member("last", Whole{t.dp_last})
      .end_object();
  out.list("rows");
  for (const TrafficRow& row : t.rows) {
    out.object()
        .member("axis", axis_name(row.axis))
        .member("what", row.what)
        .member("calls", Whole{row.calls})
        .member("bytes", Whole{row.bytes})
        .end_object();
  }
  out.end_list().end_object();
}

// Members of the object that is open.
void put_time(JsonText& out, const StepTime& t) {
  out.member("compute", t.compute).member("comm_exposed", t.exposed());
  out.object("comm_exposed_by_axis");
  for (const Axis axis : kPrintedAxes) out.member(axis_name(axis), t.comm[axis]);
  out.end_object();
  out.member("bubble", t.bubble).member("optimizer", t.optimizer).member("step", t.step());
}

void put_speed(JsonText& out, const Plan& plan) {
  if (plan.question.state_only()) {  // nothing is known of time
    for (const char* key : {"time", "tokens_per_s", "model_flops", "mfu"}) out.member(key, nullptr);
    return;
  }
  out.object("time");
  put_time(out, plan.time);
  out.object("interval")
      .member("low", plan.interval.low)
      .member("high", plan.interval.high)
      .member("basis", plan.interval.basis)
      .end_object();
  out.end_object();
  out.member("tokens_per_s", plan.tokens_per_s).member("model_flops", plan.model_flops);
  out.member("model_flops_per_s_per_gpu",
             plan.model_flops / (plan.time.step() * plan.question.world()));
  out.member("mfu", plan.mfu);
  if (plan.price > 0) out.member("price_per_step", plan.price);
  if (plan.joules > 0) out.member("joules_per_step", plan.joules);
}

void put_advice(JsonText& out, const Plan& plan) {
  out.list("advice");
  for (const Advice& each : plan.advice) out.element(each.text);
  out.end_list().list("changes");
  for (const Advice& each : plan.advice) {
    out.object()
        .member("flags", each.flags)
        .member_if(!plan.question.state_only(), "seconds_saved", each.seconds)
        .member("bytes_saved", Whole{each.bytes})
        .member("bytes_sent_saved", Whole{each.sent})
        .member("fits", each.fits)
        .end_object();
  }
  out.end_list();
}

// Members of the object that is open.
void put_plan(JsonText& out, const Plan& plan) {
  const Question& q = plan.question;
  const bool sized = !q.state_only();
  out.member("parameters", Whole{plan.parameters})
      .member_if(sized, "parameters_in_blocks", Whole{plan.in_blocks})
      .member_if(sized, "parameters_in_embeddings", Whole{plan.in_embeddings})
      .member("parameters_on_most_loaded_rank", Whole{plan.on_a_rank});
  put_memory_of(out, plan);
  if (!sized) put_assumed(out, plan.assumed);
  out.member("pipeline_rank", plan.rank);
  if (q.pp() > 1 && sized) {
    out.list("memory_by_pipeline_rank");
    for (const Memory& memory : plan.by_rank) {
      out.object();
      put_memory(out, memory);
      out.end_object();
    }
    out.end_list();
  }
  put_traffic(out, plan.traffic);
  put_speed(out, plan);
  out.member_if(plan.fit_known, "fits", plan.fits).member("margin", Whole{plan.margin});
  // What binds a step is not known without its time, unless it does not fit.
  out.member_if(sized || !plan.fits, "bound", name(plan.bound)).member("remedy", plan.remedy);
  put_advice(out, plan);
  out.list("notes");
  for (const std::string& each : plan.notes) out.element(each);
  out.end_list();
  put_question(out, q);
}

// Members of the object that is open.
void put_batch_limit(JsonText& out, const BatchLimit& limit) {
  out.member("zero", limit.zero)
      .member("dp", limit.dp)
      .member("micro_batch", limit.micro_batch)
      .member("global_batch", limit.global_batch)
      .member("memory", Whole{limit.memory});
}

// Members of the object that is open.
void put_model_limit(JsonText& out, const ModelLimit& limit) {
  out.member("zero", limit.zero)
      .member("dp", limit.dp)
      .member("parameters", Whole{limit.params})
      .member("memory", Whole{limit.memory});
  if (limit.model.layers > 0) put_shape(out, limit.model);
}

template <typename Limits, typename Put>
std::string limits_text(const Limits& limits, const Put& put) {
  JsonText out;
  out.object();
  put(out, limits.asked);
  if (!limits.rows.empty()) {
    out.list("rows");
    for (const auto& each : limits.rows) {
      out.object();
      put(out, each);
      out.end_object();
    }
    out.end_list();
  }
  return out.end_object().take();
}

}  // namespace

std::string to_json(const Plan& plan) {
  JsonText out;
  out.object();
  put_plan(out, plan);
  return out.end_object().take();
}

void put_numbers(JsonText& out, const Plan& plan) {
  put_memory_of(out, plan);
  out.member_if(plan.fit_known, "fits", plan.fits);
  if (plan.question.state_only()) {
    out.member("time", nullptr);
    return;
  }
  out.object("time");
  put_time(out, plan.time);
  out.end_object();
}

std::string to_json(const SearchResult& result) {
  JsonText out;
  out.object().list("best");
  for (const Plan& plan : result.best) {
    out.object();
    put_plan(out, plan);
    out.member("as_good_as_the_best", as_good_as(plan, result.best.front())).end_object();
  }
  out.end_list().member("tried", result.tried).member("fitting", result.fitting);
  out.object("ruled_out");
  for (const auto& [reason, count] : result.ruled_out) out.member_called(reason, count);
  return out.end_object().end_object().take();
}

std::string to_json(const BatchLimits& limits) { return limits_text(limits, put_batch_limit); }
std::string to_json(const ModelLimits& limits) { return limits_text(limits, put_model_limit); }

}  // namespace tessera::planner
