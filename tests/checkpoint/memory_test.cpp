// Memory of saving and loading besides the state. A replaced operator new counts every allocation
// of a rank. A unit is the parameters of a block with their states.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/ranks.h"

namespace {

struct Count {
  std::atomic<std::int64_t> now{0}, peak{0};
  void add(std::int64_t bytes) {
    const std::int64_t after = now += bytes;
    std::int64_t before = peak;
    while (before < after && !peak.compare_exchange_weak(before, after)) {
    }
  }
};
// Counter of the allocations of this thread; null: not counted.
thread_local Count* counted = nullptr;

// Stored before every allocation, so that it is subtracted from the right counter.
struct Label {
  Count* owner;
  void* begin;
  std::int64_t bytes;
};

void* allocate(std::size_t bytes, std::size_t align) {
  align = std::max(align, alignof(std::max_align_t));
  const std::size_t front = (sizeof(Label) + align - 1) / align * align;
  const std::size_t all = (front + bytes + align - 1) / align * align;
  auto* const begin = static_cast<std::byte*>(std::aligned_alloc(align, all));
  if (begin == nullptr) throw std::bad_alloc();
  const Label label{counted, begin, static_cast<std::int64_t>(bytes)};
  if (label.owner != nullptr) label.owner->add(label.bytes);
  std::memcpy(begin + front - sizeof(Label), &label, sizeof(Label));
  return begin + front;
}
void release(void* memory) {
  if (memory == nullptr) return;
  Label label{};
  std::memcpy(&label, static_cast<std::byte*>(memory) - sizeof(Label), sizeof(Label));
  if (label.owner != nullptr) label.owner->add(-label.bytes);
  std::free(label.begin);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kHidden = 160, kBlocks = 10;

// A GPT of 37 MB; a unit of it has 3.7 MB.
Model many_units() {
  Model model;
  const std::int64_t h = kHidden;
  model.params.push_back({"embed.weight", {256, h}, {{Axis::tp, 0}}});
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = str("blocks.", i, ".");
    model.params.push_back(
        {block + "qkv.weight", {3 * h, h}, {{Axis::tp, 0, {{h, 8}, {h, 8}, {h, 8}}}}});
    model.params.push_back({block + "out.weight", {h, h}, {{Axis::tp, 1}}});
    model.params.push_back({block + "up.weight", {4 * h, h}, {{Axis::tp, 0}}});
    model.params.push_back({block + "down.weight", {h, 4 * h}, {{Axis::tp, 1}}});
    model.params.push_back({block + "norm", {h}});
  }
  model.states = {{"param", DType::f32}, {"moment1", DType::f32}, {"moment2", DType::f32}};
  return model;
}
constexpr std::int64_t kUnit = (12 * kHidden + 1) * kHidden * 12;

struct Layout {
  const char* name;
  Axes mesh;
  bool sharded = true;
};
const std::vector<Layout> kLayouts = {{"alone", "dp=1"},          {"dp 2 whole", "dp=2", false},
                                      {"dp 4", "dp=4"},           {"tp 2", "tp=2"},
                                      {"dp 2 tp 2", "dp=2,tp=2"}, {"pp 2", "pp=2"}};

std::int64_t shard_bytes(const std::vector<Shard>& shards) {
  std::int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += count_of(shard.runs) * bytes_of(shard.dtype);
  return bytes;
}

// The same shards as if in device memory: accessed only through fetch and store.
void move_away(std::vector<Shard>& shards) {
  for (Shard& shard : shards) {
    const std::int64_t size = bytes_of(shard.dtype);
    shard.fetch = [from = shard.data, size](std::int64_t begin, std::int64_t count,
                                            std::byte* into) {
      std::memcpy(into, from + begin * size, static_cast<std::size_t>(count * size));
    };
    shard.data = nullptr;
  }
}
void move_away(std::vector<WantedShard>& wanted) {
  for (WantedShard& want : wanted) {
    const std::int64_t size = bytes_of(want.dtype);
    want.store = [into = want.into, size](std::int64_t begin, std::int64_t count,
                                          const std::byte* from) {
      std::memcpy(into + begin * size, from, static_cast<std::size_t>(count * size));
    };
    want.into = nullptr;
  }
}

enum class Way { at_once, from_elsewhere, background };

// Returns the peak of a rank, without the memory that it may use besides two units.
std::int64_t save_counted(const Model& model, const Layout& layout, const std::string& dir,
                          std::int64_t step, Way way) {
  const auto size = static_cast<std::size_t>(layout.mesh.world());
  std::vector<Count> counts(size), charges(size);
  std::vector<std::int64_t> extra(size);
  Ranks ranks(layout.mesh.world());
  const auto errors = ranks.run([&](const Team& plain) {
    const auto rank = static_cast<std::size_t>(plain.rank);
    RankState state =
        make_rank(model, layout.mesh, plain.rank, layout.sharded, Copies::counted, true);
    if (way == Way::from_elsewhere) move_away(state.shards);
    const Description about = describe_model(model, step, layout.mesh, 2);
    SaveOptions options;
    options.charge = [&](std::int64_t bytes) {
      charges[rank].add(bytes);
      return std::shared_ptr<void>(nullptr, [&, bytes](void*) { charges[rank].add(-bytes); });
    };
    Team team = plain;
    // Also the first callback of a background thread.
    team.broadcast = [&](std::string text) {
      counted = &counts[rank];
      return plain.broadcast(std::move(text));
    };
    std::int64_t snapshot = 0;
    {
      AsyncSaver saver(dir, team, options);
      counted = &counts[rank];
      if (way == Way::background) {
        saver.start(about, state.shards);
        saver.wait();
        snapshot = saver.snapshot_bytes();
        EXPECT_LE(snapshot, shard_bytes(state.shards) + 64 * std::ssize(state.shards));
      } else {
        saver.save_now(about, state.shards);
      }
    }
    counted = nullptr;
    // All memory is charged except texts and tables.
    EXPECT_LE(charges[rank].peak, counts[rank].peak);
    EXPECT_GE(charges[rank].peak, snapshot);
    EXPECT_EQ(charges[rank].now, 0);
    extra[rank] = counts[rank].peak - snapshot;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return *std::max_element(extra.begin(), extra.end());
}

std::int64_t load_counted(const Model& model, const std::string& folder, const Layout& layout,
                          bool elsewhere) {
  std::int64_t most = 0;
  for (int rank = 0; rank < layout.mesh.world(); ++rank) {
    const RankState right = make_rank(model, layout.mesh, rank, layout.sharded, Copies::all, true);
    RankState state = make_rank(model, layout.mesh, rank, layout.sharded, Copies::all, false);
    if (elsewhere) move_away(state.wanted);
    Count count, charge;
    counted = &count;
    {
      Checkpoint from(folder, local_files(), [&](std::int64_t bytes) {
        charge.add(bytes);
        return std::shared_ptr<void>(nullptr, [&, bytes](void*) { charge.add(-bytes); });
      });
      from.load(state.wanted);
    }
    counted = nullptr;
    EXPECT_EQ(state.memory, right.memory) << layout.name << ", rank " << rank;
    EXPECT_EQ(charge.now, 0);
    most = std::max<std::int64_t>(most, count.peak);
  }
  return most;
}

TEST(Memory, SavingAndLoadingUseLessThanTwoUnits) {
  const Model model = many_units();
  std::int64_t saving = 0, loading = 0;
  for (const Layout& from : kLayouts) {
    const TemporaryFolder dir;
    std::int64_t step = 0;
    for (const Way way : {Way::background, Way::from_elsewhere, Way::at_once}) {
      const std::int64_t extra = save_counted(model, from, dir.path, ++step, way);
      EXPECT_LE(extra, 2 * kUnit) << from.name << ", way " << static_cast<int>(way);
      saving = std::max(saving, extra);
    }
    for (const Layout& to : kLayouts) {
      // Each variant for half of them, so that all layouts have both.
      const bool elsewhere = (&from - kLayouts.data() + (&to - kLayouts.data())) % 2 == 1;
      const std::int64_t extra = load_counted(model, find_latest(dir.path).folder, to, elsewhere);
      EXPECT_LE(extra, 2 * kUnit) << from.name << " to " << to.name;
      loading = std::max(loading, extra);
    }
  }
  std::cout << "a unit has " << kUnit << " bytes; saving took " << saving << ", loading " << loading
            << "\n";
  EXPECT_GT(saving, 0);
}

TEST(Memory, ReshardUsesLessThanTwoUnits) {
  const Model model = many_units();
  const TemporaryFolder dir;
  save_counted(model, kLayouts[3], dir / "from", 1, Way::at_once);
  Count count;
  counted = &count;
  {
    Checkpoint from(dir / "from/step-00000001");
    reshard(from, dir / "to", "dp=2");
  }
  counted = nullptr;
  EXPECT_LE(count.peak, 2 * kUnit);
  EXPECT_GT(count.peak, 0);
}

}  // namespace
}  // namespace tessera::checkpoint
