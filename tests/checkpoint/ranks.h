#pragma once

// Helpers of the checkpoint tests: ranks as threads, and a model whose elements are known without a
// mesh.

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

// Ranks that communicate through memory. If a rank ends, the others fail, as with comm.
class Ranks {
 public:
  explicit Ranks(int size) : size_(size), texts_(static_cast<std::size_t>(size)) {}
  Team team(int rank);
  // Runs body(team) on a thread for each rank. Returns the errors by rank; empty: none.
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

// The whole model: parameters and states, with the bits of element i of a state.
struct Model {
  std::vector<ParamSpec> params;
  std::map<std::string, DType> states;  // the same for every parameter
  std::uint64_t seed = 1;

  std::vector<std::byte> whole(const ParamSpec& spec, const std::string& state) const;
};
// One of each kind: cut by rows, by columns, segments with fewer KV heads, not cut, tiny, empty.
Model small_model();
Description describe_model(const Model& model, std::int64_t step, const Axes& mesh, int stage);

// State of one rank of a mesh: its memory, and shards that point to it.
struct RankState {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Shard> shards;
  std::vector<WantedShard> wanted;  // the same memory
};
enum class Copies { counted, all };
// Creates the state of a rank, filled with the values of the model or with 0xee. `sharded`: only
// its data-parallel shard of each parameter, as the engine cuts them.
RankState make_rank(const Model& model, const Axes& mesh, int rank, bool sharded, Copies copies,
                    bool filled);

// Saves the model like a mesh, with all ranks as threads. Throws the error of rank 0.
std::string save_model(const Model& model, const std::string& dir, std::int64_t step,
                       const Axes& mesh, bool sharded, Copies copies = Copies::counted,
                       const SaveOptions& options = {});
// Loads like a mesh, rank by rank. Returns the first difference from the model, or "".
std::string load_and_compare(const Model& model, Checkpoint& from, const Axes& mesh, bool sharded);

// Two parameters, one of them cut by tp, with two states.
Model tiny_model();

}  // namespace tessera::checkpoint
