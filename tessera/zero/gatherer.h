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
// own chunks right, and publish() gathers the others', unit by unit, while the next forward may
// begin.
//
// Stage 3 keeps this rank's chunks. A unit is gathered when it is entered and freed when it is
// left; [Note: freeing] autograd may hold views of a parameter between forward and backward. They
// share its storage, so freeing takes the memory out of the storage and gathering puts new memory
// in: the views never notice. With Gather::alias the ranks keep one copy between them, in memory
// that all have mapped; gathering then only makes sure that every rank has written its chunks.
// Nobody writes while another reads: between a backward and the update lies the step's exchange of
// norms, between the update and the next read the gather.
class Gatherer {
 public:
  // Collective. Takes the parameters over: values of rank 0 if `broadcast`.
  Gatherer(Plan& plan, const Options& options, const comm::Group& group, const Buffers& buffers,
           bool broadcast);

  // This rank's part of a parameter, to be updated: its chunk, or all of it at stage 0; flat.
  at::Tensor param_slice(int param) const;

  void enter_forward(int unit);
  void enter_recompute(int unit);  // a forward inside a backward
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void end_forward();
  void release(int unit);  // if it is there, and freed at all
  void end_backward();     // releases all

  // Before an update: nothing may be there, or on its way, that the update makes old.
  void begin_update();
  void publish();  // after an update
  void wait_all();
  bool on_its_way(int unit) const { return units_[static_cast<std::size_t>(unit)].on_its_way; }
  // The engine goes: whoever reads a sharded parameter from now on gets an error.
  void abandon();

  // Brings all units in outside a pass, for readers of the whole model.
  void gather_all();
  void release_all();
  // A parameter's elements in memory order, flat; its unit must be there.
  at::Tensor elements(int param) const;

  bool shards() const { return sharded_; }
  bool aliases() const { return alias_; }
  Stopwatch& exposed() { return exposed_; }

 private:
  struct UnitState {
    std::vector<at::Tensor> full;   // per range; its storage is empty while the unit is free
    std::vector<at::Tensor> ahead;  // memory of a gather that is on its way
    std::vector<comm::Work> works;
    bool on_its_way = false;
    bool there = false;
  };
  // The order of units in a pass, learnt from the pass before that began in the same way: a rank
  // may run several parts of a model in turn, each with its own first unit after the root.
  struct Sequence {
    std::map<int, std::vector<int>> known;  // by the second unit of the pass
    std::vector<int> now;
    bool one_way = true;     // all passes begin alike: the root tells what follows
    int follower(int unit);  // of this unit, which is entered now; -1 if unknown
    void end();
  };

  void take_whole(bool broadcast);
  void take_alias();
  void take_shards(bool broadcast);
  void fill(const Range& range, const at::Tensor& flat, std::int64_t base);
  void start(int unit, const char* why, comm::Traffic traffic);
  void bring(int unit, const char* why, comm::Traffic traffic = comm::Traffic::model);
  void follow(Sequence& sequence, int unit, const char* why);
  void wait(UnitState& state);
  at::Tensor own_chunks(const Range& range) const;

  Plan& plan_;
  const comm::Group group_;
  const Buffers& buffers_;
  const Sharding sharding_;
  const bool sharded_;
  const bool keep_, prefetch_, overlap_;
  bool alias_ = false;
  std::vector<Buffer> stores_;  // per space: flat, or this rank's chunks
  std::vector<UnitState> units_;
  Sequence forward_, backward_;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
