#include "tessera/comm/nccl/backend.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "tessera/comm/call_log.h"
#include "tessera/comm/capture.h"
#include "tessera/comm/count_matrix.h"
#include "tessera/comm/local_peers.h"
#include "tessera/comm/nccl/progress.h"
#include "tessera/comm/record.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {
namespace {

int device_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
}

// Description of a rank, exchanged before a group is created.
struct RankInfo {
  std::int32_t rank = 0;  // in the job
  std::uint8_t deterministic = 0;
  std::uint8_t check = 0;
  std::uint8_t unused[2] = {};
  UniqueId id{};           // of the communicator; set by the first rank
  char version[16] = {};   // of NCCL
  char problem[232] = {};  // reason why this rank cannot use NCCL; "" if it can
};
static_assert(sizeof(RankInfo) == 384, "no padding: it is sent between processes");

constexpr int kCountsCompared = 64;  // ranks of the largest group whose counts are compared

constexpr const char* kCheckNames[] = {"no calls", "new calls", "every call"};

void put(char* to, std::size_t size, const std::string& text) {
  to[text.copy(to, size - 1)] = '\0';
}

Collective bytes_call(Op op, void* in, void* out, std::size_t bytes, int peer, const char* label) {
  return {op, DType::u8, ReduceOp::sum, Traffic::control, in, out, bytes, peer, label};
}

std::vector<RankInfo> exchange_rank_info(Backend& host, const RankInfo& own, TrafficMeter& meter) {
  std::vector<RankInfo> all(static_cast<std::size_t>(host.size()));
  RankInfo& mine = all[static_cast<std::size_t>(host.rank())] = own;
  Collective gather = bytes_call(Op::all_gather, &mine, all.data(), all.size() * sizeof(RankInfo),
                                 -1, "start of nccl");
  meter.charge(gather, host.size(), host.rank());
  host.submit(std::move(gather)).wait();
  for (const RankInfo& each : all) {
    if (each.problem[0] != '\0') {
      throw UsageError(
          str("group ", host.name(), " cannot use nccl: rank ", each.rank, ": ", each.problem));
    }
  }
  for (const RankInfo& each : all) {
    const bool same = each.deterministic == own.deterministic && each.check == own.check &&
                      std::strcmp(each.version, own.version) == 0;
    if (same) continue;
    const auto text = [](const RankInfo& of) {
      return str("rank ", of.rank, " has NCCL ", of.version, ", deterministic ",
                 of.deterministic != 0, ", compares ", kCheckNames[of.check % 3]);
    };
    throw UsageError(str("group ", host.name(), " over nccl: ", text(own), ", but ", text(each),
                         "; all ranks must have the same"));
  }
  return all;
}

class NcclBackend final : public Backend {
 public:
  // `parent` is null, or a group all of whose ranks are creating such a group now. Its communicator
  // is then split.
  NcclBackend(std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers, int device,
              GroupOptions options, NcclOptions nccl, std::shared_ptr<LaunchOrder> order,
              NcclBackend* parent = nullptr)
      : host_(std::move(host)),
        peers_(std::move(peers)),
        device_(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
        options_(options),
        nccl_(nccl),
        order_(std::move(order)),
        meter_(std::make_shared<TrafficMeter>()) {
    RankInfo own;
    own.rank = peers_ ? peers_->rank() : host_->rank();
    own.deterministic = nccl_.deterministic;
    own.check = static_cast<std::uint8_t>(nccl_.check);
    put(own.version, sizeof(own.version), version());
    put(own.problem, sizeof(own.problem), problem());
    const bool first = host_->rank() == 0;
    if (first && parent == nullptr && own.problem[0] == '\0') new_id(own.id);
    const std::vector<RankInfo> all = exchange_rank_info(*host_, own, agreements_);
    at::globalContext().lazyInitDevice(c10::kCUDA);
    start(all, parent);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string kind() const override { return "nccl"; }
  std::string name() const override { return host_->name(); }
  bool on_device() const override { return true; }
  bool takes_parts() const override { return true; }
  Backend& host() override { return *host_; }

  // Includes traffic through host memory, except that of agreements.
  TrafficCounts traffic() const override {
    const TrafficCounts host = host_->traffic() - agreements_.counts();
    TrafficCounts sum = meter_->counts();
    sum.sent_bytes += host.sent_bytes;
    sum.control_bytes += host.control_bytes;
    sum.copied_bytes += host.copied_bytes;
    sum.busy_ns += host.busy_ns;
    for (std::size_t op = 0; op < sum.calls.size(); ++op) sum.calls[op] += host.calls[op];
    return sum;
  }

  void add_traffic(const TrafficCounts& counts) override { meter_->add(counts); }

  Work submit(Collective call, Attachments attachments) override {
    if (call.op == Op::barrier) return host_->submit(std::move(call), std::move(attachments));
    check(call, size(), rank());
    if (attachments.before || attachments.after) {
      throw UsageError(str(describe(call),
                           " over nccl cannot run functions before or after it: "
                           "it runs on the GPU. Order them by streams and events"));
    }
    check_device(call, call.in, call.count);
    if (call.out != call.in) {
      check_device(call, call.out, call.counts ? received_count(call, size(), rank()) : call.count);
    }
    // The agreements must have the same order as the calls on the GPU.
    std::lock_guard lock(mutex_);
    meter_->charge(call, size(), rank());
    Submission submission;
    submission.record = make_record(call);
    submission.keep = std::move(attachments.keep);
    submission.ran = std::move(attachments.ran);
    submission.call = std::move(call);
    const bool captured = capturing_on(device_);
    if (is_point_to_point(submission.call.op)) return message(std::move(submission), captured);
    submission.number = captured ? 0 : ++sequence_;
    const std::uint64_t key = CallLog::key(submission.record, CallLog::Kind::collectives);
    submission.connects = !captured && size() > 1 && agreed_->is_new(key);
    if (must_agree(submission.connects, captured)) {
      submission.prepare = agree(submission.call, submission.record, submission.number, key);
    }
    return progress_->submit(*collectives_, std::move(submission));
  }

  std::shared_ptr<void> register_buffer(void* data, std::size_t bytes) override {
    std::lock_guard lock(mutex_);
    return size() == 1 ? nullptr : progress_->register_buffer(*collectives_, data, bytes);
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    return host_->symmetric(bytes);
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return std::make_shared<NcclBackend>(host_->subgroup(members, std::move(name)), peers_,
                                         device_.index(), options_, nccl_, order_);
  }

  std::shared_ptr<Backend> partition(std::span<const int> members, std::string name) override {
    // All ranks decide the same: exchange_rank_info() checked that they have the same version.
    const bool can_split = library().api.comm_split != nullptr;
    return std::make_shared<NcclBackend>(host_->partition(members, std::move(name)), peers_,
                                         device_.index(), options_, nccl_, order_,
                                         can_split ? this : nullptr);
  }

 private:
  bool must_agree(bool is_new, bool captured) const {
    if (captured || size() == 1 || nccl_.check == NcclOptions::Check::never) return false;
    return is_new || nccl_.check == NcclOptions::Check::every_call;
  }

  // Calls that the ranks have agreed on. A rejected call is removed before its caller gets the
  // error, so that the ranks agree on it again.
  class Agreed {
   public:
    // Adds the call. Returns whether it is new.
    bool is_new(std::uint64_t key) {
      const std::lock_guard lock(mutex_);
      // Limits the memory for labels that never repeat. All ranks clear it at the same call.
      if (keys_.size() >= kMaxKeys) keys_.clear();
      return keys_.insert(key).second;
    }
    void forget(std::uint64_t key) {
      const std::lock_guard lock(mutex_);
      keys_.erase(key);
    }

   private:
    static constexpr std::size_t kMaxKeys = 100'000;
    std::mutex mutex_;
    std::unordered_set<std::uint64_t> keys_;
  };

  // One direction between this rank and another.
  struct PeerChannel {
    NcclProgress::Channel* handle = nullptr;
    std::uint64_t messages = 0;
    Agreed agreed;
    UniqueId id{};  // created by the sender; the receiver gets it with the first header
    std::atomic<bool> is_open{false};

    void open() {
      if (is_open.load()) return;
      NcclProgress::open(*handle, id);
      is_open.store(true);
    }
  };
  struct MessageHeader {
    Record record;
    UniqueId id{};
  };

  std::string problem() const {
    if (!available()) return why_not();
    if (device_.index() >= 0 && device_.index() < device_count()) return "";
    return str("its GPU is number ", static_cast<int>(device_.index()), ", but it has ",
               plural(device_count(), "GPU"),
               " (numbers start at 0); start at most one rank per GPU on a host");
  }

  static void new_id(UniqueId& id) {
    const Api& api = library().api;
    api.check(api.get_unique_id(&id), "ncclGetUniqueId");
  }

  void start(const std::vector<RankInfo>& all, NcclBackend* parent) {
    GroupContext context{name(), device_, nccl_.deterministic, options_.timeout, peers_, {},
                         meter_, order_};
    if (!context.peers) context.peers = make_local_peers(1).front();
    for (const RankInfo& each : all) members_.push_back(each.rank);
    context.members = members_;
    if (size() > 1) {
      std::vector<int> everybody;
      for (int r = 0; r < size(); ++r) everybody.push_back(r);
      answers_ = host_->subgroup(everybody, name() + "/answers");
    }
    progress_ = std::make_unique<NcclProgress>(library().api, std::move(context));
    collectives_ = &progress_->add_channel(rank(), size(), NcclProgress::Use::collectives,
                                           {members_, str("turns of ", name())});
    if (compares()) {
      NcclProgress::set_log(*collectives_,
                            std::make_shared<CallLog>(peers_, members_, str("calls of ", name()),
                                                      name(), CallLog::Kind::collectives));
    }
    Submission opening;
    if (parent != nullptr) {
      const int color = all.front().rank, key = rank();
      opening.prepare = [channel = collectives_, from = parent->collectives_, color, key] {
        NcclProgress::open_by_split(*channel, *from, color, key);
      };
    } else {
      opening.prepare = [channel = collectives_, id = all.front().id] {
        NcclProgress::open(*channel, id);
      };
    }
    progress_->submit(*collectives_, std::move(opening)).wait();
  }

  void check_device(const Collective& call, const void* data, std::size_t count) const {
    if (data == nullptr || count == 0) return;
    std::string where = "in host memory";
    try {
      const c10::Device found =
          at::globalContext().getDeviceFromPtr(const_cast<void*>(data), c10::kCUDA);
      if (found == device_) return;
      where = "on " + found.str();
    } catch (const c10::Error&) {
    }
    throw UsageError(str(describe(call), " of group ", name(), " over nccl: the buffer is ", where,
                         "; must be on ", device_.str(), ", the GPU of this rank"));
  }

  bool compares() const { return size() > 1 && nccl_.check != NcclOptions::Check::never; }

  // [Note: agreement] Before a call is launched on the GPU for the first time, every rank sends its
  // record to the others through host memory and waits for theirs. Records are sent in the order of
  // the calls, and received on another thread. So a call that some ranks do not make, or make
  // differently, never reaches a GPU; the ranks stay in step after the error, and the host backend
  // detects a missing rank. Unequal counts of an all_to_all are compared then too. Training repeats
  // the same calls in every step. Those are launched immediately, and the ranks compare them later
  // ([Note: call log]). A difference is then still an error that names the calls, but it ends the
  // job.
  std::function<void()> agree(const Collective& call, const Record& record, std::uint64_t number,
                              std::uint64_t key) {
    // The record of each rank, and its counts. Those have the same size in every agreement, because
    // the calls of the ranks may differ.
    const int ranks = size();
    const bool with_counts = ranks <= kCountsCompared;
    const std::size_t each = sizeof(Record) + (with_counts ? CountMatrix::row_bytes(ranks) : 0);
    auto rows = std::make_shared<std::vector<std::byte>>(as_size(ranks) * each);
    std::byte* own = rows->data() + as_size(rank()) * each;
    std::memcpy(own, &record, sizeof(Record));
    const bool compares_counts = call.counts && with_counts;
    if (compares_counts) CountMatrix::write_row(*call.counts, own + sizeof(Record));
    Collective gather =
        bytes_call(Op::all_gather, own, rows->data(), rows->size(), -1, "agreement over nccl");
    agreements_.charge(gather, ranks, rank());
    const Work gathering = host_->submit(std::move(gather), {.keep = rows});
    return [=, group = name(), agreed = agreed_, what = describe(call), label = call.label] {
      try {
        wait_for_records(gathering, number, what, group);
        std::vector<Record> records(as_size(ranks));
        CountMatrix counts(ranks);
        for (int r = 0; r < ranks; ++r) {
          const std::byte* row = rows->data() + as_size(r) * each;
          std::memcpy(&nth(records, r), row, sizeof(Record));
          if (compares_counts) counts.read_row(r, row + sizeof(Record));
        }
        const auto from = [&](int r) -> const Record& { return nth(records, r); };
        compare_calls(ranks, from, number, group);
        if (compares_counts) counts.check(label, number, group);
      } catch (...) {
        agreed->forget(key);
        throw;
      }
    };
  }

  static void wait_for_records(const Work& gathering, std::uint64_t number, const std::string& call,
                               const std::string& group) {
    try {
      gathering.wait();
    } catch (const PeerError& error) {
      throw PeerError(
          str("#", number, " ", call, " of group ", group, " over nccl: ", error.what()),
          error.rank());
    }
  }

  // The sender's header contains the id of a communicator for these two ranks. Headers are sent
  // through the host group and answers through a second one, because the same two ranks may
  // concurrently exchange messages in the other direction.
  Work message(Submission submission, bool captured) {
    const Collective& call = submission.call;
    const bool sending = call.op == Op::send;
    const int peer = call.peer;
    std::shared_ptr<PeerChannel>& channel = channels_[{peer, sending}];
    if (captured && !(channel && channel->is_open.load())) {
      throw UsageError(
          str(describe(call), " of group ", name(),
              " over nccl: two ranks cannot meet for the first time while a CUDA graph "
              "is captured; exchange a message in this direction before the capture"));
    }
    if (!channel) {
      channel = std::make_shared<PeerChannel>();
      if (sending) new_id(channel->id);
      const int own = job_rank(rank()), other = job_rank(peer);
      const std::string what =
          str(name(), " from rank ", sending ? own : other, " to ", sending ? other : own);
      channel->handle = &progress_->add_channel(sending ? 0 : 1, 2, NcclProgress::Use::messages,
                                                {{own, other}, str("turns of ", what)});
      if (compares()) set_message_log(*channel, peer, sending, what);
    }
    const std::uint64_t key = CallLog::key(submission.record, CallLog::Kind::messages);
    submission.number = captured ? 0 : ++channel->messages;
    submission.connects = !captured && channel->agreed.is_new(key);
    if (must_agree(submission.connects, captured) || submission.number == 1) {
      submission.prepare = agree_on_message(submission, channel, key);
    } else if (!channel->is_open.load()) {  // the agreement on an earlier message is in progress
      submission.prepare = [channel = channel] { channel->open(); };
    }
    submission.call.peer = sending ? 1 : 0;
    return progress_->submit(*channel->handle, std::move(submission));
  }

  int job_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  void set_message_log(PeerChannel& channel, int peer, bool sending,
                       const std::string& what) const {
    const int from = sending ? rank() : peer, to = sending ? peer : rank();
    NcclProgress::set_log(
        *channel.handle,
        std::make_shared<CallLog>(peers_, std::vector<int>{job_rank(from), job_rank(to)},
                                  str("messages of ", what), what, CallLog::Kind::messages));
  }

  std::function<void()> agree_on_message(const Submission& submission,
                                         const std::shared_ptr<PeerChannel>& channel,
                                         std::uint64_t key) {
    const bool sending = submission.call.op == Op::send;
    const int peer = submission.call.peer;
    struct Headers {
      MessageHeader sent, got;
    };
    auto headers = std::make_shared<Headers>();
    headers->sent.record = submission.record;
    if (sending) headers->sent.id = channel->id;
    Collective out = bytes_call(Op::send, &headers->sent, nullptr, sizeof(MessageHeader), peer,
                                "header of a message over nccl");
    Collective in = bytes_call(Op::recv, nullptr, &headers->got, sizeof(MessageHeader), peer,
                               "header of a message over nccl");
    agreements_.charge(sending ? out : in, size(), rank());
    const Attachments with{.keep = headers};
    const Work sent = (sending ? host_ : answers_)->submit(std::move(out), with);
    const Work got = (sending ? answers_ : host_)->submit(std::move(in), with);
    return [=, own = rank(), group = name(), number = submission.number,
            what = describe(submission.call)] {
      try {
        wait_for_records(sent, number, what, group);
        wait_for_records(got, number, what, group);
        if (!sending && number == 1) channel->id = headers->got.id;
        const Record& send = (sending ? headers->sent : headers->got).record;
        const Record& recv = (sending ? headers->got : headers->sent).record;
        const std::string problem =
            compare_message(send, sending ? own : peer, recv, sending ? peer : own, group);
        if (!problem.empty()) throw UsageError(problem);
      } catch (...) {
        channel->agreed.forget(key);
        throw;
      }
      channel->open();
    };
  }

  const std::shared_ptr<Backend> host_;
  const std::shared_ptr<Peers> peers_;
  const c10::Device device_;
  const GroupOptions options_;
  const NcclOptions nccl_;
  const std::shared_ptr<LaunchOrder> order_;
  const std::shared_ptr<TrafficMeter> meter_;
  const std::shared_ptr<Agreed> agreed_ = std::make_shared<Agreed>();
  std::vector<int> members_;  // ranks of the job
  TrafficMeter agreements_;
  std::shared_ptr<Backend> answers_;
  std::mutex mutex_;
  std::uint64_t sequence_ = 0;
  std::map<std::pair<int, bool>, std::shared_ptr<PeerChannel>>
      channels_;  // by peer, and whether this rank sends
  NcclProgress::Channel* collectives_ = nullptr;
  std::unique_ptr<NcclProgress> progress_;  // last, because its threads use the other members
};

}  // namespace

bool available() { return why_not().empty(); }

std::string why_not() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    return "this LibTorch has no CUDA, or its CUDA libraries are not installed; use a CUDA build "
           "of torch";
  }
  if (device_count() == 0) return "CUDA finds no GPU";
  return library().problem;
}

std::string version() { return library().version; }
bool shares_gpus() { return library().number >= 23000; }

std::shared_ptr<Backend> make_backend(std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers,
                                      int device, GroupOptions options, NcclOptions nccl) {
  if (!peers && host->size() > 1) {
    throw UsageError(str("group ", host->name(), " of ", host->size(),
                         " ranks over nccl needs `peers` to detect dead ranks"));
  }
  return std::make_shared<NcclBackend>(std::move(host), std::move(peers), device, options, nccl,
                                       std::make_shared<LaunchOrder>());
}

}  // namespace tessera::comm::nccl
