// Compares saving and loading with plain sequential writes and reads of the same number of bytes,
// in turns, with the same number of threads and folder, all synced. Pages are dropped before reads,
// which therefore come from the disk. The state is that of a GPT in fp32 with two moments, sharded
// by rank.
//   checkpoint_bench [--dir .] [--layers 6] [--hidden 1024] [--vocab 8192] [--ranks 2] [--rounds 3]
//                    [--first 0] [--only plain|checkpoint] [--json]
// --first selects the first operation of the first round; --only omits the others.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/checkpoint/save.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"

namespace {

using namespace tessera;
using namespace tessera::checkpoint;

struct Options {
  std::string dir = ".", only;
  std::int64_t layers = 6, hidden = 1024, vocab = 8192, ranks = 2, rounds = 3, first = 0;
  bool json = false;
};

double seconds_of(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Ranks as threads.
class Threads {
 public:
  explicit Threads(int size)
      : size_(size), barrier_(size), texts_(static_cast<std::size_t>(size)) {}
  void run(const std::function<void(const Team&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        Team team;
        team.rank = rank;
        team.size = size_;
        team.gather = [&, rank](std::string text) {
          texts_[static_cast<std::size_t>(rank)] = std::move(text);
          barrier_.arrive_and_wait();
          std::vector<std::string> all = texts_;
          barrier_.arrive_and_wait();
          return all;
        };
        team.broadcast = [gather = team.gather](std::string text) { return gather(text)[0]; };
        body(team);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int size_;
  std::barrier<> barrier_;
  std::vector<std::string> texts_;
};

[[noreturn]] void fail(const std::string& what) {
  std::perror(("checkpoint_bench: " + what).c_str());
  std::exit(1);
}

constexpr std::int64_t kChunk = std::int64_t{8} << 20, kAlign = 4096;

// Page-aligned buffer of whole pages, for direct I/O.
template <typename T>
struct Pages {
  using value_type = T;
  T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kAlign}));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete (memory, std::align_val_t{kAlign}); }
  friend bool operator==(const Pages&, const Pages&) { return true; }
};
using Memory = std::vector<std::byte, Pages<std::byte>>;

// Buffered; buffered with writeback started after every write; direct, past the page cache.
enum class Way { buffered, early, direct };

// Falls back to buffered if the file system does not support direct I/O.
Fd open_for(const std::string& path, int flags, Way way) {
  Fd fd;
  if (way == Way::direct) fd = Fd(::open(path.c_str(), flags | O_DIRECT, 0666));
  if (!fd.open()) fd = Fd(::open(path.c_str(), flags, 0666));
  if (!fd.open()) fail(path);
  return fd;
}

void plain_write(const std::string& path, const Memory& data, Way way) {
  const bool early = way != Way::buffered;
  const Fd fd = open_for(path, O_WRONLY | O_CREAT, way);
  const auto size = static_cast<std::int64_t>(data.size());
  if (early) (void)::fallocate(fd.get(), 0, 0, size);
  for (std::int64_t at = 0; at < size;) {
    const ssize_t n =
        ::write(fd.get(), data.data() + at, static_cast<std::size_t>(std::min(kChunk, size - at)));
    if (n <= 0) fail("write " + path);
    if (way == Way::early) (void)::sync_file_range(fd.get(), at, n, SYNC_FILE_RANGE_WRITE);
    at += n;
  }
  if (::fsync(fd.get()) != 0) fail("fsync " + path);
}

void plain_read(const std::string& path, Memory& data, Way way) {
  const Fd fd = open_for(path, O_RDONLY, way);
  for (std::size_t at = 0; at < data.size();) {
    const ssize_t n =
        ::read(fd.get(), data.data() + at, std::min<std::size_t>(kChunk, data.size() - at));
    if (n <= 0) fail("read " + path);
    at += static_cast<std::size_t>(n);
  }
}

void drop_pages(const std::string& folder) {
  for (const std::string& name : local_files()->list(folder)) {
    const Fd fd(::open((folder + "/" + name).c_str(), O_RDONLY));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::int64_t*> numbers = {
      {"--layers", &options.layers}, {"--hidden", &options.hidden}, {"--vocab", &options.vocab},
      {"--ranks", &options.ranks},   {"--rounds", &options.rounds}, {"--first", &options.first}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto number = numbers.find(flag);
    if (flag == "--json") {
      options.json = true;
    } else if (flag == "--dir" && i + 1 < argc) {
      options.dir = argv[++i];
    } else if (flag == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (number != numbers.end() && i + 1 < argc &&
               (std::atoll(argv[i + 1]) > 0 || flag == "--first")) {
      *number->second = std::atoll(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "checkpoint_bench: %s is not valid; use --dir D, --json, or --layers, "
                   "--hidden, --vocab, --ranks, --rounds with a number\n",
                   argv[i]);
      std::exit(2);
    }
  }
  return options;
}

// Same names and sizes as in benchmarks/peer_checkpoint.py.
std::vector<ParamSpec> gpt(const Options& options) {
  const std::int64_t h = options.hidden;
  std::vector<ParamSpec> params = {{"embed", {options.vocab, h}}, {"positions", {h, h}}};
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = str("blocks.", i, ".");
    const std::vector<std::pair<std::string, std::int64_t>> linears = {
        {"qkv", 3 * h}, {"out", h}, {"up", 4 * h}, {"down", h}};
    for (const auto& [name, out] : linears) {
      params.push_back({block + name + ".weight", {out, name == "down" ? 4 * h : h}});
      params.push_back({block + name + ".bias", {out}});
    }
    for (const char* name : {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}) {
      params.push_back({block + name, {h}});
    }
  }
  for (const char* name : {"norm.weight", "norm.bias"}) params.push_back({name, {h}});
  return params;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const int ranks = static_cast<int>(options.ranks);
  const std::vector<std::string> states = {"param", "moment1", "moment2"};
  Description about;
  about.params = gpt(options);
  about.mesh = {{Axis::dp_shard, ranks}};

  // Memory of each rank, with one state after the other.
  std::vector<Memory> memory(static_cast<std::size_t>(ranks));
  std::vector<std::vector<Shard>> shards(memory.size());
  std::vector<std::vector<WantedShard>> wanted(memory.size());
  std::int64_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<ParamShard> owned = shards_of(about.params, about.mesh, rank);
    std::int64_t bytes = 0;
    for (const ParamShard& shard : owned) bytes += 3 * 4 * count_of(shard.runs);
    memory[r].resize(static_cast<std::size_t>((bytes + kAlign - 1) / kAlign * kAlign));
    for (std::size_t i = 0; i < memory[r].size(); ++i) {
      memory[r][i] = static_cast<std::byte>(i * 31 >> 6 ^ i);
    }
    std::byte* at = memory[r].data();
    for (const ParamShard& shard : owned) {
      for (const std::string& state : states) {
        shards[r].push_back({shard.spec->name, state, DType::f32, shard.runs, at});
        wanted[r].push_back({shard.spec->name, state, DType::f32, shard.runs, at});
        at += 4 * count_of(shard.runs);
      }
    }
    total += bytes;
  }

  Threads threads(ranks);
  std::map<std::string, std::vector<double>> took;
  const std::string dir = options.dir + "/checkpoint-bench";
  const std::string plain = dir + "/plain", early = dir + "/early", direct = dir + "/direct";
  std::string saved;
  const auto name = [](const std::string& folder, const Team& team) {
    return str(folder, "/", team.rank);
  };
  const auto mine = [&](const Team& team) -> Memory& {
    return memory[static_cast<std::size_t>(team.rank)];
  };
  struct Turn {
    const char* name;
    std::function<void(const Team&)> body;
  };
  const auto of = [&](std::vector<Turn> plain_turns, std::vector<Turn> own) {
    if (options.only == "plain") return plain_turns;
    if (options.only != "checkpoint") own.insert(own.end(), plain_turns.begin(), plain_turns.end());
    return own;
  };
  const auto read_plain = [&](const Team& t) {
    plain_read(name(plain, t), mine(t), Way::buffered);
  };
  const auto load = [&](const Team& t) {
    Checkpoint(saved).load(wanted[static_cast<std::size_t>(t.rank)]);
  };
  std::vector<Snapshot> snapshots(memory.size());
  const auto snapshot = [&](const Team& t) {
    const auto r = static_cast<std::size_t>(t.rank);
    snapshots[r].take(shards[r]);
  };
  const std::vector<Turn> writes =
      of({{"write", [&](const Team& t) { plain_write(name(plain, t), mine(t), Way::buffered); }},
          {"early", [&](const Team& t) { plain_write(name(early, t), mine(t), Way::early); }},
          {"write_direct",
           [&](const Team& t) { plain_write(name(direct, t), mine(t), Way::direct); }}},
         {{"save", [&](const Team& t) {
             const Saved done = save(dir, about, shards[static_cast<std::size_t>(t.rank)], t);
             if (t.rank == 0) saved = done.folder;
           }}});
  const std::vector<Turn> reads = of({{"read", read_plain}}, {{"load", load}});
  // A direct read slows down later readers, so it is the last.
  const std::vector<Turn> direct_reads = of(
      {{"read_direct", [&](const Team& t) { plain_read(name(direct, t), mine(t), Way::direct); }}},
      {});
  // From the page cache: the cost of verification when reading is cheapest.
  const std::vector<Turn> cached = of({{"read_cached", read_plain}}, {{"load_cached", load}});
  const auto turns = [&](const std::vector<Turn>& all, std::int64_t first) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Turn& turn = all[(static_cast<std::size_t>(first) + i) % all.size()];
      ::sync();
      took[turn.name].push_back(seconds_of([&] { threads.run(turn.body); }));
    }
  };
  remove_tree(*local_files(), dir);
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    const std::int64_t first = options.first + round;
    for (const std::string& folder : {plain, early, direct}) local_files()->make_folder(folder);
    turns(writes, first);
    ::sync();  // dirty pages are not dropped
    for (const std::string& folder : {plain, direct, saved}) {
      if (!folder.empty()) drop_pages(folder);
    }
    turns(reads, first);
    turns(direct_reads, first);
    threads.run(reads[0].body);  // fills the page cache, whichever read was the last
    threads.run(reads.back().body);
    turns(cached, first);
    threads.run(snapshot);  // warm-up: its memory is new
    if (options.only != "plain") turns({{"snapshot", snapshot}}, first);
    remove_tree(*local_files(), dir);
  }

  if (options.json) {
    std::printf("{\"bytes\": %lld, \"ranks\": %d, \"tensors\": %zu", static_cast<long long>(total),
                ranks, about.params.size() * states.size());
    for (const auto& [what, seconds] : took) {
      std::vector<std::string> texts;
      for (const double value : seconds) texts.push_back(str(value));
      std::printf(", \"%s\": [%s]", what.c_str(), join(texts, ", ").c_str());
    }
    std::printf("}\n");
    return 0;
  }
  const auto rate = [&](double seconds) { return static_cast<double>(total) / seconds / 1e6; };
  std::printf("%lld MB in %zu tensors, %d ranks, MB/s: median (best) of %lld rounds\n",
              static_cast<long long>(total / 1'000'000), about.params.size() * states.size(), ranks,
              static_cast<long long>(options.rounds));
  for (const auto& [what, seconds] : took) {
    std::printf("  %-12s %7.0f (%.0f)\n", what.c_str(), rate(median(seconds)),
                rate(least(seconds)));
  }
}
