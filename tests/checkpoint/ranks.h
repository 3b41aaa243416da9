#pragma once

// What the tests of checkpoints share: ranks as threads, and a model whose every element is known
// without any mesh.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/save.h"
#include "tests/temporary_folder.h"

namespace tessera::checkpoint {

// Ranks that talk through memory. A rank that has ended makes the others fail, as comm's do.
class Ranks {
 public:
  explicit Ranks(int size) : size_(size), texts_(static_cast<std::size_t>(size)) {}
  Team team(int rank);
  // Runs body(team) on a thread for each rank. What they threw, by rank: empty if nothing.
  std::vector<std::string> run(const std::function<void(const Team&)>& body);

 private:
  std::vector<std::string> exchange(int rank, std::string text);

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, seen_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  int gone_ = 0;
};

// The whole model: params and their states, with the bits of element i of a state.
struct Model {
  std::vector<ParamSpec> params;
  std::map<std::string, DType> states;  // the same for every parameter
  std::uint64_t seed = 1;

  std::vector<std::byte> whole(const ParamSpec& spec, const std::string& state) const;
};
// Some of everything: cut by rows, by columns, segments with fewer kv heads, not cut, tiny, empty.
Model small_model();
Description describe_model(const Model& model, std::int64_t step, const Axes& mesh, int stage);

// What one rank of a mesh has: its memory, and shards that point into it.
struct RankState {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Shard> shards;
  std::vector<WantedShard> wanted;  // the same memory
};
enum class Copies { counted, all };
// sharded: its chunk of each part, as the engine cuts; otherwise the whole part. Filled with the
// model's values, or with 0xee.
RankState make_rank(const Model& model, const Axes& mesh, int rank, bool sharded, Copies copies,
                    bool filled);

// Saves the model as a mesh would, all ranks as threads. Throws what rank 0 threw.
std::string save_model(const Model& model, const std::string& dir, std::int64_t step,
                       const Axes& mesh, bool sharded, Copies copies = Copies::counted,
                       const SaveOptions& options = {});
// Loads as a mesh would, rank by rank; returns the first difference from the model, or "".
std::string load_and_compare(const Model& model, Checkpoint& from, const Axes& mesh, bool sharded);

// Two parameters, one of them cut by tp, with two states.
Model tiny_model();

}  // namespace tessera::checkpoint
