#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace tessera::nn {

// [Note: selective] Which operators of a segment are matrix products is only known below autograd,
// where a call of linear() or matmul() has become mm, addmm or bmm. So a dispatch key that nothing
// else uses is switched on while a selective segment runs; its fallback sees every operator after
// autograd has seen it, and lets all but the products pass. The first time it keeps their results;
// in the recomputation it gives these back instead of computing: autograd has recorded the
// operation by then, with its recomputed inputs, so that backward works as ever. A product that the
// segment changes in place (as linear() adds its bias) is copied before.
class Recorder {
 public:
  // Runs f with the products recorded, or, once `replay` has been called, played back.
  void run(const std::function<void()>& f);
  void replay() { replaying_ = true; }

  std::vector<at::Tensor> results(const std::function<std::vector<at::Tensor>()>& compute);

  // The memory of `tensor` is about to change.
  void protect(const at::Tensor& tensor);
  // The segment hands these out: whoever changes them later is found out in the recomputation.
  void watch(const std::vector<at::Tensor>& outputs);

  // The recorder of the selective segment that this thread is in, or null.
  static Recorder* current();

 private:
  struct Kept {
    at::Tensor value;
    std::uint32_t version = 0;
  };
  std::vector<std::vector<Kept>> kept_;  // one list per product, in the order of the calls
  std::size_t next_ = 0;
  bool replaying_ = false;
};

}  // namespace tessera::nn
