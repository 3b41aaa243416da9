#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/plan.h"
#include "tessera/zero/unit_order.h"

namespace tessera::zero {

// Parameters: where they lie, and that forward and backward find them complete.
//
// Stages 0 to 2 keep them whole, in one flat buffer per space; after an update each rank has its
// own shards right, and all_gather_updated() gathers the others', unit by unit, while the next
// forward may begin. Reading a parameter whose unit is in flight is an error.
//
// Stage 3 keeps this rank's shards. A unit is unsharded when it is entered and resharded when it is
// left, [Note: freeing] in storage.h. With Gather::alias the ranks keep one copy between them, in
// memory that all have mapped; gathering then only makes sure that every rank has written its
// shards. Nobody writes while another reads: between a backward and the update lies the step's
// exchange of norms, between the update and the next read the gather.
class Gatherer {
 public:
  // Collective. The parameters' places, without their values.
  Gatherer(Plan& plan, const Options& options, const DataGroups& groups, const Buffers& buffers);

  // Collective: takes the parameters over, whose own memory is free then. They start with what they
  // have, or with rank 0's values (Options::broadcast_start); those without memory from
  // Options::initial. `taken` is given what this rank updates of each parameter before it is
  // rounded to the layout's type, in one or more stretches: where in that one begins, and its
  // values.
  using Taken = std::function<void(int param, std::int64_t at, const at::Tensor& values)>;
  void fill(const Options& options, const Taken& taken);

  // Collective, between two steps: gives parameters new values, of rank 0 or of all ranks by
  // Options::broadcast_start. `values`: by parameter, of its shape; undefined where this rank has
  // none. `problem`: why those of this rank cannot be taken; all ranks throw UsageError then.
  void load(const std::vector<at::Tensor>& values, const std::string& problem,
            const Options& options, const Taken& taken);

  // [Note: changed parameters] A program can change a parameter outside the engine in two ways.
  // torch::load(), Module::to() and set_data() replace its storage: the engine then trains memory
  // that the model does not read. An operation in place keeps the storage and raises the version
  // counter of the parameter, which writes of the engine do not touch: they go through tensors of
  // its own.
  bool is_replaced(int param) const;
  // Returns whether it was written to in place since fill(), load() or the last call of
  // accept_write().
  bool is_written(int param) const;
  void accept_write(int param);

  // What this rank updates of a parameter: its shard, or all of it at stage 0; flat.
  at::Tensor param_shard(int param) const;

  void enter_forward(int unit);
  void enter_recompute(int unit);  // a forward inside a backward
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void end_forward();
  void reshard(int unit);  // if it is unsharded, at stage 3
  void end_backward();     // reshards all

  // Before an update: nothing may be unsharded, or in flight, that the update makes old.
  void begin_update();
  void all_gather_updated();  // after an update
  void wait_all();
  // The engine goes: whoever reads a sharded parameter from now on gets an error.
  void detach();

  // Reads whole parameters between two steps, with one unit unsharded at a time. Collective at
  // stage 3: all ranks read the same ones in the same order.
  class Reader {
   public:
    explicit Reader(Gatherer& gatherer) : gatherer_(gatherer) { gatherer_.wait_all(); }
    ~Reader() {
      if (unit_ >= 0) gatherer_.reshard(unit_);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    // Its elements in memory order, flat: a view that lasts until the next call.
    at::Tensor elements(int param);

   private:
    Gatherer& gatherer_;
    int unit_ = -1;
  };

  bool shards() const { return sharded_; }
  Stopwatch& exposed() { return exposed_; }

 private:
  struct UnitState {
    // Per range: what the unit's parameters are views of. Where it is resharded or in flight, its
    // storage is empty, or not to be read.
    std::vector<at::Tensor> full;
    std::vector<at::Tensor> prefetched;  // memory of an all-gather in flight
    std::vector<comm::Work> works;
    bool in_flight = false;
    bool unsharded = false;
  };

  // What a parameter starts with, flat: in `place` already if it could be written there.
  at::Tensor own_values(const Options& options, const Param& param, const at::Tensor& place) const;
  at::Tensor all_values(const Options& options, const Param& param, const at::Tensor& place) const;
  void write_initial(const Options& options, int index, const at::Tensor& place,
                     const Taken& taken) const;
  void check_initial(const Options& options) const;
  std::vector<bool> agree_on_new(const std::vector<at::Tensor>& values, const std::string& problem,
                                 bool from_rank_0) const;
  void give_view(int param, const at::Tensor& full, std::int64_t base);
  void start_unshard(int unit, const char* why, comm::Traffic traffic);
  void unshard(int unit, const char* why, comm::Traffic traffic = comm::Traffic::model);
  void prefetch_after(UnitOrder& order, int unit, const char* why);
  void wait(UnitState& state);
  void forbid_reading_of(UnitState& state, const char* why);
  at::Tensor own_shards(const Range& range) const;
  at::Tensor stored(const Range& range) const;

  Plan& plan_;
  const DataGroups groups_;
  const Buffers& buffers_;
  const Sharding sharding_;
  const bool sharded_;
  const bool alias_;
  const bool prefetch_, overlap_;
  std::vector<bool> keep_;      // by unit: unsharded between forward and backward
  std::vector<Buffer> stores_;  // per space: flat, or this rank's shards
  std::vector<UnitState> units_;
  std::vector<at::Tensor> views_;        // per parameter: the view that it was given
  std::vector<std::uint32_t> versions_;  // per parameter: its version counter, as last accepted
  UnitOrder forward_, backward_;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
