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

// [Note: by columns] A row-major matrix is its transpose in column-major order. So for d = op(a) ·
// op(b) Tessera requests dᵀ = op(b)ᵀ · op(a)ᵀ: cuBLASLt's A is b, its B is a, and its D has n rows
// and m columns. An operand that is not transposed here is not transposed for cuBLASLt either. The
// bias [n] has one value per row of D, as cuBLASLt requires, and the sum of a over k, one value for
// each of m, is its bias gradient "of B".

bool to_lt_type(DType type, lt::DataType& out) {
  switch (type) {
    case DType::f32: out = lt::DataType::f32; return true;
    case DType::f16: out = lt::DataType::f16; return true;
    case DType::bf16: out = lt::DataType::bf16; return true;
    case DType::f8_e4m3: out = lt::DataType::f8_e4m3; return true;
    case DType::f8_e5m2: out = lt::DataType::f8_e5m2; return true;
    default: return false;
  }
}

// Returns the alignment that algorithms may rely on. Only a few values, to keep the number of
// distinct plans small.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const std::uint32_t bytes : {256u, 16u, 8u, 4u, 2u}) {
    if (address % bytes == 0) return bytes;  // 256 for a null pointer
  }
  return 1;
}

const void* bias_of(const Gemm& args) {
  return args.epilogue == Epilogue::bias_gradient ? args.bias_gradient : args.bias;
}

DType b_type(const Gemm& args) { return args.b_type.value_or(args.type); }
bool is_fp8(DType type) { return type == DType::f8_e4m3 || type == DType::f8_e5m2; }

bool uses_tf32(const Gemm& args) { return args.tf32 && args.type == DType::f32; }

// Everything that the choice of an algorithm depends on.
using PlanKey = std::array<std::int64_t, 7>;
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t x : key) {
      hash = (hash ^ static_cast<std::uint64_t>(x)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

PlanKey plan_key(const Gemm& args, std::size_t workspace, int device) {
  std::int64_t flags = 0, alignments = 0;
  for (const int x :
       {static_cast<int>(args.type), static_cast<int>(b_type(args)),
        static_cast<int>(args.out_type), static_cast<int>(args.epilogue), args.transpose_a ? 1 : 0,
        args.transpose_b ? 1 : 0, uses_tf32(args) ? 1 : 0, args.fast_sums ? 1 : 0,
        args.c == nullptr  ? 0
        : args.c == args.d ? 1
                           : 2}) {
    flags = flags * 16 + x;
  }
  for (const void* pointer : {args.a, args.b, args.c, static_cast<const void*>(args.d),
                              bias_of(args), static_cast<const void*>(args.aux)}) {
    alignments = alignments * 512 + alignment_of(pointer);
  }
  return {device, flags, alignments, args.m, args.n, args.k, static_cast<std::int64_t>(workspace)};
}

// cuBLASLt descriptors and the chosen algorithm of one kind of product. The mutex is held during a
// call because the operation contains the addresses of bias and aux.
struct Plan {
  std::mutex mutex;
  lt::Handle handle = nullptr;
  lt::Operation operation = nullptr;
  lt::Layout a = nullptr, b = nullptr, d = nullptr;  // c has the layout of d
  std::vector<lt::Proposal> proposals;               // the chosen one is first
  bool made = false, measured = false;
};

// Handles and plans, created on first use and kept for the lifetime of the process.
struct Plans {
  std::mutex mutex;
  std::map<int, lt::Handle> handles;  // by device
  std::unordered_map<PlanKey, std::unique_ptr<Plan>, PlanKeyHash> plans;
};
Plans& plans() {
  // Never destroyed: at process exit the driver may already be unloaded.
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

void set_addresses(const Plan& plan, const Gemm& args) {
  if (is_fp8(args.type)) {
    set_field(plan.operation, OperationField::factor_a, static_cast<const void*>(args.b_factor));
    set_field(plan.operation, OperationField::factor_b, static_cast<const void*>(args.a_factor));
  }
  if (args.epilogue == Epilogue::none) return;
  set_field(plan.operation, OperationField::bias_pointer, bias_of(args));
  if (args.epilogue == Epilogue::gelu_bias) {
    set_field(plan.operation, OperationField::aux_pointer, static_cast<const void*>(args.aux));
  }
}

struct Types {
  lt::DataType a, b, out;
};

// Returns whether cuBLASLt can express this product, and its types.
bool is_supported(const Gemm& args, Types& types) {
  if (args.m < 1 || args.n < 1 || args.k < 1) return false;
  if (!to_lt_type(args.type, types.a) || !to_lt_type(b_type(args), types.b) ||
      !to_lt_type(args.out_type, types.out)) {
    return false;
  }
  if (is_fp8(args.type)) {
    return is_fp8(b_type(args)) && !is_fp8(args.out_type) && !args.transpose_a &&
           args.transpose_b && args.n % 16 == 0 && args.k % 16 == 0 && fp8_problem() == nullptr &&
           (args.epilogue == Epilogue::none || args.epilogue == Epilogue::bias);
  }
  if (args.b_type || is_fp8(args.out_type)) return false;
  const bool same = args.type == args.out_type;
  switch (args.epilogue) {
    case Epilogue::none:
    case Epilogue::bias: return true;
    case Epilogue::gelu_bias: return same && args.n % 8 == 0;  // aux has the output's type
    case Epilogue::bias_gradient: return same;                 // so does the gradient
  }
  return false;
}

void make_plan(Plan& plan, const Gemm& args, const Types& types) {
  const lt::Api& api = cublaslt();
  const lt::Compute compute = uses_tf32(args) ? lt::Compute::f32_tf32 : lt::Compute::f32;
  api.check(api.operation_create(&plan.operation, compute, lt::DataType::f32),
            "cublasLtMatmulDescCreate");
  set_field(plan.operation, OperationField::transpose_a, std::int32_t{args.transpose_b ? 1 : 0});
  set_field(plan.operation, OperationField::transpose_b, std::int32_t{args.transpose_a ? 1 : 0});
  set_field(plan.operation, OperationField::epilogue, epilogue_of(args.epilogue));
  if (args.epilogue != Epilogue::none) {
    set_field(plan.operation, OperationField::bias_type, static_cast<std::int32_t>(types.out));
  }
  if (args.epilogue == Epilogue::gelu_bias) {
    set_field(plan.operation, OperationField::aux_stride, args.n);
    set_field(plan.operation, OperationField::aux_type, static_cast<std::int32_t>(types.out));
  }
  if (args.fast_sums) set_field(plan.operation, OperationField::fast_sums, std::int8_t{1});
  plan.a =
      args.transpose_b ? layout_of(types.b, args.k, args.n) : layout_of(types.b, args.n, args.k);
  plan.b =
      args.transpose_a ? layout_of(types.a, args.m, args.k) : layout_of(types.a, args.k, args.m);
  plan.d = layout_of(types.out, args.n, args.m);
}

// Returns cuBLASLt's proposals, best first by its own estimate. Empty: not supported.
std::vector<lt::Proposal> proposals_for(const Plan& plan, const Gemm& args, std::size_t workspace) {
  constexpr int wanted = 16;
  const lt::Api& api = cublaslt();
  lt::Preference preference = nullptr;
  api.check(api.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<lt::OpaquePreference, Status (*)(lt::Preference)> owner(
      preference, api.preference_destroy);
  set_field(preference, PreferenceField::workspace_bytes, static_cast<std::uint64_t>(workspace));
  set_field(preference, PreferenceField::reduction_schemes, lt::kReduceInCompute);
  set_field(preference, PreferenceField::alignment_a, alignment_of(args.b));
  set_field(preference, PreferenceField::alignment_b, alignment_of(args.a));
  set_field(preference, PreferenceField::alignment_c,
            alignment_of(args.c != nullptr ? args.c : args.d));
  set_field(preference, PreferenceField::alignment_d, alignment_of(args.d));
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

Status run_proposal(const Plan& plan, const Gemm& args, const lt::Proposal& proposal,
                    Workspace workspace, Stream stream) {
  const float one = 1, zero = 0;
  return cublaslt().matmul(plan.handle, plan.operation, &one, args.b, plan.a, args.a, plan.b,
                           args.c != nullptr ? &one : &zero, args.c != nullptr ? args.c : args.d,
                           plan.d, args.d, plan.d, &proposal.algorithm, workspace.data,
                           workspace.bytes, stream);
}

// Returns the milliseconds of a run, after one warm-up run. Infinity: the algorithm fails.
float time_of(const Plan& plan, const Gemm& args, const lt::Proposal& proposal, Workspace workspace,
              int times, Stopwatch& watch, Stream stream) {
  for (int i = -1; i < times; ++i) {
    if (i == 0) watch.start(stream);
    if (run_proposal(plan, args, proposal, workspace, stream) != Status::success) {
      return std::numeric_limits<float>::infinity();
    }
  }
  return watch.stop(stream) / static_cast<float>(times);
}

// Moves the fastest proposal to the front. Trials write to the product's own output, which the real
// run overwrites next; if that output also holds the addend, they write to scratch memory. All
// proposals are timed briefly, then the best ones for longer. cuBLASLt's first proposal is kept
// unless another one is clearly faster.
void measure_proposals(Plan& plan, const Gemm& args, Workspace workspace, Stream stream) {
  constexpr std::size_t finalists = 4;
  constexpr float clearly = 0.98f;
  plan.measured = true;
  if (plan.proposals.size() < 2) return;
  Gemm trial = args;
  const auto free = [stream](void* memory) { release(memory, stream); };
  std::unique_ptr<void, decltype(free)> scratch(nullptr, free);
  if (args.c == args.d) {
    scratch.reset(try_allocate(static_cast<std::size_t>(args.m) * static_cast<std::size_t>(args.n) *
                                   size_of(args.out_type),
                               stream));
    if (scratch == nullptr) return;  // not enough memory: keep the first proposal
    trial.c = trial.d = scratch.get();
  }
  Stopwatch watch;
  std::vector<std::pair<float, std::size_t>> times;
  for (std::size_t i = 0; i < plan.proposals.size(); ++i) {
    times.emplace_back(time_of(plan, trial, plan.proposals[i], workspace, 3, watch, stream), i);
  }
  std::sort(times.begin() + 1, times.end());  // always keep the first one
  times.resize(std::min(times.size(), finalists));
  for (auto& [ms, i] : times) {
    ms = time_of(plan, trial, plan.proposals[i], workspace, 5, watch, stream);
    if (i == 0) ms *= clearly;
  }
  const std::size_t best = std::min_element(times.begin(), times.end())->second;
  std::swap(plan.proposals[0], plan.proposals[best]);
  plan.proposals.resize(1);
}

Plan& plan_of(const Gemm& args, std::size_t workspace) {
  const int device = current_device();
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Plan>& plan = all.plans[plan_key(args, workspace, device)];
  if (plan == nullptr) {
    plan = std::make_unique<Plan>();
    plan->handle = handle_of(all, device);
  }
  return *plan;
}

std::string find_fp8_problem() {
  if (const char* problem = gemm_problem()) return problem;
  constexpr int oldest = 89;
  if (const int capability = compute_capability(); capability < oldest) {
    return str("This GPU has compute capability ", capability / 10, ".", capability % 10,
               "; products in fp8 need 8.9 (Ada, Hopper or newer).");
  }
  return "";
}

std::string find_gemm_problem() {
  if (!lt::library().loaded) return lt::library().problem;
  if (!has_gpu()) return "The CUDA runtime found no usable GPU.";
  return "";
}

}  // namespace

const char* gemm_problem() {
  static const std::string problem = find_gemm_problem();
  return problem.empty() ? nullptr : problem.c_str();
}

const char* fp8_problem() {
  static const std::string problem = find_fp8_problem();
  return problem.empty() ? nullptr : problem.c_str();
}

bool gemm(const Gemm& args, Workspace workspace, bool tune, Stream stream) {
  Types types{};
  if (gemm_problem() != nullptr || !is_supported(args, types)) return false;
  Plan& plan = plan_of(args, workspace.bytes);
  const std::lock_guard lock(plan.mutex);
  if (!plan.made) make_plan(plan, args, types);
  set_addresses(plan, args);
  if (!plan.made) plan.proposals = proposals_for(plan, args, workspace.bytes);
  plan.made = true;
  if (plan.proposals.empty()) return false;
  if (tune && !plan.measured && !capturing(stream))
    measure_proposals(plan, args, workspace, stream);
  const Status status = run_proposal(plan, args, plan.proposals[0], workspace, stream);
  if (status == Status::not_supported || status == Status::invalid_value ||
      status == Status::arch_mismatch) {
    plan.proposals.clear();
    return false;
  }
  if (status != Status::success) {
    throw Error(str("The matrix product [", args.m, ", ", args.k, "] · [", args.k, ", ", args.n,
                    "] in ", name(args.type), " failed: ", cublaslt().get_status_string(status)));
  }
  return true;
}

}  // namespace tessera::kernels::cuda
