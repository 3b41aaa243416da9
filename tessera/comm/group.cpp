#include "tessera/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "tessera/comm/backend.h"
#include "tessera/comm/capture.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/staging.h"
#include "tessera/comm/torch_dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

std::string shape(const at::Tensor& tensor) {
  return tessera::str(tensor.sizes(), " ", c10::toString(tensor.scalar_type()), " on ",
                      tensor.device().str());
}

// Takes a function so that the text is built only on failure: every call runs these checks.
template <typename Problem>
void require(bool good, const Collective& what, const Problem& problem) {
  if (!good) throw UsageError(str(describe(what), ": ", problem()));
}

// Keeps both tensors of a call alive until it has ended.
struct Kept {
  at::Tensor out, in;
};

// Reports blocking waits to an observer.
class Observed final : public WorkState {
 public:
  Observed(Work work, std::shared_ptr<Observer> observer, std::shared_ptr<const Collective> call)
      : work_(std::move(work)), observer_(std::move(observer)), call_(std::move(call)) {}
  void wait() override {
    const bool waits = !work_.done();
    const Observer::Time begin = std::chrono::steady_clock::now();
    work_.wait();
    if (waits) observer_->waited(*call_, begin, std::chrono::steady_clock::now());
  }
  bool done() const override { return work_.done(); }

 private:
  const Work work_;
  const std::shared_ptr<Observer> observer_;
  const std::shared_ptr<const Collective> call_;
};

// Returns the parts of a call that messages and observers use: all but its buffers.
Collective without_buffers(const Collective& what) {
  Collective copy = what;
  copy.in = copy.out = nullptr;
  copy.parts = nullptr;
  return copy;
}

}  // namespace

DType to_dtype(at::ScalarType type) {
  const std::optional<DType> found = find_dtype(type);
  if (found && std::find(kMovedTypes.begin(), kMovedTypes.end(), *found) != kMovedTypes.end()) {
    return *found;
  }
  throw UsageError(str("collectives do not support ", c10::toString(type),
                       " tensors; must be float, double, bfloat16, half, int, long or uint8. "
                       "View the tensor as one of these (tensor.view(dtype))"));
}

SymmetricTensor::SymmetricTensor(std::shared_ptr<SymmetricMemory> memory, at::IntArrayRef sizes,
                                 at::ScalarType dtype, int rank)
    : memory_(std::move(memory)) {
  const auto keep = [memory = memory_](void*) {};
  local_ = at::from_blob(memory_->part(rank), sizes, keep, at::dtype(dtype));
}

at::Tensor SymmetricTensor::of(int rank) const {
  const auto keep = [memory = memory_](void*) {};
  return at::from_blob(memory_->part(rank), local_.sizes(), keep, local_.options());
}

struct Group::State {
  std::shared_ptr<Backend> backend;
  std::mutex mutex;
  std::map<std::string, int> subsets;  // number of times each was created, for unique names
  std::mutex last_mutex;
  Collective last;  // without its buffers
  std::shared_ptr<Observer> observer;
  std::uint64_t calls = 0;
};

Group::Group() : Group(dry::make_backend(0, 1, "self")) {}
Group::Group(std::shared_ptr<Backend> backend) : state_(std::make_shared<State>()) {
  state_->backend = std::move(backend);
}

int Group::rank() const { return state_->backend->rank(); }
int Group::size() const { return state_->backend->size(); }
std::string Group::name() const { return state_->backend->name(); }
std::string Group::backend() const { return state_->backend->kind(); }
bool Group::shares_memory() const { return state_->backend->shares_memory(); }
bool Group::simulated() const { return state_->backend->simulated(); }
bool Group::on_device() const { return state_->backend->on_device(); }
TrafficCounts Group::traffic() const { return state_->backend->traffic(); }
void Group::add_traffic(const TrafficCounts& counts) const { state_->backend->add_traffic(counts); }

std::string Group::last_call() const {
  const std::lock_guard lock(state_->last_mutex);
  return state_->calls == 0 ? "" : str("#", state_->calls, " ", describe(state_->last));
}

void Group::observe(std::shared_ptr<Observer> observer) const {
  const std::lock_guard lock(state_->last_mutex);
  state_->observer = std::move(observer);
}

std::shared_ptr<void> Group::register_buffer(const at::Tensor& buffer) const {
  if (buffer.is_cpu() || !on_device() || buffer.numel() == 0) return nullptr;
  return state_->backend->register_buffer(buffer.data_ptr(), buffer.nbytes());
}

Work Group::submit(Collective what, const at::Tensor& out, const at::Tensor& in) const {
  for (const at::Tensor* tensor : {&out, &in}) {
    if (!tensor->defined()) continue;
    require(tensor->layout() == at::kStrided, what, [] { return "the tensor is not dense"; });
    require(tensor->is_contiguous(), what, [&] {
      return str("the tensor ", shape(*tensor), " is not contiguous; pass x.contiguous()");
    });
  }
  if (out.defined() && in.defined()) {
    require(out.scalar_type() == in.scalar_type() && out.device() == in.device(), what,
            [&] { return str("input and output differ: ", shape(in), " and ", shape(out)); });
  }
  std::shared_ptr<Observer> observer;
  if (size() > 1) {
    const std::lock_guard lock(state_->last_mutex);
    state_->last = without_buffers(what);
    ++state_->calls;
    observer = state_->observer;
  }
  const bool on_host = (in.defined() ? in : out).is_cpu();
  Backend& device = *state_->backend;
  Backend& host = device.host();
  what.in = in.defined() ? in.const_data_ptr() : nullptr;
  what.out = out.defined() ? out.data_ptr() : nullptr;
  const bool staged = !on_host && &host == &device;
  if (what.parts && !(on_host || staged ? host : device).takes_parts()) {
    return submit_parts(what, out, in);
  }
  require(!what.shared || host.shares_memory(), what,
          [&] { return str("the ranks of backend ", backend(), " do not share memory"); });
  if (staged && size() == 1) {
    check(what, 1, 0);  // one rank only needs a copy in the current stream
    if (what.in != what.out && out.defined()) out.copy_(in.view(out.sizes()), true);
    return Work();
  }
  require(!staged || !capturing_on((in.defined() ? in : out).device()), what, [&] {
    return str("backend ", backend(), " copies through host memory, which cannot be captured ",
               "into a CUDA graph; use backend nccl, or no graph");
  });
  Attachments attachments;
  std::shared_ptr<const Collective> call;
  if (observer) {
    call = std::make_shared<const Collective>(without_buffers(what));
    attachments.ran = [observer, call](Observer::Time begin, Observer::Time end) {
      observer->ran(*call, begin, end);
    };
  }
  Work work;
  if (staged) {
    work = submit_staged(host, std::move(what), out, in, std::move(attachments));
  } else {
    attachments.keep = std::make_shared<Kept>(Kept{out, in});
    work = (on_host ? host : device).submit(std::move(what), std::move(attachments));
  }
  return observer ? Work(std::make_shared<Observed>(std::move(work), observer, call)) : work;
}

namespace {

// Several operations behind one Work.
class AllOf final : public WorkState {
 public:
  explicit AllOf(std::vector<Work> works) : works_(std::move(works)) {}
  void wait() override {
    for (const Work& work : works_) work.wait();
  }
  bool done() const override {
    return std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.done(); });
  }

 private:
  std::vector<Work> works_;
};

at::Tensor elements_at(const at::Tensor& whole, const void* begin, std::size_t count) {
  const auto offset =
      static_cast<const std::byte*>(begin) - static_cast<const std::byte*>(whole.const_data_ptr());
  const auto size = static_cast<std::int64_t>(whole.element_size());
  return whole.flatten().narrow(0, offset / size, static_cast<std::int64_t>(count));
}

}  // namespace

Work Group::submit_parts(const Collective& what, const at::Tensor& out,
                         const at::Tensor& in) const {
  std::vector<Work> works;
  for_each_part(what, size(), rank(), [&](const Collective& part) {
    const std::size_t own = shard_of(part.count, size(), rank()).size;
    const bool gather = part.op == Op::all_gather;
    works.push_back(submit(part, elements_at(out, part.out, gather ? part.count : own),
                           elements_at(in, part.in, gather ? own : part.count)));
  });
  return Work(std::make_shared<AllOf>(std::move(works)));
}

namespace {

Collective make(Op op, const at::Tensor& whole, int peer, const Call& call) {
  Collective what;
  what.op = op;
  what.dtype = to_dtype(whole.scalar_type());
  what.reduce = call.op;
  what.traffic = call.traffic;
  what.count = static_cast<std::size_t>(whole.numel());
  what.peer = peer;
  what.label = call.label;
  what.parts = call.parts;
  what.shared = call.shared;
  what.copies = call.copies;
  return what;
}

void require_count(const Collective& what, const at::Tensor& tensor, const char* which,
                   std::size_t wanted) {
  require(static_cast<std::size_t>(tensor.numel()) == wanted, what, [&] {
    return str("the ", which, " has ", tensor.numel(), " elements; must be ", wanted,
               " (a buffer of ", what.count, " is split into shards of ceil(count / ranks))");
  });
}

}  // namespace

Work Group::all_reduce(const at::Tensor& x, const Call& call) const {
  return all_reduce(x, x, call);
}

Work Group::all_reduce(const at::Tensor& out, const at::Tensor& in, const Call& call) const {
  Collective what = make(Op::all_reduce, in, -1, call);
  require_count(what, out, "output", what.count);
  return submit(std::move(what), out, in);
}

Work Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in, const Call& call) const {
  Collective what = make(Op::reduce_scatter, in, -1, call);
  const bool in_place = what.parts && out.const_data_ptr() == in.const_data_ptr();
  require(what.copies == 1 || (what.copies > 1 && shares_memory() && size() % what.copies == 0),
          what, [] {
            return "copies of shards require ranks that share memory, and their number must "
                   "divide the number of ranks";
          });
  require_count(what, out, "output", in_place ? what.count : own_count(what, size(), rank()));
  return submit(std::move(what), out, in);
}

Work Group::all_gather(const at::Tensor& out, const at::Tensor& in, const Call& call) const {
  Collective what = make(Op::all_gather, out, -1, call);
  const bool in_place = what.parts && out.const_data_ptr() == in.const_data_ptr();
  require_count(what, in, "input", in_place ? what.count : own_count(what, size(), rank()));
  return submit(std::move(what), out, in);
}

Work Group::broadcast(const at::Tensor& x, int root, const Call& call) const {
  return submit(make(Op::broadcast, x, root, call), x, x);
}

Work Group::reduce(const at::Tensor& x, int root, const Call& call) const {
  return submit(make(Op::reduce, x, root, call), x, x);
}

Work Group::all_to_all(const at::Tensor& out, const at::Tensor& in, const Call& call) const {
  Collective what = make(Op::all_to_all, in, -1, call);
  const std::size_t own = shard_of(what.count, size(), rank()).size;
  require_count(what, out, "output", own * static_cast<std::size_t>(size()));
  return submit(std::move(what), out, in);
}

Work Group::all_to_all(const at::Tensor& out, const at::Tensor& in,
                       const std::vector<std::size_t>& out_counts,
                       const std::vector<std::size_t>& in_counts, const Call& call) const {
  Collective what = make(Op::all_to_all, in, -1, call);
  what.counts = std::make_shared<const ExchangeCounts>(ExchangeCounts{in_counts, out_counts});
  check_counts(what, size(), rank());
  const auto elements = static_cast<std::size_t>(out.numel());
  const std::size_t received = received_count(what, size(), rank());
  const std::size_t largest = *std::max_element(out_counts.begin(), out_counts.end());
  require(received == elements && largest <= elements, what, [&] {
    return str("the sum of out_counts is ", received, ", the largest of them ", largest,
               "; the sum must be ", elements, ", the size of the output");
  });
  return submit(std::move(what), out, in);
}

Work Group::send(const at::Tensor& x, int to, const Call& call) const {
  return submit(make(Op::send, x, to, call), {}, x);
}

Work Group::recv(const at::Tensor& x, int from, const Call& call) const {
  return submit(make(Op::recv, x, from, call), x, {});
}

void Group::barrier() const {
  Collective what;
  what.traffic = Traffic::control;
  state_->backend->host().submit(std::move(what), {}).wait();
}

SymmetricTensor Group::symmetric(at::IntArrayRef sizes, at::ScalarType dtype) const {
  const auto count = static_cast<std::size_t>(c10::multiply_integers(sizes));
  return {state_->backend->host().symmetric(count * c10::elementSize(dtype)), sizes, dtype, rank()};
}

std::string Group::name_subset(const std::vector<int>& ranks, const std::string& label) const {
  std::string key = label + "[";
  for (std::size_t i = 0; i < ranks.size(); ++i) key += str(i == 0 ? "" : ",", ranks[i]);
  key += "]";
  if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) {
    throw UsageError(str("rank ", rank(), " called subset ", key, " of group ", name(),
                         " but is not in the list; only ranks in the list may call it"));
  }
  int times = 0;
  {
    std::lock_guard lock(state_->mutex);
    times = state_->subsets[key]++;
  }
  return str(name(), "/", key, times ? str("#", times) : "");
}

Group Group::subset(const std::vector<int>& ranks, const std::string& label) const {
  return Group(state_->backend->subgroup(ranks, name_subset(ranks, label)));
}

Group Group::partition(const std::vector<int>& ranks, const std::string& label) const {
  return Group(state_->backend->partition(ranks, name_subset(ranks, label)));
}

Group Group::split(int color, int key, const std::string& label) const {
  if (simulated() && size() > 1) {
    throw UsageError(
        "split() does not work on the dry backend, which does not know the colors of the other "
        "ranks. Name the members with subset()");
  }
  const auto n = static_cast<std::size_t>(size());
  const std::int32_t mine[2] = {color, key};
  std::vector<std::int32_t> all(2 * n);
  Collective gather;
  gather.op = Op::all_gather;
  gather.dtype = DType::i32;
  gather.traffic = Traffic::control;
  gather.in = mine;
  gather.out = all.data();
  gather.count = all.size();
  gather.label = label;
  state_->backend->host().submit(std::move(gather)).wait();
  if (color < 0) return Group();
  std::vector<int> members;
  for (std::size_t r = 0; r < n; ++r) {
    if (all[2 * r] == color) members.push_back(static_cast<int>(r));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  bool all_in_a_group = true;
  for (std::size_t r = 0; r < n; ++r) all_in_a_group = all_in_a_group && all[2 * r] >= 0;
  return all_in_a_group ? partition(members, label) : subset(members, label);
}

}  // namespace tessera::comm
