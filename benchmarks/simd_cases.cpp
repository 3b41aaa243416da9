// Kernels and reductions as a list of cases behind a C interface. compare_simd.sh builds this once
// for each of two trees, and compare_simd.cpp runs both on the same memory in turns.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/comm/reduce.h"
#include "tessera/kernels/sets.h"

namespace {

using tessera::comm::Reduction;
using tessera::kernels::KernelSet;
using tessera::kernels::Type;
using CommType = tessera::comm::DType;

// Arrays are taken from the caller's memory one after another, at offsets that differ by 64 bytes
// from a multiple of 4096: rows with the same offset in a page would compete for the same cache
// lines.
class Arena {
 public:
  explicit Arena(char* memory) : at_(memory) {}
  template <class T = char>
  T* take(std::size_t bytes) {
    char* const begin = at_;
    at_ += (bytes + 4095) / 4096 * 4096 + 64;
    return reinterpret_cast<T*>(begin);
  }
  const char* end() const { return at_; }

 private:
  char* at_;
};

float ordinary(std::size_t i) {
  return static_cast<float>(i * 2654435761u % 4096) / 1024.0f - 2.0f;
}
std::uint16_t upper_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}

void* numbers(Arena& arena, Type type, std::size_t n) {
  if (type == Type::f32) {
    auto* const to = arena.take<float>(4 * n);
    for (std::size_t i = 0; i < n; ++i) to[i] = ordinary(i);
    return to;
  }
  auto* const to = arena.take<std::uint16_t>(2 * n);
  for (std::size_t i = 0; i < n; ++i) to[i] = upper_half(ordinary(i));
  return to;
}
float* floats(Arena& arena, std::size_t n) {
  return static_cast<float*>(numbers(arena, Type::f32, n));
}
float* zeros(Arena& arena, std::size_t n) {
  auto* const to = arena.take<float>(4 * n);
  std::memset(to, 0, 4 * n);
  return to;
}

using Run = std::function<void()>;
struct Case {
  std::string name;
  std::function<Run(Arena&)> prepare;
};

struct Size {
  const char* name;
  std::size_t elements;
};
constexpr Size sizes[] = {{"4Ki", 4096}, {"64Ki", 65536}, {"4Mi", std::size_t{4} << 20}};

void add_reductions(std::vector<Case>& cases) {
  constexpr struct {
    const char* name;
    CommType in, out;
  } types[] = {
      {"f32", CommType::f32, CommType::f32},        {"bf16", CommType::bf16, CommType::bf16},
      {"f16", CommType::f16, CommType::f16},        {"bf16->f32", CommType::bf16, CommType::f32},
      {"f32->bf16", CommType::f32, CommType::bf16}, {"i32", CommType::i32, CommType::i32}};
  constexpr struct {
    std::size_t sources, destinations;
  } shapes[] = {{2, 2}, {2, 1}, {4, 4}, {8, 1}};
  const auto add = [&](const std::string& name, const Reduction& what, std::size_t sources,
                       std::size_t destinations, std::size_t n) {
    cases.push_back({name, [=](Arena& arena) -> Run {
                       std::vector<const void*> from;
                       std::vector<void*> to;
                       const bool wide = tessera::comm::size_of(what.in) == 4;
                       for (std::size_t s = 0; s < sources; ++s) {
                         from.push_back(numbers(arena, wide ? Type::f32 : Type::bf16, n));
                       }
                       for (std::size_t d = 0; d < destinations; ++d) {
                         to.push_back(arena.take(n * tessera::comm::size_of(what.out)));
                       }
                       return [=] { tessera::comm::reduce(what, from, to, n); };
                     }});
  };
  for (const auto& type : types) {
    for (const auto& [sources, destinations] : shapes) {
      for (const Size& size : sizes) {
        if (size.elements > (1u << 20) && sources > 2) continue;
        add(std::string("reduce/sum/") + type.name + "/" + std::to_string(sources) + "to" +
                std::to_string(destinations) + "/" + size.name,
            {.in = type.in, .out = type.out}, sources, destinations, size.elements);
      }
    }
  }
  using tessera::comm::ReduceOp;
  for (const auto& [name, op] :
       {std::pair{"min", ReduceOp::min}, {"avg2", ReduceOp::avg}, {"avg3", ReduceOp::avg}}) {
    for (const auto type : {CommType::f32, CommType::bf16, CommType::i32}) {
      const std::int64_t divisor = op == ReduceOp::avg ? name[3] - '0' : 1;
      add(std::string("reduce/") + name + "/" + tessera::comm::name(type) + "/2to2/64Ki",
          {.in = type, .out = type, .op = op, .divisor = divisor}, 2, 2, 65536);
    }
  }
}

const char* name_of(Type type) { return type == Type::f32 ? "fp32" : "bf16"; }

void add_optimizers(std::vector<Case>& cases, const std::string& prefix, const KernelSet& k) {
  namespace rules = tessera::rules;
  constexpr struct {
    const char* name;
    Type grad, param;
    bool master;
  } layouts[] = {{"fp32", Type::f32, Type::f32, false},
                 {"bf16", Type::bf16, Type::bf16, true},
                 {"bf16-nomaster", Type::bf16, Type::bf16, false}};
  for (const auto& layout : layouts) {
    for (const Size& size : sizes) {
      for (const rules::Rule& rule :
           {rules::Rule(rules::AdamW{}), rules::Rule(rules::SGD{.momentum = 0.9})}) {
        const bool adamw = std::holds_alternative<rules::AdamW>(rule);
        if (!adamw && layout.param != Type::f32) continue;
        const std::size_t n = size.elements;
        const std::string name = std::string(adamw ? "adamw/" : "sgd/") + layout.name;
        cases.push_back(
            {prefix + name + "/" + size.name, [=, &k](Arena& arena) -> Run {
               tessera::kernels::ParamShard shard;
               shard.grad = numbers(arena, layout.grad, n);
               shard.grad_type = layout.grad;
               shard.param = numbers(arena, layout.param, n);
               shard.param_type = layout.param;
               shard.master = layout.master ? floats(arena, n) : nullptr;
               shard.count = n;
               float* const m = floats(arena, n);
               float* const v = zeros(arena, n);
               const rules::Step step{.weight_decay = adamw ? 0.01 : 0};
               return [=, &k] {
                 std::visit(
                     [&](const auto& how) { k.update.of[rule.index()](&how, step, shard, m, v); },
                     rule);
               };
             }});
      }
    }
  }
}

void add_layers(std::vector<Case>& cases, const std::string& prefix, const KernelSet& k) {
  constexpr std::size_t rows = 64, hidden = 512, wide = 2048, vocabulary = 8192;
  for (const Type type : {Type::f32, Type::bf16}) {
    const std::string end = std::string("/") + name_of(type);
    const auto add = [&](const char* name, std::function<Run(Arena&)> prepare) {
      cases.push_back({prefix + name + end, std::move(prepare)});
    };
    add("sum_of_squares", [=, &k](Arena& arena) -> Run {
      const void* const x = numbers(arena, type, 65536);
      auto* const sum = arena.take<double>(8);
      return [=, &k] { *sum = k.sum_of_squares(x, type, 65536); };
    });
    for (const bool backward : {false, true}) {
      add(backward ? "gelu_backward" : "gelu_forward", [=, &k](Arena& arena) -> Run {
        const void* const x = numbers(arena, type, rows * wide);
        void* const y = numbers(arena, type, rows * wide);
        const tessera::kernels::Gelu in{type, rows, wide, x, floats(arena, wide)};
        float* const dbias = zeros(arena, wide);
        if (backward) return [=, &k] { k.gelu_backward(in, x, y, dbias); };
        return [=, &k] { k.gelu_forward(in, y); };
      });
      add(backward ? "layer_norm_backward" : "layer_norm_forward", [=, &k](Arena& arena) -> Run {
        const void* const x = numbers(arena, type, rows * hidden);
        void* const y = numbers(arena, type, rows * hidden);
        void* const sum = numbers(arena, type, rows * hidden);
        float* const weight = floats(arena, hidden);
        float* const mean = zeros(arena, rows);
        float* const rstd = floats(arena, rows);
        float* const dweight = zeros(arena, hidden);
        float* const dbias = zeros(arena, hidden);
        const tessera::kernels::LayerNorm in{type, rows, hidden, x, x, weight, weight};
        if (backward) {
          return [=, &k] { k.layer_norm_backward(in, mean, rstd, x, x, y, dweight, dbias); };
        }
        return [=, &k] { k.layer_norm_forward(in, y, sum, mean, rstd); };
      });
      add(backward ? "softmax_backward" : "softmax_forward", [=, &k](Arena& arena) -> Run {
        void* const scores = numbers(arena, type, 256 * 256);
        void* const gradient = numbers(arena, type, 256 * 256);
        float* const lse = zeros(arena, 256);
        const tessera::kernels::CausalRows in{type, 256, 256, 1, 0.125f};
        if (backward) return [=, &k] { k.softmax_causal_backward(in, scores, gradient, lse); };
        return [=, &k] { k.softmax_causal_forward(in, scores, lse); };
      });
    }
    add("cross_entropy", [=, &k](Arena& arena) -> Run {
      void* const logits = numbers(arena, type, rows * vocabulary);
      float* const losses = zeros(arena, rows);
      const std::vector<std::int64_t> targets(rows, 7);
      return
          [=, &k] { k.cross_entropy_rows(logits, type, rows, vocabulary, targets.data(), losses); };
    });
  }
  cases.push_back({prefix + "widen", [&k](Arena& arena) -> Run {
                     const auto* from =
                         static_cast<std::uint16_t*>(numbers(arena, Type::bf16, 65536));
                     float* const to = zeros(arena, 65536);
                     return [=, &k] { k.widen(from, to, 65536); };
                   }});
  cases.push_back({prefix + "narrow", [&k](Arena& arena) -> Run {
                     const float* const from = floats(arena, 65536);
                     auto* const to = arena.take<std::uint16_t>(2 * 65536);
                     return [=, &k] { k.narrow(from, to, 65536); };
                   }});
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases;
    add_reductions(cases);
    // The best instruction set first, then the next ones, if any: "1/", "2/".
    const auto sets = tessera::kernels::usable_sets();
    for (std::size_t i = 0; i < sets.size() && i < 2; ++i) {
      const KernelSet& set = *sets[sets.size() - 1 - i];
      add_optimizers(cases, std::to_string(i + 1) + "/", set);
      add_layers(cases, std::to_string(i + 1) + "/", set);
    }
    return cases;
  }();
  return all;
}

Run prepared;

}  // namespace

extern "C" {
int case_count() { return static_cast<int>(all_cases().size()); }
const char* case_name(int i) { return all_cases()[static_cast<std::size_t>(i)].name.c_str(); }
const char* best_set() { return tessera::kernels::usable_sets().back()->name; }
// Fills the memory and selects the case for case_run. Returns the bytes in use.
std::size_t case_prepare(int i, char* memory) {
  Arena arena(memory);
  prepared = all_cases()[static_cast<std::size_t>(i)].prepare(arena);
  return static_cast<std::size_t>(arena.end() - memory);
}
void case_run(int repetitions) {
  for (int r = 0; r < repetitions; ++r) prepared();
}
}
