// Saving and loading beside plain sequential writing and reading of as many bytes, in turns, with
// as many threads. Reads come from the disk: pages are dropped first.
//   checkpoint_bench [--dir .] [--mib 1024] [--ranks 2] [--rounds 3]
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
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/save.h"
#include "tessera/core/fd.h"

namespace {

using namespace tessera;
using namespace tessera::checkpoint;

struct Options {
  std::string dir = ".";
  std::int64_t mib = 1024, ranks = 2, rounds = 3;
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

void drop_pages(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY));
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

constexpr std::int64_t kChunk = std::int64_t{8} << 20;

void plain_write(const std::string& path, const std::vector<std::byte>& data) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  for (std::size_t at = 0; at < data.size();) {
    const ssize_t n =
        ::write(fd.get(), data.data() + at, std::min<std::size_t>(kChunk, data.size() - at));
    if (n <= 0) fail("write");
    at += static_cast<std::size_t>(n);
  }
  if (::fsync(fd.get()) != 0) fail("fsync");
}

void plain_read(const std::string& path, std::vector<std::byte>& data) {
  const Fd fd(::open(path.c_str(), O_RDONLY));
  for (std::size_t at = 0; at < data.size();) {
    const ssize_t n =
        ::read(fd.get(), data.data() + at, std::min<std::size_t>(kChunk, data.size() - at));
    if (n <= 0) fail("read");
    at += static_cast<std::size_t>(n);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--dir") options.dir = argv[i + 1];
    if (flag == "--mib") options.mib = std::atoll(argv[i + 1]);
    if (flag == "--ranks") options.ranks = std::atoll(argv[i + 1]);
    if (flag == "--rounds") options.rounds = std::atoll(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const int ranks = static_cast<int>(options.ranks);
  const std::string dir = options.dir + "/checkpoint-bench";
  // Parameters of 32 MiB in fp32 with two moments, each cut into one chunk per rank.
  const std::int64_t elements = std::int64_t{8} << 20, chunk = elements / ranks / 16 * 16;
  const std::vector<std::string> states = {"master", "moment1", "moment2"};
  const std::int64_t params = std::max<std::int64_t>(1, (options.mib << 20) / (elements * 12));
  Description about;
  for (std::int64_t i = 0; i < params; ++i) {
    about.params.push_back({"p" + std::to_string(i), {elements}, -1, {}});
  }
  std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(ranks));
  const auto pieces_of = [&](int rank, auto&& add) {
    const std::int64_t begin = rank * chunk;
    const std::int64_t count = rank == ranks - 1 ? elements - begin : chunk;
    std::byte* at = memory[static_cast<std::size_t>(rank)].data();
    for (const ParamSpec& spec : about.params) {
      for (const std::string& state : states) {
        add(spec.name, state, std::vector<Run>{{begin, 0, count}}, at);
        at += count * 4;
      }
    }
  };
  std::int64_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = rank == ranks - 1 ? elements - rank * chunk : chunk;
    const std::int64_t bytes = params * 3 * count * 4;
    memory[static_cast<std::size_t>(rank)].assign(static_cast<std::size_t>(bytes), std::byte{1});
    auto& mine = memory[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < mine.size(); i += 64) mine[i] = static_cast<std::byte>(i * 31 >> 6);
    total += bytes;
  }
  const std::string plain = dir + "/plain";
  local_files()->make_folder(dir);
  Threads threads(ranks);
  std::map<std::string, std::vector<double>> rates;
  const auto note = [&](const char* what, double seconds) {
    rates[what].push_back(static_cast<double>(total) / seconds / 1e6);
  };
  const auto mine = [&](const Team& team) -> std::vector<std::byte>& {
    return memory[static_cast<std::size_t>(team.rank)];
  };
  for (int round = 0; round < options.rounds; ++round) {
    note("write", seconds_of([&] {
           threads.run([&](const Team& team) {
             plain_write(plain + std::to_string(team.rank), mine(team));
           });
         }));
    about.step = round;
    std::string folder;
    note("save", seconds_of([&] {
           threads.run([&](const Team& team) {
             std::vector<Piece> pieces;
             pieces_of(team.rank, [&](auto& param, auto& state, auto runs, std::byte* at) {
               pieces.push_back({param, state, DType::f32, runs, at});
             });
             const Saved saved = save(dir, about, pieces, team, {{1, 0}, local_files(), {}});
             if (team.rank == 0) folder = saved.folder;
           });
         }));
    note("snapshot", [&] {
      std::vector<Piece> pieces;
      for (int rank = 0; rank < ranks; ++rank) {
        pieces_of(rank, [&](auto& param, auto& state, auto runs, std::byte* at) {
          pieces.push_back({param, state, DType::f32, runs, at});
        });
      }
      Snapshot snapshot;
      snapshot.take(pieces);
      return seconds_of([&] { snapshot.take(pieces); });
    }());
    for (int rank = 0; rank < ranks; ++rank) {
      drop_pages(plain + std::to_string(rank));
      drop_pages(folder + "/" + shard_name(rank));
    }
    note("read", seconds_of([&] {
           threads.run([&](const Team& team) {
             plain_read(plain + std::to_string(team.rank), mine(team));
           });
         }));
    note("load", seconds_of([&] {
           threads.run([&](const Team& team) {
             std::vector<Wanted> wanted;
             pieces_of(team.rank, [&](auto& param, auto& state, auto runs, std::byte* at) {
               wanted.push_back({param, state, DType::f32, runs, at});
             });
             Checkpoint(folder).load(wanted);
           });
         }));
  }
  remove_tree(*local_files(), dir);
  std::printf("%lld MB, %d ranks, median of %lld rounds, MB/s:\n",
              static_cast<long long>(total / 1'000'000), ranks,
              static_cast<long long>(options.rounds));
  const auto median = [&](const char* what) {
    std::vector<double> values = rates[what];
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  std::printf("  write+fsync %7.0f   save %7.0f  (%.0f%%)\n", median("write"), median("save"),
              100 * median("save") / median("write"));
  std::printf("  read        %7.0f   load %7.0f  (%.0f%%)\n", median("read"), median("load"),
              100 * median("load") / median("read"));
  std::printf("  snapshot    %7.0f\n", median("snapshot"));
}
