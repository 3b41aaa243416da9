// Measures the collectives of the MPI library on float in the same way as `tessera bench comm`,
// with the same keys:
//   mpirun -n 2 build/bin/peer_mpi --sizes 4096,26214400 --ops all_reduce,all_gather --time 0.3

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Arguments {
  std::vector<long> sizes = {4096, 26214400, 104857600};  // bytes of the whole buffer
  std::vector<std::string> ops = {"all_reduce", "reduce_scatter", "all_gather"};
  double seconds = 0.5;  // per measurement
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "peer_mpi: %s\n", why.c_str());
  MPI_Abort(MPI_COMM_WORLD, 2);
  std::exit(2);
}

Arguments read(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--sizes") {
      arguments.sizes.clear();
      for (const std::string& size : split(value)) arguments.sizes.push_back(std::stol(size));
    } else if (name == "--ops") {
      arguments.ops = split(value);
    } else if (name == "--time") {
      arguments.seconds = std::stod(value);
    } else {
      give_up(name + " is not an option; use --sizes, --ops or --time");
    }
  }
  return arguments;
}

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int size_of_world() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

double slowest(double mine) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

// One operation with its buffers: all_reduce in place, the others out of place.
struct Case {
  std::string op;
  int count;  // elements of the whole buffer, a multiple of the ranks
  int rank = rank_of_world(), ranks = size_of_world();
  std::vector<float> whole = std::vector<float>(static_cast<std::size_t>(count));
  std::vector<float> shard = std::vector<float>(static_cast<std::size_t>(count / ranks));

  void run() {
    if (op == "all_reduce") {
      MPI_Allreduce(MPI_IN_PLACE, whole.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (op == "reduce_scatter") {
      MPI_Reduce_scatter_block(whole.data(), shard.data(), count / ranks, MPI_FLOAT, MPI_SUM,
                               MPI_COMM_WORLD);
    } else if (op == "all_gather") {
      MPI_Allgather(shard.data(), count / ranks, MPI_FLOAT, whole.data(), count / ranks, MPI_FLOAT,
                    MPI_COMM_WORLD);
    } else {
      give_up("--ops " + op + ": must be all_reduce, reduce_scatter or all_gather");
    }
  }

  // Element i of rank r is (i + r) % 8, so every result is exact.
  void check() {
    const auto value = [](long i, int r) { return static_cast<float>((i + r) % 8); };
    const long begin = static_cast<long>(rank) * (count / ranks);
    for (long i = 0; i < count; ++i) whole[static_cast<std::size_t>(i)] = value(i, rank);
    for (long i = 0; i < count / ranks; ++i) {
      shard[static_cast<std::size_t>(i)] = value(begin + i, rank);
    }
    run();
    const auto sum = [&](long i) {
      float all = 0;
      for (int r = 0; r < ranks; ++r) all += value(i, r);
      return all;
    };
    bool good = true;
    for (long i = 0; i < count && op != "reduce_scatter"; ++i) {
      const auto owner = static_cast<int>(i / (count / ranks));
      const float expected = op == "all_reduce" ? sum(i) : value(i, owner);
      good = good && whole[static_cast<std::size_t>(i)] == expected;
    }
    for (long i = 0; i < count / ranks && op == "reduce_scatter"; ++i) {
      good = good && shard[static_cast<std::size_t>(i)] == sum(begin + i);
    }
    if (!good) give_up(op + " gave a wrong result");
    // Zeros, so that repeated in-place sums stay zero.
    std::fill(whole.begin(), whole.end(), 0.0f);
    std::fill(shard.begin(), shard.end(), 0.0f);
  }
};

struct Figures {
  double median = 0, least = 0;  // seconds
};

// [Note: repetitions] All ranks start a repetition together. One repetition has enough calls to
// take a fifth of a millisecond, and its time is that of the slowest rank.
Figures measure(Case& what, double seconds) {
  what.check();
  const auto time = [&](int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i) what.run();
    return (MPI_Wtime() - begin) / calls;
  };
  time(3);
  const double once = slowest(time(3));
  const int calls = static_cast<int>(std::clamp(std::ceil(200e-6 / once), 1.0, 1000.0));
  const int repetitions = static_cast<int>(std::clamp(seconds / (once * calls), 5.0, 1000.0));
  std::vector<double> mine, all(static_cast<std::size_t>(repetitions));
  for (int i = 0; i < repetitions; ++i) mine.push_back(time(calls));
  MPI_Allreduce(mine.data(), all.data(), repetitions, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all.front()};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const Arguments arguments = read(argc, argv);
  const int ranks = size_of_world();
  std::string json;
  for (const std::string& op : arguments.ops) {
    for (const long size : arguments.sizes) {
      const long unit = 4L * ranks;
      Case what{op, static_cast<int>((size + unit - 1) / unit * ranks)};
      const Figures figures = measure(what, arguments.seconds);
      const double bytes = 4.0 * what.count;
      char line[320];
      std::snprintf(line, sizeof line,
                    "  {\"op\": \"%s\", \"backend\": \"openmpi\", \"memory\": \"ordinary\", "
                    "\"dtype\": \"f32\", \"ranks\": %d, \"bytes\": %.0f, \"ms\": %.6g, "
                    "\"min_ms\": %.6g, \"gb_per_s\": %.6g}",
                    op.c_str(), ranks, bytes, figures.median * 1e3, figures.least * 1e3,
                    bytes / figures.median * 1e-9);
      json += (json.empty() ? "" : ",\n") + std::string(line);
    }
  }
  if (rank_of_world() == 0) std::printf("[\n%s\n]\n", json.c_str());
  MPI_Finalize();
  return 0;
}
