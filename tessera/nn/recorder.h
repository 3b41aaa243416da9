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

// [Note: selective] The matrix products of a segment can be recognized only after a call of
// linear() or matmul() has been decomposed into mm, addmm or bmm, just above autograd. So while a
// selective segment runs, a dispatch key above autograd (the observing key) is enabled for its
// thread. Its fallback receives every operator and forwards all except the products; composite
// operators are forwarded with the key still enabled, so that their components are observed too. In
// the first run it keeps the results of each product. In the recomputation it sends the product
// through autograd, which records it with its recomputed inputs, to a second key below autograd
// (the replaying key), whose kernels, registered only for the products, return the kept results
// instead of computing. So backward works as usual. A product that the segment changes in place (as
// linear() does when it adds its bias) is copied first.
class Recorder {
 public:
  // Operands of a product. The recomputation must call it with the same.
  struct Operand {
    at::ScalarType type = at::ScalarType::Undefined;  // Undefined for an undefined tensor
    std::vector<std::int64_t> sizes;
    bool operator==(const Operand&) const = default;
  };
  struct Call {
    std::string_view name;  // static lifetime
    std::vector<Operand> operands;
    void add(const at::Tensor& tensor);
    bool operator==(const Call&) const = default;
  };

  // Runs f and records its products, or, after replay(), returns the recorded ones.
  void run(const std::function<void()>& f);
  void replay() { replaying_ = true; }
  bool replaying() const { return replaying_; }

  // First run: keeps the results of the call.
  void keep(Call call, std::vector<c10::IValue> results);
  // Recomputation: returns the results that this call, the next product, had in the first run.
  // Throws UsageError if the first run made a different call at this point.
  std::vector<c10::IValue> kept(const Call& call);

  // For products that are not operators; see keep_in_selective.
  std::vector<at::Tensor> results(Call call,
                                  const std::function<std::vector<at::Tensor>()>& compute);

  // Copies kept results that share memory with `tensor`, which is about to change.
  void protect(const at::Tensor& tensor);
  // Tracks the outputs of the segment, so that the recomputation detects later changes in place.
  void watch(const std::vector<at::Tensor>& outputs);

  // Returns the recorder of the selective segment that this thread runs, or null.
  static Recorder* current();

 private:
  struct Result {
    c10::IValue value;
    std::uint32_t version = 0;  // version of a tensor when it was kept
  };
  struct Product {
    Call call;
    std::vector<Result> results;
  };
  std::vector<Product> products_;  // in call order
  std::size_t next_ = 0;
  bool replaying_ = false;
};

}  // namespace tessera::nn
