#include "tessera/cli/bench_comm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tessera/comm/torch_dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRepetition = 200e-6;  // target minimum duration of a repetition, seconds
constexpr int kMaxRepetitions = 1000;
constexpr int kFewestRepetitions = 5;

// Test values: element i of rank r is (i + r) % kPeriod. The results repeat after kPeriod elements
// too, so buffers can be filled and compared without a second buffer of the same size.
constexpr std::int64_t kPeriod = 8;
using Value = std::function<std::int64_t(std::int64_t i)>;

// Calls `visit` with rows of kPeriod elements of `part`, then its remainder, each with the expected
// values. `first` is the index of the first element of `part`.
void by_rows(const at::Tensor& part, std::int64_t first, const Value& value,
             const std::function<void(at::Tensor, at::Tensor)>& visit) {
  std::array<double, kPeriod> expected;
  for (std::int64_t i = 0; i < kPeriod; ++i) {
    expected[static_cast<std::size_t>(i)] = static_cast<double>(value(first + i));
  }
  const at::Tensor row = at::tensor(expected, at::kDouble).to(part.device(), part.scalar_type());
  const std::int64_t rows = part.numel() / kPeriod, rest = part.numel() % kPeriod;
  if (rows > 0) {
    visit(part.narrow(0, 0, rows * kPeriod).view({rows, kPeriod}), row.expand({rows, kPeriod}));
  }
  if (rest > 0) visit(part.narrow(0, rows * kPeriod, rest), row.narrow(0, 0, rest));
}

void fill(const at::Tensor& part, std::int64_t first, const Value& value) {
  by_rows(part, first, value, [](at::Tensor x, at::Tensor expected) { x.copy_(expected); });
}

bool matches(const at::Tensor& part, std::int64_t first, const Value& value) {
  bool good = true;
  by_rows(part, first, value,
          [&](at::Tensor x, at::Tensor expected) { good = good && at::equal(x, expected); });
  return good;
}

// One operation with its own buffers.
class Case {
 public:
  Case(const comm::Group& group, std::string op, std::string memory, std::int64_t count,
       at::ScalarType dtype)
      : group_(group), op_(std::move(op)), count_(count), on_device_(group.on_device()) {
    const std::int64_t shard = own().second;
    const auto make = [&](std::int64_t size) {
      if (memory == "symmetric") return group_.symmetric({size}, dtype).local();
      return at::zeros({size}, at::dtype(dtype).device(on_device_ ? at::kCUDA : at::kCPU));
    };
    if (op_ == "barrier") return;
    const bool whole_in = op_ != "all_gather";
    in_ = make(whole_in ? count : shard_stride());
    in_ = in_.narrow(0, 0, whole_in ? count : shard);
    if (op_ == "reduce_scatter") out_ = make(shard_stride()).narrow(0, 0, shard);
    if (op_ == "all_gather" || op_ == "send_recv") out_ = make(count);
    if (op_ == "all_to_all") {
      out_ = make(shard_stride() * group_.size()).narrow(0, 0, shard * group_.size());
    }
  }

  void run(int calls) const {
    for (int i = 0; i < calls; ++i) call();
    if (on_device_) {
      c10::impl::VirtualGuardImpl device(at::kCUDA);
      device.synchronizeDevice(device.getDevice().index());
    }
  }

  bool check() const {
    if (op_ == "barrier") return true;
    const int rank = group_.rank(), ranks = group_.size();
    const auto input_of = [](int r) { return [r](std::int64_t i) { return (i + r) % kPeriod; }; };
    const auto summed = [=](std::int64_t i) {
      std::int64_t sum = 0;
      for (int r = 0; r < ranks; ++r) sum += (i + r) % kPeriod;
      return sum;
    };
    const auto [begin, shard] = own();
    fill(in_, op_ == "all_gather" ? begin : 0, input_of(rank));
    group_.barrier();
    run(1);
    if (op_ == "all_reduce") return matches(in_, 0, summed);
    if (op_ == "reduce") return rank != 0 || matches(in_, 0, summed);
    if (op_ == "broadcast") return matches(in_, 0, input_of(0));
    if (op_ == "reduce_scatter") return matches(out_, begin, summed);
    if (op_ == "send_recv") return matches(out_, 0, input_of((rank + ranks - 1) % ranks));
    bool good = true;
    for (int r = 0; r < ranks; ++r) {
      const auto from = comm::shard_of(static_cast<std::size_t>(count_), ranks, r);
      const auto first = static_cast<std::int64_t>(from.begin);
      good = good &&
             (op_ == "all_gather" ? matches(out_.narrow(0, std::min(first, count_),
                                                        static_cast<std::int64_t>(from.size)),
                                            first, input_of(r))
                                  : matches(out_.narrow(0, r * shard, shard), begin, input_of(r)));
    }
    return good;
  }

  // Zeros do not overflow when they are summed in place repeatedly.
  void clear() const {
    if (in_.defined()) in_.zero_();
  }

 private:
  std::pair<std::int64_t, std::int64_t> own() const {
    const auto shard =
        comm::shard_of(static_cast<std::size_t>(count_), group_.size(), group_.rank());
    return {static_cast<std::int64_t>(shard.begin), static_cast<std::int64_t>(shard.size)};
  }
  std::int64_t shard_stride() const {
    return static_cast<std::int64_t>(
        comm::shard_stride(static_cast<std::size_t>(count_), group_.size()));
  }

  void call() const {
    const int rank = group_.rank(), ranks = group_.size();
    if (op_ == "all_reduce") {
      group_.all_reduce(in_).wait();
    } else if (op_ == "reduce_scatter") {
      group_.reduce_scatter(out_, in_).wait();
    } else if (op_ == "all_gather") {
      group_.all_gather(out_, in_).wait();
    } else if (op_ == "broadcast") {
      group_.broadcast(in_, 0).wait();
    } else if (op_ == "reduce") {
      group_.reduce(in_, 0).wait();
    } else if (op_ == "all_to_all") {
      group_.all_to_all(out_, in_).wait();
    } else if (op_ == "send_recv") {
      const comm::Work sent = group_.send(in_, (rank + 1) % ranks);
      group_.recv(out_, (rank + ranks - 1) % ranks).wait();
      sent.wait();
    } else {
      group_.barrier();
    }
  }

  const comm::Group group_;
  const std::string op_;
  const std::int64_t count_;
  const bool on_device_;
  at::Tensor in_, out_;
};

// Returns the maximum over the ranks, element by element.
std::vector<double> slowest(const comm::Group& group, const std::vector<double>& mine) {
  at::Tensor all = at::tensor(mine, at::kDouble);
  group.all_reduce(all, {comm::ReduceOp::max, comm::Traffic::control, "bench times"}).wait();
  const double* begin = all.const_data_ptr<double>();
  return {begin, begin + all.numel()};
}

// Returns the seconds of each repetition on its slowest rank, in ascending order.
std::vector<double> measure(const comm::Group& group, const Case& what,
                            const BenchOptions& options) {
  const auto time = [&](int calls) {
    group.barrier();
    const auto begin = Clock::now();
    what.run(calls);
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  time(3);
  const double once = slowest(group, {time(3)}).front();
  const int calls = static_cast<int>(std::clamp(std::ceil(kRepetition / once), 1.0, 1000.0));
  const int fitting = static_cast<int>(
      std::clamp<double>(options.seconds / (once * calls), kFewestRepetitions, kMaxRepetitions));
  const int repetitions = options.repeat > 0 ? options.repeat : fitting;
  std::vector<double> mine;
  for (int i = 0; i < repetitions; ++i) mine.push_back(time(calls));
  std::vector<double> all = slowest(group, mine);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

std::vector<std::string> bench_operations() {
  return {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
          "reduce",     "all_to_all",     "send_recv",  "barrier"};
}

void check_sizes(const BenchOptions& options) {
  const auto element = static_cast<std::int64_t>(comm::size_of(options.dtype));
  for (const std::int64_t size : options.sizes) {
    if (size >= element && size % element == 0) continue;
    throw UsageError(Flag("sizes"), str("got ", size, " bytes; must be a multiple of the ", element,
                                        " bytes of a ", comm::name(options.dtype), " element"));
  }
}

std::vector<BenchResult> bench_comm(const comm::Group& group, const BenchOptions& options,
                                    const BenchProgress& progress) {
  check_sizes(options);
  const auto element = static_cast<std::int64_t>(comm::size_of(options.dtype));
  std::vector<BenchResult> plan;
  for (const std::string& op : options.ops) {
    if (op == "barrier") {
      plan.push_back({op, group.backend(), "ordinary", comm::name(options.dtype), group.size()});
      continue;
    }
    for (const std::int64_t size : options.sizes) {
      for (const std::string& memory : options.memories) {
        plan.push_back(
            {op, group.backend(), memory, comm::name(options.dtype), group.size(), size});
      }
    }
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    BenchResult& result = plan[i];
    const std::string what =
        str(result.op, " ", format_bytes(result.bytes, ByteUnits::kBinary), " ", result.memory);
    if (progress) progress(static_cast<int>(i), static_cast<int>(plan.size()), what);
    const Case measured(group, result.op, result.memory, result.bytes / element,
                        comm::to_scalar_type(options.dtype));
    if (!measured.check()) {
      throw Error(str("rank ", group.rank(), " of ", group.size(), ": ", what,
                      " gave a wrong result over ", result.backend, "; it was not timed"));
    }
    measured.clear();
    const std::vector<double> times = measure(group, measured, options);
    result.ms = times[times.size() / 2] * 1e3;
    result.min_ms = times.front() * 1e3;
  }
  return plan;
}

std::string bench_json(const std::vector<BenchResult>& results) {
  std::vector<std::string> lines;
  for (const BenchResult& result : results) {
    nlohmann::ordered_json json = {
        {"op", result.op},       {"backend", result.backend}, {"memory", result.memory},
        {"dtype", result.dtype}, {"ranks", result.ranks},     {"bytes", result.bytes},
        {"ms", result.ms},       {"min_ms", result.min_ms},   {"gb_per_s", result.gb_per_s()}};
    lines.push_back("  " + json.dump());
  }
  return "[\n" + join(lines, ",\n") + "\n]\n";
}

std::string bench_table(const std::vector<BenchResult>& results) {
  if (results.empty()) return "";
  std::ostringstream out;
  out.imbue(std::locale::classic());
  const BenchResult& first = results.front();
  out << first.backend << ", " << first.ranks << " ranks, " << first.dtype
      << ". Times are of the slowest rank; GB/s is the size of the whole buffer over the median.\n";
  const auto row = [&](const auto& op, const auto& memory, const auto& size, const auto& median,
                       const auto& least, const auto& rate) {
    out << std::left << std::setw(16) << op << std::setw(11) << memory << std::right << std::setw(9)
        << size << std::setw(13) << median << std::setw(13) << least << std::setw(10) << rate
        << "\n";
  };
  row("operation", "memory", "size", "median ms", "least ms", "GB/s");
  for (const BenchResult& result : results) {
    row(result.op, result.bytes > 0 ? result.memory : "-",
        format_bytes(result.bytes, ByteUnits::kBinary), fixed(result.ms, 4),
        fixed(result.min_ms, 4), result.bytes > 0 ? fixed(result.gb_per_s(), 2) : "-");
  }
  return out.str();
}

}  // namespace tessera::cli
