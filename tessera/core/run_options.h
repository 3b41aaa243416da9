#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/core/enum_names.h"

// Choices of a training run that are a word on the command line.
namespace tessera {

// Device that computes.
enum class Device : std::uint8_t { cpu, cuda };
// Names on the command line.
template <>
struct EnumNames<Device> {
  static constexpr std::array<std::string_view, 2> kNames{"cpu", "cuda"};
};

// Backend of the collectives; comm/backend_kind.h lists their properties.
enum class BackendName : std::uint8_t { automatic, shm, two_level, nccl, tcp, dry };
// Names on the command line.
template <>
struct EnumNames<BackendName> {
  static constexpr std::array<std::string_view, 6> kNames{"auto", "shm", "two-level",
                                                          "nccl", "tcp", "dry"};
};

// Optimizer; kernels/rules.h has their update rules.
enum class OptimizerChoice : std::uint8_t { adamw, sgd, lion, muon };
// Names on the command line.
template <>
struct EnumNames<OptimizerChoice> {
  static constexpr std::array<std::string_view, 4> kNames{"adamw", "sgd", "lion", "muon"};
};

// Pipeline schedule; schedule/schedule.h generates them.
enum class ScheduleChoice : std::uint8_t { gpipe, one_f_one_b, interleaved, zb_h1, zb_v };
// Names on the command line.
template <>
struct EnumNames<ScheduleChoice> {
  static constexpr std::array<std::string_view, 5> kNames{"gpipe", "1f1b", "interleaved", "zb-h1",
                                                          "zb-v"};
};
// Returns true if the schedule computes gradients of weights apart from those of inputs.
constexpr bool is_zero_bubble(ScheduleChoice schedule) {
  return schedule == ScheduleChoice::zb_h1 || schedule == ScheduleChoice::zb_v;
}

// Attention under context parallelism. ring: keys and values travel from rank to rank. ulysses: an
// all-to-all gives each rank whole sequences of some heads. automatic: ulysses if the ranks divide
// the heads of queries, keys and values, otherwise ring.
enum class ContextKind : std::uint8_t { automatic, ring, ulysses };
// Names on the command line.
template <>
struct EnumNames<ContextKind> {
  static constexpr std::array<std::string_view, 3> kNames{"auto", "ring", "ulysses"};
};

// Order of the samples. automatic: random for a text file without epochs, otherwise shuffle.
enum class SampleOrder : std::uint8_t { automatic, shuffle, sequential, random };
// Names on the command line.
template <>
struct EnumNames<SampleOrder> {
  static constexpr std::array<std::string_view, 4> kNames{"auto", "shuffle", "sequential",
                                                          "random"};
};

// Documents in one row: joined, or separate so that none attends to another.
enum class Documents : std::uint8_t { join, separate };
// Names on the command line.
template <>
struct EnumNames<Documents> {
  static constexpr std::array<std::string_view, 2> kNames{"join", "separate"};
};

// Rows filled with documents, or one document a row.
enum class Packing : std::uint8_t { documents, none };
// Names on the command line.
template <>
struct EnumNames<Packing> {
  static constexpr std::array<std::string_view, 2> kNames{"documents", "none"};
};

// Incomplete batch at the end of the last epoch.
enum class LastBatch : std::uint8_t { drop, pad };
// Names on the command line.
template <>
struct EnumNames<LastBatch> {
  static constexpr std::array<std::string_view, 2> kNames{"drop", "pad"};
};

// Factor of the learning rate for another batch size than the reference: their ratio, or its root.
enum class LrScaling : std::uint8_t { none, linear, sqrt };
// Names on the command line.
template <>
struct EnumNames<LrScaling> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "linear", "sqrt"};
};

// Reaction to a gradient that is not finite.
enum class OnNan : std::uint8_t { stop, skip, rollback };
// Names on the command line.
template <>
struct EnumNames<OnNan> {
  static constexpr std::array<std::string_view, 3> kNames{"stop", "skip", "rollback"};
};

// Reaction to a checkpoint that cannot be written.
enum class OnSaveError : std::uint8_t { stop, warn };
// Names on the command line.
template <>
struct EnumNames<OnSaveError> {
  static constexpr std::array<std::string_view, 2> kNames{"stop", "warn"};
};

// Steps as CUDA graphs: where possible, required, or never.
enum class CudaGraph : std::uint8_t { automatic, on, off };
// Names on the command line.
template <>
struct EnumNames<CudaGraph> {
  static constexpr std::array<std::string_view, 3> kNames{"auto", "on", "off"};
};

// Precision of matrix products of fp32 tensors on GPUs. high: inputs may be rounded to TF32.
enum class MatmulPrecision : std::uint8_t { highest, high };
// Names on the command line.
template <>
struct EnumNames<MatmulPrecision> {
  static constexpr std::array<std::string_view, 2> kNames{"highest", "high"};
};

// Precision of the products of linears on GPUs. layout: the type of the parameters. fp8: inputs are
// rounded to 8 bits, with dynamic scales.
enum class Precision : std::uint8_t { layout, fp8 };
// Names on the command line.
template <>
struct EnumNames<Precision> {
  static constexpr std::array<std::string_view, 2> kNames{"layout", "fp8"};
};

// Communication between ranks. off: for benchmarks only.
enum class Comm : std::uint8_t { on, off };
// Names on the command line.
template <>
struct EnumNames<Comm> {
  static constexpr std::array<std::string_view, 2> kNames{"on", "off"};
};

// Activation checkpointing: the parts of a unit or a block that backward recomputes instead of
// reading them from memory.
enum class Recompute : std::uint8_t {
  none,
  selective,  // keeps matrix products, recomputes everything else
  full,       // keeps only the inputs
};
// Names on the command line.
template <>
struct EnumNames<Recompute> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "selective", "full"};
};

// [Note: gradient compression] Encoding of gradients that are sent between replicas. bf16, fp16:
// fp32 gradients are rounded to 16 bits for sending and converted back to fp32 on arrival. The
// engine and the planner both use these rules.
enum class GradCompression : std::uint8_t { none, bf16, fp16 };
// Names on the command line.
template <>
struct EnumNames<GradCompression> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "bf16", "fp16"};
};

// Returns the bytes sent for each gradient element that is stored in `kept` bytes.
constexpr int traveling_grad(int kept, GradCompression compression) {
  return compression != GradCompression::none && kept == 4 ? 2 : kept;
}

// Returns what replaces a compression of earlier versions if a flag, a key, a value or the name of
// a state in a checkpoint belongs to it; otherwise "".
constexpr std::string_view why_removed(std::string_view name) {
  if (name.find("powersgd") == std::string_view::npos) return "";
  return "PowerSGD has moved to examples/power_sgd.cpp, a hook for Options::reduce_hook";
}

}  // namespace tessera
