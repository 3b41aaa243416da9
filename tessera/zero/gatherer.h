#pragma once

#include <map>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// Parameters: where they lie, and that forward and backward find them complete.
//
// Stages 0 to 2 keep them whole, in one flat buffer per space; after an update each rank has its
// own shards right, and all_gather_updated() gathers the others', unit by unit, while the next
// forward may begin.
//
// Stage 3 keeps this rank's shards. A unit is gathered when it is entered and freed when it is
// left; [Note: freeing] autograd may hold views of a parameter between forward and backward. They
// share its storage, so freeing takes the memory out of the storage and gathering puts new memory
// in: the views never notice. With Gather::alias the ranks keep one copy between them, in memory
// that all have mapped; gathering then only makes sure that every rank has written its shards.
// Nobody writes while another reads: between a backward and the update lies the step's exchange of
// norms, between the update and the next read the gather.
class Gatherer {
 public:
  // Collective. Takes the parameters over: values of rank 0 if `broadcast`.
  Gatherer(Plan& plan, const Options& options, const comm::Group& group, const Buffers& buffers,
           bool broadcast);

  // What this rank updates of a parameter: its shard, or all of it at stage 0; flat.
  at::Tensor param_shard(int param) const;

  void enter_forward(int unit);
  void enter_recompute(int unit);  // a forward inside a backward
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void end_forward();
  void reshard(int unit);  // if it is unsharded, at stage 3
  void end_backward();     // releases all

  // Before an update: nothing may be unsharded, or in flight, that the update makes old.
  void begin_update();
  void all_gather_updated();  // after an update
  void wait_all();
  bool in_flight(int unit) const { return units_[static_cast<std::size_t>(unit)].in_flight; }
  // The engine goes: whoever reads a sharded parameter from now on gets an error.
  void detach();

  // Brings all units in outside a pass, for readers of the whole model.
  void unshard_all();
  void reshard_all();
  // A parameter's elements in memory order, flat; its unit must be unsharded.
  at::Tensor elements(int param) const;

  bool shards() const { return sharded_; }
  bool aliases() const { return alias_; }
  Stopwatch& exposed() { return exposed_; }

 private:
  struct UnitState {
    std::vector<at::Tensor> full;        // per range; its storage is empty while the unit is free
    std::vector<at::Tensor> prefetched;  // memory of an all-gather in flight
    std::vector<comm::Work> works;
    bool in_flight = false;
    bool unsharded = false;
  };
  // The order of units in a pass, learnt from the pass before that began in the same way: a rank
  // may run several parts of a model in turn, each with its own first unit after the root.
  struct Sequence {
    std::map<int, std::vector<int>> known;  // by the second unit of the pass
    std::vector<int> now;
    bool one_way = true;       // all passes begin alike: the root tells what follows
    int next_after(int unit);  // of this unit, which is entered now; -1 if unknown
    void end();
  };

  void fill_whole(bool broadcast);
  void fill_common();
  void fill_shards(bool broadcast);
  void fill(const Range& range, const at::Tensor& flat, std::int64_t base);
  void start_unshard(int unit, const char* why, comm::Traffic traffic);
  void unshard(int unit, const char* why, comm::Traffic traffic = comm::Traffic::model);
  void prefetch_after(Sequence& sequence, int unit, const char* why);
  void wait(UnitState& state);
  at::Tensor own_shards(const Range& range) const;

  Plan& plan_;
  const comm::Group group_;
  const Buffers& buffers_;
  const Sharding sharding_;
  const bool sharded_;
  const bool keep_, prefetch_, overlap_;
  bool alias_ = false;
  std::vector<Buffer> stores_;  // per space: flat, or this rank's shards
  std::vector<UnitState> units_;
  Sequence forward_, backward_;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
