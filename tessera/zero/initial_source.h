#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tessera::zero {

// [Note: initial values] Initial values of parameters without memory (nn::unallocated). The
// function writes elements [begin, begin + out.numel()) of this rank's parameter `name`, in memory
// order, into `out`: flat, fp32, on the CPU (or see on_device). Every rank must give the same value
// for an element. The engine requests only the elements that a rank keeps, unit by unit, so that no
// rank ever holds the whole model.
struct InitialSource {
  // Function that writes a range of one parameter.
  using Write =
      std::function<void(const std::string& name, std::int64_t begin, const at::Tensor& out)>;

  InitialSource() = default;
  // Implicit, so that any such function converts to a source.
  template <typename F>
  InitialSource(F&& f)  // NOLINT: implicit
      requires std::constructible_from<Write, F&&> : write(std::forward<F>(f)) {}
  // Returns true if there is a source.
  explicit operator bool() const { return static_cast<bool>(write); }

  Write write;
  // `out` may be on the device of the parameters; `write` then enqueues on its current stream.
  bool on_device = false;
  // Returns true for parameters of which the source has only this rank's shard, with values already
  // consistent between ranks. Other elements are gathered from the other ranks. Null: none.
  std::function<bool(const std::string& name)> own_shard_only;
};

}  // namespace tessera::zero
