#include "tessera/kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/cublaslt_api.h"
#include "tessera/kernels/cuda/gemm_runtime.h"

namespace tessera::kernels::cuda {
namespace {

using lt::OperationField;
using lt::PreferenceField;
using lt::Status;

// [Note: by columns] A matrix by rows is its transpose by columns. So for d = op(a) · op(b) we ask
// cuBLASLt for dᵀ = op(b)ᵀ · op(a)ᵀ: its A is b, its B is a, its D has n rows and m columns. An
// operand that is stored as the product has it (not transposed) is so for cuBLASLt too. The bias
// [n] belongs to the rows of D, as cuBLASLt wants it, and the sum of a over k, one for each of m,
// is its gradient "by B".

bool type_in(DType type, lt::DataType& out) {
  switch (type) {
    case DType::f32: out = lt::DataType::f32; return true;
    case DType::f16: out = lt::DataType::f16; return true;
    case DType::bf16: out = lt::DataType::bf16; return true;
    default: return false;
  }
}

// What algorithms may rely on. Few values, so that few kinds of product are told apart.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const std::uint32_t bytes : {256u, 16u, 8u, 4u, 2u}) {
    if (address % bytes == 0) return bytes;  // of a null pointer: 256
  }
  return 1;
}

const void* bias_of(const Gemm& how) {
  return how.epilogue == Epilogue::bias_gradient ? how.bias_gradient : how.bias;
}

// All that the choice of an algorithm depends on.
using Kind = std::array<std::int64_t, 7>;
struct KindHash {
  std::size_t operator()(const Kind& kind) const {
    std::uint64_t hash = 0;
    for (const std::int64_t x : kind) {
      hash = (hash ^ static_cast<std::uint64_t>(x)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

Kind kind_of(const Gemm& how, std::size_t workspace, int device) {
  std::int64_t flags = 0, alignments = 0;
  for (const int x :
       {static_cast<int>(how.type), static_cast<int>(how.out_type), static_cast<int>(how.epilogue),
        how.transpose_a ? 1 : 0, how.transpose_b ? 1 : 0,
        how.c == nullptr ? 0
        : how.c == how.d ? 1
                         : 2}) {
    flags = flags * 16 + x;
  }
  for (const void* pointer : {how.a, how.b, how.c, static_cast<const void*>(how.d), bias_of(how),
                              static_cast<const void*>(how.aux)}) {
    alignments = alignments * 512 + alignment_of(pointer);
  }
  return {device, flags, alignments, how.m, how.n, how.k, static_cast<std::int64_t>(workspace)};
}

// A kind of product, as cuBLASLt sees it, and the algorithm for it. Its mutex is held for a call:
// the addresses of bias and aux are in the operation.
struct Plan {
  std::mutex mutex;
  lt::Handle handle = nullptr;
  lt::Operation operation = nullptr;
  lt::Layout a = nullptr, b = nullptr, d = nullptr;  // c has that of d
  std::vector<lt::Proposal> proposals;               // the chosen one comes first
  bool made = false, measured = false;
};

// Facts about this machine, asked for once and kept as long as the process lives.
struct Plans {
  std::mutex mutex;
  std::map<int, lt::Handle> handles;  // by device
  std::unordered_map<Kind, std::unique_ptr<Plan>, KindHash> plans;
};
Plans& plans() {
  // Never destroyed: at the end of the process the driver may be gone before it.
  static Plans* const all = new Plans;
  return *all;
}

const lt::Api& cublaslt() { return lt::library().api; }

lt::Handle handle_of(Plans& all, int device) {
  lt::Handle& handle = all.handles[device];
  if (handle == nullptr) cublaslt().check(cublaslt().create(&handle), "cublasLtCreate");
  return handle;
}

template <typename T>
void set_field(lt::Operation operation, OperationField field, T value) {
  cublaslt().check(cublaslt().operation_set(operation, field, &value, sizeof(value)),
                   "cublasLtMatmulDescSetAttribute");
}
template <typename T>
void set_field(lt::Preference preference, PreferenceField field, T value) {
  cublaslt().check(cublaslt().preference_set(preference, field, &value, sizeof(value)),
                   "cublasLtMatmulPreferenceSetAttribute");
}

lt::Layout layout_of(lt::DataType type, std::int64_t rows, std::int64_t cols) {
  lt::Layout layout = nullptr;
  cublaslt().check(cublaslt().layout_create(&layout, type, static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(cols), rows),
                   "cublasLtMatrixLayoutCreate");
  return layout;
}

std::int32_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return lt::kNoEpilogue;
    case Epilogue::bias: return lt::kBias;
    case Epilogue::gelu_bias: return lt::kGeluAuxBias;
    case Epilogue::bias_gradient: return lt::kBiasGradientB;
  }
  return lt::kNoEpilogue;
}

void set_addresses(const Plan& plan, const Gemm& how) {
  if (how.epilogue == Epilogue::none) return;
  set_field(plan.operation, OperationField::bias_pointer, bias_of(how));
  if (how.epilogue == Epilogue::gelu_bias) {
    set_field(plan.operation, OperationField::aux_pointer, static_cast<const void*>(how.aux));
  }
}

// Can it be put to cuBLASLt at all?
bool is_askable(const Gemm& how, lt::DataType& type, lt::DataType& out_type) {
  if (how.m < 1 || how.n < 1 || how.k < 1) return false;
  if (!type_in(how.type, type) || !type_in(how.out_type, out_type)) return false;
  const bool same = how.type == how.out_type;
  switch (how.epilogue) {
    case Epilogue::none:
    case Epilogue::bias: return true;
    case Epilogue::gelu_bias: return same && how.n % 8 == 0;  // aux would be of the output's type
    case Epilogue::bias_gradient: return same;                // so would the gradient
  }
  return false;
}

void make_plan(Plan& plan, const Gemm& how, lt::DataType type, lt::DataType out_type) {
  const lt::Api& api = cublaslt();
  api.check(api.operation_create(&plan.operation, lt::Compute::f32, lt::DataType::f32),
            "cublasLtMatmulDescCreate");
  set_field(plan.operation, OperationField::transpose_a, std::int32_t{how.transpose_b ? 1 : 0});
  set_field(plan.operation, OperationField::transpose_b, std::int32_t{how.transpose_a ? 1 : 0});
  set_field(plan.operation, OperationField::epilogue, epilogue_of(how.epilogue));
  if (how.epilogue != Epilogue::none) {
    set_field(plan.operation, OperationField::bias_type, static_cast<std::int32_t>(out_type));
  }
  if (how.epilogue == Epilogue::gelu_bias) {
    set_field(plan.operation, OperationField::aux_stride, how.n);
    set_field(plan.operation, OperationField::aux_type, static_cast<std::int32_t>(out_type));
  }
  plan.a = how.transpose_b ? layout_of(type, how.k, how.n) : layout_of(type, how.n, how.k);
  plan.b = how.transpose_a ? layout_of(type, how.m, how.k) : layout_of(type, how.k, how.m);
  plan.d = layout_of(out_type, how.n, how.m);
}

// What cuBLASLt proposes, best first by its own reckoning. None: it cannot do this.
std::vector<lt::Proposal> proposals_for(const Plan& plan, const Gemm& how, std::size_t workspace) {
  constexpr int wanted = 16;
  const lt::Api& api = cublaslt();
  lt::Preference preference = nullptr;
  api.check(api.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<lt::OpaquePreference, Status (*)(lt::Preference)> owner(
      preference, api.preference_destroy);
  set_field(preference, PreferenceField::workspace_bytes, static_cast<std::uint64_t>(workspace));
  set_field(preference, PreferenceField::reduction_schemes, lt::kReduceInCompute);
  set_field(preference, PreferenceField::alignment_a, alignment_of(how.b));
  set_field(preference, PreferenceField::alignment_b, alignment_of(how.a));
  set_field(preference, PreferenceField::alignment_c,
            alignment_of(how.c != nullptr ? how.c : how.d));
  set_field(preference, PreferenceField::alignment_d, alignment_of(how.d));
  std::vector<lt::Proposal> proposals(wanted);
  int got = 0;
  const Status status = api.propose(plan.handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                    preference, wanted, proposals.data(), &got);
  if (status == Status::not_supported || status == Status::invalid_value) return {};
  api.check(status, "cublasLtMatmulAlgoGetHeuristic");
  proposals.resize(static_cast<std::size_t>(got));
  std::erase_if(proposals, [&](const lt::Proposal& proposal) {
    return proposal.status != Status::success || proposal.workspace > workspace;
  });
  return proposals;
}

Status run_proposal(const Plan& plan, const Gemm& how, const lt::Proposal& proposal,
                    Workspace workspace, Stream stream) {
  const float one = 1, zero = 0;
  return cublaslt().matmul(plan.handle, plan.operation, &one, how.b, plan.a, how.a, plan.b,
                           how.c != nullptr ? &one : &zero, how.c != nullptr ? how.c : how.d,
                           plan.d, how.d, plan.d, &proposal.algorithm, workspace.data,
                           workspace.bytes, stream);
}

// Milliseconds of a run, after one to get warm. Infinite: it does not work.
float time_of(const Plan& plan, const Gemm& how, const lt::Proposal& proposal, Workspace workspace,
              int times, Stopwatch& watch, Stream stream) {
  for (int i = -1; i < times; ++i) {
    if (i == 0) watch.start(stream);
    if (run_proposal(plan, how, proposal, workspace, stream) != Status::success) {
      return std::numeric_limits<float>::infinity();
    }
  }
  return watch.stop(stream) / static_cast<float>(times);
}

// Puts the fastest proposal first. Results go where the product's own will go soon, or, where that
// holds what is to be added to, into memory of their own. First a glance at all, then a longer look
// at the best; cuBLASLt's own favourite stays unless another is clearly faster.
void measure_proposals(Plan& plan, const Gemm& how, Workspace workspace, Stream stream) {
  constexpr std::size_t finalists = 4;
  constexpr float clearly = 0.98f;
  plan.measured = true;
  if (plan.proposals.size() < 2) return;
  Gemm trial = how;
  void* scratch = nullptr;
  if (how.c == how.d) {
    scratch = try_allocate(
        static_cast<std::size_t>(how.m) * static_cast<std::size_t>(how.n) * size_of(how.out_type),
        stream);
    if (scratch == nullptr) return;  // memory is short: the first proposal will do
    trial.c = trial.d = scratch;
  }
  Stopwatch watch;
  std::vector<std::pair<float, std::size_t>> times;
  for (std::size_t i = 0; i < plan.proposals.size(); ++i) {
    times.emplace_back(time_of(plan, trial, plan.proposals[i], workspace, 3, watch, stream), i);
  }
  std::sort(times.begin() + 1, times.end());  // the first one stays in
  times.resize(std::min(times.size(), finalists));
  for (auto& [ms, i] : times) {
    ms = time_of(plan, trial, plan.proposals[i], workspace, 5, watch, stream);
    if (i == 0) ms *= clearly;
  }
  const std::size_t best = std::min_element(times.begin(), times.end())->second;
  std::swap(plan.proposals[0], plan.proposals[best]);
  plan.proposals.resize(1);
}

Plan& plan_of(const Gemm& how, std::size_t workspace) {
  const int device = current_device();
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Plan>& plan = all.plans[kind_of(how, workspace, device)];
  if (plan == nullptr) {
    plan = std::make_unique<Plan>();
    plan->handle = handle_of(all, device);
  }
  return *plan;
}

std::string find_gemm_problem() {
  if (!lt::library().loaded) return lt::library().problem;
  if (!has_gpu()) return "there is no GPU that the CUDA runtime can use";
  return "";
}

}  // namespace

const char* gemm_problem() {
  static const std::string problem = find_gemm_problem();
  return problem.empty() ? nullptr : problem.c_str();
}

bool gemm(const Gemm& how, Workspace workspace, bool tune, Stream stream) {
  lt::DataType type{}, out_type{};
  if (gemm_problem() != nullptr || !is_askable(how, type, out_type)) return false;
  Plan& plan = plan_of(how, workspace.bytes);
  const std::lock_guard lock(plan.mutex);
  if (!plan.made) make_plan(plan, how, type, out_type);
  set_addresses(plan, how);
  if (!plan.made) plan.proposals = proposals_for(plan, how, workspace.bytes);
  plan.made = true;
  if (plan.proposals.empty()) return false;
  if (tune && !plan.measured && !capturing(stream)) measure_proposals(plan, how, workspace, stream);
  const Status status = run_proposal(plan, how, plan.proposals[0], workspace, stream);
  if (status == Status::not_supported || status == Status::invalid_value ||
      status == Status::arch_mismatch) {
    plan.proposals.clear();
    return false;
  }
  if (status != Status::success) {
    throw Error(str("the product [", how.m, ", ", how.k, "] · [", how.k, ", ", how.n, "] of ",
                    name(how.type), " failed: ", cublaslt().get_status_string(status)));
  }
  return true;
}

}  // namespace tessera::kernels::cuda
