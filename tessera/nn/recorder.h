#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::nn {

// [Note: selective] Which operators of a segment are matrix products is known only where a call of
// linear() or matmul() has become mm, addmm or bmm, just above autograd. So while a selective
// segment runs, a dispatch key that stands above autograd (the observing key) is switched on for
// its thread. Its fallback sees every operator and lets all but the products pass; those that are
// made of other operators pass with the key still on, so that their parts are seen too. The first
// time it keeps what a product returns. In the recomputation it sends the product through autograd,
// which records it with its recomputed inputs, to a second key below autograd (the answering key),
// whose kernels, registered for the products alone, give back what was kept instead of computing.
// So backward works as ever. A product that the segment changes in place (as linear() adds its
// bias) is copied before.
class Recorder {
 public:
  // What a product was called with; the recomputation must call it with the same.
  struct Operand {
    at::ScalarType type = at::ScalarType::Undefined;  // of an undefined tensor
    std::vector<std::int64_t> sizes;
    bool operator==(const Operand&) const = default;
  };
  struct Call {
    std::string_view name;  // lives as long as the program
    std::vector<Operand> operands;
    void add(const at::Tensor& tensor);
    bool operator==(const Call&) const = default;
  };

  // Runs f with the products recorded, or, once `replay` has been called, played back.
  void run(const std::function<void()>& f);
  void replay() { replaying_ = true; }
  bool replaying() const { return replaying_; }

  // First run: keeps all that the call returned.
  void keep(Call call, std::vector<c10::IValue> results);
  // Recomputation: what this call, the next product, returned then. Throws UsageError if the first
  // run made another call in its place.
  std::vector<c10::IValue> kept(const Call& call);

  // For products that are no operators; see keep_in_selective.
  std::vector<at::Tensor> results(Call call,
                                  const std::function<std::vector<at::Tensor>()>& compute);

  // The memory of `tensor` is about to change.
  void protect(const at::Tensor& tensor);
  // The segment hands these out: whoever changes them later is found out in the recomputation.
  void watch(const std::vector<at::Tensor>& outputs);

  // The recorder of the selective segment that this thread is in, or null.
  static Recorder* current();

 private:
  struct Result {
    c10::IValue value;
    std::uint32_t version = 0;  // of a tensor, when it was kept
  };
  struct Product {
    Call call;
    std::vector<Result> results;
  };
  std::vector<Product> products_;  // in the order of the calls
  std::size_t next_ = 0;
  bool replaying_ = false;
};

}  // namespace tessera::nn
