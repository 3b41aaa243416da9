// Elementwise optimizers whose state is stored in records: AdamW's moments with fewer than 32 bits,
// and state outside the memory of the device. [Note: records] in core/state_layout.h.

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/half.h"
#include "tessera/core/philox.h"
#include "tessera/kernels/layers.h"
#include "tessera/kernels/moments.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/nn/parallel_for.h"
#include "tessera/zero/optimizers.h"
#include "tessera/zero/state_storage.h"

namespace tessera::zero {
namespace {

using kernels::kMomentBlock;
using kernels::kMomentBlockBytes;
using kernels::MomentCode;

// Elements that a thread decodes, updates and encodes at a time, in its cache.
constexpr std::int64_t kTile = 2048;
constexpr std::int64_t kTilesPerThread = 8;

std::int64_t whole_blocks(std::int64_t elements) {
  return (elements + kShardAlign - 1) / kShardAlign * kShardAlign;
}

// One state of a record: the master copy or a moment. Offsets and counts are multiples of a block.
struct StateKind {
  std::string name;
  OptimizerState format = OptimizerState::fp32;
  MomentCode code = MomentCode::plain;

  std::int64_t bytes(std::int64_t elements) const {
    return static_cast<std::int64_t>(bytes_per_moment(format) * static_cast<double>(elements));
  }
  // Type in which checkpoints store the values. It represents them exactly: a code of a first
  // moment has 7 bits, and the square of one of a second moment has 16.
  at::ScalarType exchanged() const {
    const bool narrow = format == OptimizerState::bf16 ||
                        (format == OptimizerState::int8 && code == MomentCode::plain);
    return narrow ? at::kBFloat16 : at::kFloat;
  }
};

// Elements [begin, begin + count) of this rank's elements of a parameter. In the storage its states
// follow one another, each padded to whole blocks.
struct Record {
  int param = 0;
  std::int64_t begin = 0, count = 0;
  std::int64_t offset = 0;  // in the storage

  std::int64_t padded() const { return whole_blocks(count); }
};

class RecordUpdate final : public Update {
 public:
  RecordUpdate(const rules::Elementwise& how, const UpdateContext& context)
      : Update(context),
        rule_(std::visit([](const auto& r) { return rules::Rule(r); }, how)),
        offloaded_(context.options.offload.optimizer != StatePlacement::device),
        records_(plan_.params.size()) {
    std::visit(
        [this, &context](const auto& r) {
          default_lr_ = r.lr;
          weight_decay_ = r.weight_decay;
          settings_ = settings_text(r);
          for (const std::string& name : r.states()) {
            states_.push_back({name, context.options.optimizer_state,
                               states_.empty() ? MomentCode::plain : MomentCode::root});
          }
        },
        how);
    for (const Param& p : plan_.params) {
      if (p.bucket >= 0) check_type(p, context.options);
    }
    make_records();
    storage_ = make_state_storage(context.options.offload.optimizer, context.options.offload.dir,
                                  bytes_, largest_, buffers_);
  }

  void apply(const Reducer& reducer, const std::vector<bool>& used, const StepSettings& settings,
             double scale) override {
    const at::NoGradGuard no_grad;
    const double decay = settings.weight_decay.value_or(weight_decay_);
    ++steps_;
    std::vector<ByteRange> ranges;
    std::vector<const Record*> records;
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      if (plan_.params[i].bucket < 0 || !used[i]) continue;
      ++updates_[i];
      for (const Record& record : records_[i]) {
        ranges.push_back(range_of(record));
        records.push_back(&record);
      }
    }
    int current = -1;
    ShardTensors shard;
    rules::Step step;
    storage_->update(ranges, [&](std::size_t i, std::byte* memory) {
      const int index = records[i]->param;
      if (std::exchange(current, index) != index) {
        shard = tensors(index, reducer);
        step = step_of(index, settings.lr_of(index), decay, scale);
      }
      update_record(*records[i], step, shard, memory);
    });
  }

  std::vector<std::pair<std::string, at::Tensor>> states(int) const override { return {}; }
  std::vector<StoredState> stored_states(int index) override {
    std::vector<StoredState> result;
    for (const StateKind& kind : states_) result.push_back(stored(index, kind.name));
    return result;
  }
  std::optional<StoredState> stored_master(int index) override {
    if (!offloaded_ || !has_master(index)) return std::nullopt;
    return stored(index, "param");
  }
  at::Tensor read_master(int index) const override {
    if (!offloaded_ || !has_master(index)) return master_shard(index);
    const at::Tensor values = at::empty({held(param(index)).size}, at::kFloat);
    transfer(index, kMaster, 0, values.numel(),
             [&](ByteRange range, std::int64_t at, std::int64_t) {
               storage_->read(range, bytes_at<float>(values, at));
             });
    return values;
  }
  void write_master(int index, std::int64_t begin, const at::Tensor& values) override {
    if (!has_master(index)) return;
    if (!offloaded_) {
      master_shard(index).narrow(0, begin, values.numel()).copy_(values);
      return;
    }
    const at::Tensor host = values.to(at::kFloat).contiguous();
    transfer(index, kMaster, begin, host.numel(),
             [&](ByteRange range, std::int64_t at, std::int64_t) {
               storage_->write(range, bytes_at<float>(host, at));
             });
  }

  std::string settings() const override { return settings_; }
  double weight_decay() const override { return weight_decay_; }

 private:
  static constexpr int kMaster = -1;  // index of the master copy among the states of a record

  void check_type(const Param& p, const EngineOptions& options) const {
    const Space& space = space_of(p);
    const std::string wanted = options.optimizer_state != OptimizerState::fp32
                                   ? str("optimizer_state ", name(options.optimizer_state))
                                   : std::string("offload of the optimizer");
    if (!space.device.is_cpu()) {
      throw UsageError(str(wanted, ": parameter ", quote(p.name), " is on ", space.device.str(),
                           ", must be on the CPU: the kernels for GPUs update fp32 state in their "
                           "memory only. Use optimizer_state fp32 without offload there"));
    }
    if (space.dtype == at::kFloat || space.dtype == at::kBFloat16) return;
    throw UsageError(str(wanted, ": parameter ", quote(p.name), " is ", c10::toString(space.dtype),
                         ", must be fp32 or bf16. Use optimizer_state fp32 without offload, or "
                         "convert the model"));
  }

  bool has_master(int index) const {
    const Space& space = space_of(param(index));
    return space.trainable && space.master;
  }
  bool master_in_records(int index) const { return offloaded_ && has_master(index); }

  // Returns the bytes of the states before `state` in a record; `state` may be one past the last.
  std::int64_t bytes_before(const Record& record, int state) const {
    std::int64_t bytes = 0;
    if (state > kMaster && master_in_records(record.param)) bytes += 4 * record.padded();
    for (int s = 0; s < state; ++s) {
      bytes += states_[static_cast<std::size_t>(s)].bytes(record.padded());
    }
    return bytes;
  }
  ByteRange range_of(const Record& record) const {
    return {record.offset, bytes_before(record, static_cast<int>(states_.size()))};
  }

  void make_records() {
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      if (p.bucket < 0) continue;
      // All of the padded elements: the bytes are those that the planner computes.
      const std::int64_t all = sharded_ ? p.shard : p.shard * space_of(p).ranks();
      const std::int64_t most = offloaded_ ? kRecordElements : all;
      for (std::int64_t begin = 0; begin < all; begin += most) {
        Record record{static_cast<int>(i), begin, std::min(most, all - begin), bytes_};
        const ByteRange range = range_of(record);
        bytes_ += range.bytes;
        largest_ = std::max(largest_, range.bytes);
        record.count = std::clamp<std::int64_t>(held(p).size - begin, 0, record.count);
        if (record.count > 0) records_[i].push_back(record);
      }
    }
  }

  // Returns the values of a state in fp32: in place, or decoded to `scratch`.
  static float* decoded(const StateKind& kind, std::byte* stored, std::int64_t count,
                        float* scratch) {
    const auto blocks = static_cast<std::size_t>(whole_blocks(count)) / kMomentBlock;
    switch (kind.format) {
      case OptimizerState::fp32: return reinterpret_cast<float*>(stored);
      case OptimizerState::bf16:
        kernels::widen(reinterpret_cast<const std::uint16_t*>(stored), scratch,
                       static_cast<std::size_t>(count));
        break;
      case OptimizerState::int8: kernels::decode_moments(kind.code, stored, scratch, blocks); break;
    }
    return scratch;
  }

  static void encode(const StateKind& kind, const float* values, std::byte* stored,
                     std::int64_t count, const kernels::MomentNoise& noise) {
    const auto blocks = static_cast<std::size_t>(whole_blocks(count)) / kMomentBlock;
    switch (kind.format) {
      case OptimizerState::fp32: break;  // updated in place
      case OptimizerState::bf16:
        kernels::round_to_bf16_stochastic(values, reinterpret_cast<std::uint16_t*>(stored),
                                          static_cast<std::size_t>(count), noise.begin,
                                          noise.stream, noise.seed, noise.step);
        break;
      case OptimizerState::int8:
        kernels::encode_moments(kind.code, values, stored, blocks, noise);
        break;
    }
  }

  void update_record(const Record& record, const rules::Step& step, const ShardTensors& shard,
                     std::byte* memory) const {
    std::uint64_t streams[2] = {};
    std::byte* sections[2] = {};
    for (std::size_t s = 0; s < states_.size(); ++s) {
      streams[s] = stream_of(str(param(record.param).name, "/", states_[s].name));
      sections[s] = memory + bytes_before(record, static_cast<int>(s));
    }
    const auto size = static_cast<std::int64_t>(shard.param.element_size());
    const auto grad_size = static_cast<std::int64_t>(shard.grad.element_size());
    kernels::ParamShard all;
    all.param_type = *kernel_type(shard.param);
    all.grad_type = *kernel_type(shard.grad);
    all.stream = shard.stream;
    all.seed = shard.seed;
    float* const master = master_in_records(record.param) ? reinterpret_cast<float*>(memory)
                          : shard.master.defined() ? shard.master.data_ptr<float>() + record.begin
                                                   : nullptr;
    auto* const params = static_cast<std::byte*>(shard.param.data_ptr()) + record.begin * size;
    const auto* const grads =
        static_cast<const std::byte*>(shard.grad.const_data_ptr()) + record.begin * grad_size;
    const auto tile = [&](std::int64_t from) {
      const std::int64_t count = std::min(kTile, record.count - from);
      const auto begin = static_cast<std::uint64_t>(shard.begin + record.begin + from);
      alignas(64) float scratch[2][kTile];
      float* values[2] = {};
      for (std::size_t s = 0; s < states_.size(); ++s) {
        values[s] = decoded(states_[s], sections[s] + states_[s].bytes(from), count, scratch[s]);
      }
      kernels::ParamShard mine = all;
      mine.param = params + from * size;
      mine.master = master == nullptr ? nullptr : master + from;
      mine.grad = grads + from * grad_size;
      mine.count = static_cast<std::size_t>(count);
      mine.begin = begin;
      kernels::update(rule_, step, mine, values[0], values[1]);
      for (std::size_t s = 0; s < states_.size(); ++s) {
        encode(states_[s], values[s], sections[s] + states_[s].bytes(from), count,
               {begin, streams[s], seed_, step.count});
      }
    };
    nn::parallel_for(0, (record.count + kTile - 1) / kTile, kTilesPerThread,
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t t = first; t < last; ++t) tile(t * kTile);
                     });
  }

  // ---- access to single states, for checkpoints ----

  template <class T>
  static std::byte* bytes_at(const at::Tensor& values, std::int64_t index) {
    return reinterpret_cast<std::byte*>(values.data_ptr<T>() + index);
  }

  // Calls body(range, at, count) for the ranges of elements [begin, begin + count) of a state:
  // `count` elements, `at` from `begin`. Of 8-bit moments the elements must be whole blocks.
  template <class Body>
  void transfer(int index, int state, std::int64_t begin, std::int64_t count,
                const Body& body) const {
    const StateKind master{};
    const StateKind& kind = state == kMaster ? master : states_[static_cast<std::size_t>(state)];
    for (const Record& record : records_[static_cast<std::size_t>(index)]) {
      const std::int64_t from = std::max(begin, record.begin);
      const std::int64_t to = std::min(begin + count, record.begin + record.padded());
      if (from >= to) continue;
      body(ByteRange{record.offset + bytes_before(record, state) + kind.bytes(from - record.begin),
                     kind.bytes(to - from)},
           from - begin, to - from);
    }
  }

  StoredState stored(int index, const std::string& name) {
    int state = kMaster;
    for (std::size_t s = 0; s < states_.size(); ++s) {
      if (states_[s].name == name) state = static_cast<int>(s);
    }
    const StateKind kind =
        state == kMaster ? StateKind{} : states_[static_cast<std::size_t>(state)];
    StoredState result;
    result.state = name;
    result.type = kind.exchanged();
    result.count = held(param(index)).size;
    if (kind.format == OptimizerState::int8) {
      result.read = [=, this](std::int64_t begin, std::int64_t count, std::byte* into) {
        read_blocks(index, state, begin, count, into);
      };
      result.write = [=, this, cleared = false](std::int64_t begin, std::int64_t count,
                                                const std::byte* from) mutable {
        // Elements that are written later must not keep the exponent of their old values.
        if (!std::exchange(cleared, true)) clear(index, state);
        write_blocks(index, state, begin, count, from);
      };
      return result;
    }
    const std::int64_t size = kind.bytes(kMomentBlock) / static_cast<std::int64_t>(kMomentBlock);
    result.read = [=, this](std::int64_t begin, std::int64_t count, std::byte* into) {
      transfer(index, state, begin, count, [&](ByteRange range, std::int64_t at, std::int64_t) {
        storage_->read(range, into + at * size);
      });
    };
    result.write = [=, this](std::int64_t begin, std::int64_t count, const std::byte* from) {
      transfer(index, state, begin, count, [&](ByteRange range, std::int64_t at, std::int64_t) {
        storage_->write(range, from + at * size);
      });
    };
    return result;
  }

  void clear(int index, int state) {
    transfer(index, state, 0, whole_blocks(held(param(index)).size),
             [&](ByteRange range, std::int64_t, std::int64_t) {
               const std::vector<std::byte> zeros(static_cast<std::size_t>(range.bytes));
               storage_->write(range, zeros.data());
             });
  }

  // Calls body(values, from, count, at) with the decoded elements [from, from + count) of tiles
  // that cover [begin, begin + count): element `from` of `values` is element begin + `at`. If
  // `write`, the values are stored again.
  template <class Body>
  void with_blocks(int index, int state, std::int64_t begin, std::int64_t count, bool write,
                   const Body& body) {
    const StateKind& kind = states_[static_cast<std::size_t>(state)];
    const std::int64_t end = begin + count;
    const std::int64_t first = begin / kShardAlign * kShardAlign, last = whole_blocks(end);
    std::byte stored[kTile / kMomentBlock * kMomentBlockBytes];
    float values[kTile];
    for (std::int64_t at = first; at < last; at += kTile) {
      const std::int64_t size = std::min(kTile, last - at);
      const auto blocks = static_cast<std::size_t>(size) / kMomentBlock;
      transfer(index, state, at, size, [&](ByteRange range, std::int64_t from, std::int64_t) {
        storage_->read(range, stored + kind.bytes(from));
      });
      kernels::decode_moments(kind.code, stored, values, blocks);
      const std::int64_t from = std::max(begin, at), to = std::min(end, at + size);
      body(values + (from - at), to - from, from - begin);
      if (!write) continue;
      kernels::encode_moments_nearest(kind.code, values, stored, blocks);
      transfer(index, state, at, size, [&](ByteRange range, std::int64_t from, std::int64_t) {
        storage_->write(range, stored + kind.bytes(from));
      });
    }
  }

  void read_blocks(int index, int state, std::int64_t begin, std::int64_t count, std::byte* into) {
    const bool narrow = states_[static_cast<std::size_t>(state)].exchanged() == at::kBFloat16;
    with_blocks(index, state, begin, count, false,
                [&](const float* values, std::int64_t size, std::int64_t at) {
                  for (std::int64_t i = 0; i < size; ++i) {
                    if (narrow) {
                      reinterpret_cast<std::uint16_t*>(into)[at + i] = to_bf16(values[i]);
                    } else {
                      reinterpret_cast<float*>(into)[at + i] = values[i];
                    }
                  }
                });
  }

  void write_blocks(int index, int state, std::int64_t begin, std::int64_t count,
                    const std::byte* from) {
    const bool narrow = states_[static_cast<std::size_t>(state)].exchanged() == at::kBFloat16;
    with_blocks(
        index, state, begin, count, true, [&](float* values, std::int64_t size, std::int64_t at) {
          for (std::int64_t i = 0; i < size; ++i) {
            values[i] = narrow ? from_bf16(reinterpret_cast<const std::uint16_t*>(from)[at + i])
                               : reinterpret_cast<const float*>(from)[at + i];
          }
        });
  }

  const rules::Rule rule_;
  const bool offloaded_;
  std::vector<StateKind> states_;  // of the rule
  double weight_decay_ = 0;
  std::string settings_;
  std::vector<std::vector<Record>> records_;  // by parameter
  std::int64_t bytes_ = 0, largest_ = 0;
  std::unique_ptr<StateStorage> storage_;
};

}  // namespace

std::unique_ptr<Update> make_record_update(const rules::Elementwise& how,
                                           const UpdateContext& context) {
  return std::make_unique<RecordUpdate>(how, context);
}

}  // namespace tessera::zero
