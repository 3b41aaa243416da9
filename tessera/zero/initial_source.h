#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tessera::zero {

// [Note: initial values] Where parameters without memory (nn::unallocated) start. The function
// writes elements [begin, begin + out.numel()) of this rank's parameter `name`, in memory order,
// into `out`: flat, fp32, on the CPU (or see on_device). Every rank must give the same value for an
// element. The engine asks for what a rank keeps, unit by unit, so that no rank ever holds the
// whole model.
struct InitialSource {
  // Writes a stretch of one parameter.
  using Write =
      std::function<void(const std::string& name, std::int64_t begin, const at::Tensor& out)>;

  InitialSource() = default;
  // Any function of that kind is a source.
  template <typename F>
  InitialSource(F&& f)  // NOLINT: a function is one
      requires std::constructible_from<Write, F&&> : write(std::forward<F>(f)) {}
  // Whether there is a source at all.
  explicit operator bool() const { return static_cast<bool>(write); }

  Write write;
  // `out` may be on the device of the parameters, whose current stream then gets the work.
  bool on_device = false;
  // Parameters of which it has this rank's shard alone, from values on which the ranks have agreed
  // already. What else a rank keeps of them comes from the other ranks. Null: none.
  std::function<bool(const std::string& name)> own_shard_only;
};

}  // namespace tessera::zero
