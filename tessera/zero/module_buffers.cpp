#include "tessera/zero/module_buffers.h"

#include <ATen/ops/cat.h>

#include <map>
#include <vector>

namespace tessera::zero {

void broadcast_module_buffers(const torch::nn::Module& module, const comm::Group& group,
                              Stopwatch& waiting) {
  if (group.size() == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && buffer.numel() > 0) by_type[buffer.scalar_type()].push_back(buffer);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [type, list] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& buffer : list) flat.push_back(buffer.flatten());
    // Sent as bytes, so that every type works.
    const at::Tensor all = at::cat(flat).view(at::kByte);
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "buffers";
    const comm::Work work = group.broadcast(all, 0, call);
    waiting.time([&] { work.wait(); });
    const at::Tensor values = all.view(type);
    std::int64_t at = 0;
    for (const at::Tensor& buffer : list) {
      // variable_data() hides the write from autograd, so that version counters agree on all ranks.
      if (group.rank() != 0)
        buffer.variable_data().copy_(values.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
  }
}

}  // namespace tessera::zero
