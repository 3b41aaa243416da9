#include "tests/checkpoint/ranks.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

std::vector<std::string> Ranks::exchange(int rank, std::string text) {
  std::unique_lock lock(mutex_);
  texts_[static_cast<std::size_t>(rank)] = std::move(text);
  const std::uint64_t round = round_;
  if (++arrived_ == size_) {
    seen_ = texts_;
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&] { return round_ != round || gone_ > 0; });
    if (round_ == round) throw PeerError("a rank is gone");
  }
  return seen_;
}

Team Ranks::team(int rank) {
  Team team;
  team.rank = rank;
  team.size = size_;
  team.gather = [this, rank](std::string text) {
    std::vector<std::string> all = exchange(rank, std::move(text));
    return rank == 0 ? all : std::vector<std::string>{};
  };
  team.broadcast = [this, rank](std::string text) { return exchange(rank, std::move(text))[0]; };
  return team;
}

std::vector<std::string> Ranks::run(const std::function<void(const Team&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size_));
  std::vector<std::thread> threads;
  gone_ = 0;
  arrived_ = 0;
  for (int rank = 0; rank < size_; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error = errors[static_cast<std::size_t>(rank)];
      try {
        body(team(rank));
        return;
      } catch (const PeerError& e) {
        error = str("PeerError ", e.rank(), ": ", e.what());
      } catch (const DataError& e) {
        error = str("DataError: ", e.what());
      } catch (const std::exception& e) {
        error = e.what();
      } catch (...) {
        error = "crashed";
      }
      const std::lock_guard lock(mutex_);
      ++gone_;
      changed_.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::byte> Model::whole(const ParamSpec& spec, const std::string& state) const {
  const std::int64_t bytes = elements_of(spec.shape) * bytes_of(states.at(state));
  const std::uint64_t stream = (seed << 32) ^ stream_of(spec.name + "/" + state);
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < out.size(); i += 8) {
    std::uint64_t word = (stream + i) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93u;
    word ^= word >> 32;
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, out.size() - i));
  }
  return out;
}

Model small_model() {
  Model model;
  model.params = {{"embed.weight", {48, 6}, {{Axis::tp, 0}}},
                  {"blocks.0.qkv.weight", {32, 10}, {{Axis::tp, 0, {{16, 8}, {8, 2}, {8, 2}}}}},
                  {"blocks.0.qkv.bias", {32}, {{Axis::tp, 0, {{16, 8}, {8, 2}, {8, 2}}}}},
                  {"blocks.0.out.weight", {10, 16}, {{Axis::tp, 1}}},
                  {"blocks.0.norm", {10}},
                  {"blocks.1.gate_up", {24, 7}, {{Axis::tp, 0, {{12, 0}, {12, 0}}}}},
                  {"blocks.1.down", {7, 12, 3}, {{Axis::tp, 1}}},
                  {"nothing", {0, 4}},
                  {"scale", {}}};
  model.states = {{"param", DType::f32}, {"moment1", DType::f32}, {"moment2", DType::bf16}};
  return model;
}

Description describe_model(const Model& model, std::int64_t step, const Axes& mesh, int stage) {
  Description about;
  about.step = step;
  about.samples = 17 * step;
  about.seed = 0xfedcba9876543210u;
  about.mesh = mesh;
  about.stage = stage;
  about.layout = "bf16";
  about.model = R"({"layers":2,"name":"small"})";
  about.extra = {{"note", "grüße"}};
  about.params = model.params;
  return about;
}

RankState make_rank(const Model& model, const Axes& mesh, int rank, bool sharded, Copies copies,
                    bool filled) {
  const Coordinate at = mesh.coordinate_of(rank);
  RankState out;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    const ParamSpec& spec = model.params[i];
    if (static_cast<int>(i) % mesh.pp() != at.pp()) continue;
    const std::int64_t local = elements_of(local_shape(spec, mesh, at));
    const std::int64_t chunk = sharded ? shard_size(local, mesh.size(Axis::dp_shard)) : local;
    const std::int64_t begin = sharded ? at[Axis::dp_shard] * chunk : 0;
    const std::vector<Run> mine = cut(local_runs(spec, mesh, at), begin, chunk);
    std::vector<Run> saved =
        copies == Copies::all ? mine : cut(counted_runs(spec, mesh, at), begin, chunk);
    // Not sharded: one rank of each data-parallel group is enough.
    if ((at[Axis::dp_replicate] > 0 || (!sharded && at[Axis::dp_shard] > 0)) &&
        copies == Copies::counted)
      saved.clear();
    for (const auto& [state, dtype] : model.states) {
      const std::int64_t size = bytes_of(dtype);
      auto& memory =
          out.memory.emplace_back(static_cast<std::size_t>(chunk * size) + 1, std::byte{0xee});
      if (filled) {
        const std::vector<std::byte> whole = model.whole(spec, state);
        for (const Run& run : mine) {
          std::memcpy(memory.data() + run.local * size, whole.data() + run.whole * size,
                      static_cast<std::size_t>(run.count * size));
        }
      }
      out.shards.push_back({spec.name, state, dtype, saved, memory.data()});
      out.wanted.push_back({spec.name, state, dtype, mine, memory.data()});
    }
  }
  return out;
}

std::string save_model(const Model& model, const std::string& dir, std::int64_t step,
                       const Axes& mesh, bool sharded, Copies copies, const SaveOptions& options) {
  Ranks ranks(mesh.world());
  std::string folder;
  const std::vector<std::string> errors = ranks.run([&](const Team& team) {
    const RankState state = make_rank(model, mesh, team.rank, sharded, copies, true);
    const Saved saved =
        save(dir, describe_model(model, step, mesh, sharded ? 2 : 0), state.shards, team, options);
    if (team.rank == 0) folder = saved.folder;
  });
  if (!errors[0].empty()) throw DataError(errors[0]);
  return folder;
}

std::string load_and_compare(const Model& model, Checkpoint& from, const Axes& mesh, bool sharded) {
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const RankState right = make_rank(model, mesh, rank, sharded, Copies::all, true);
    RankState got = make_rank(model, mesh, rank, sharded, Copies::all, false);
    from.load(got.wanted);
    for (std::size_t i = 0; i < right.memory.size(); ++i) {
      if (got.memory[i] != right.memory[i]) {
        return str("rank ", rank, ": ", got.wanted[i].state, " of ", got.wanted[i].param);
      }
    }
  }
  return "";
}

Model tiny_model() {
  Model model;
  model.params = {{"a", {6, 4}, {{Axis::tp, 0, {{4, 2}, {2, 1}}}}}, {"b", {3}}};
  model.states = {{"param", DType::f32}, {"moment1", DType::bf16}};
  return model;
}

}  // namespace tessera::checkpoint
