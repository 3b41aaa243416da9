#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// Predicted order of units in a pass. It is that of the last pass with the same first unit after
// the root, because a rank may run several model chunks alternately.
class UnitOrder {
 public:
  // `alike`: all passes begin with the same unit after the root.
  explicit UnitOrder(bool alike) : alike_(alike) {}

  // Records that a unit is entered. Returns the predicted next unit, or -1 if it is unknown.
  int enter(int unit);
  void end();                          // ends the pass and records its order
  void forget() { entered_.clear(); }  // drops a pass that ended in an exception

 private:
  const bool alike_;
  std::map<int, std::vector<int>> known_;  // by the second unit of the pass
  std::vector<int> entered_;
};

// Storage of the parameters. Makes them complete before forward and backward read them.
//
// Stages 0 to 2 keep them whole, in one flat buffer per space. After an update each rank has only
// its own shards up to date; all_gather_updated() gathers the others unit by unit, while the next
// forward may begin. Reading a parameter whose unit is in flight is an error.
//
// Stage 3 keeps this rank's shards. A unit is unsharded when it is entered and resharded when it is
// left, [Note: freeing] in storage.h. With Gather::alias the ranks share one copy, in memory that
// all of them have mapped; gathering then only ensures that every rank has written its shards. No
// rank writes while another reads: the exchange of norms separates backward from the update, the
// gather separates the update from the next read, and await_readers() precedes all other writes.
class Gatherer {
 public:
  // Collective. Allocates the buffers of the parameters, without their values.
  Gatherer(Plan& plan, const Options& options, const DataGroups& groups, const Buffers& buffers);

  // Receives unrounded values of the part of a parameter that this rank updates: one or more
  // ranges, each at offset `at` in that part.
  using Sink = std::function<void(int param, std::int64_t at, const at::Tensor& values)>;
  // Collective. Takes over the parameters and frees their own memory. They start with their current
  // values, or with those of rank 0 (Options::broadcast_start); parameters without memory start
  // with Options::initial. `sink` gets the values before they are rounded to the layout's type.
  void fill(const Options& options, const Sink& sink);

  // Collective, between two steps. Sets new values of parameters: those of rank 0 if
  // Options::broadcast_start, otherwise those of each rank. `values`: by parameter, of its shape;
  // undefined if this rank has none. `problem`: reason that this rank's values do not fit, or
  // empty; if any rank has one, all ranks throw UsageError.
  void load(const std::vector<at::Tensor>& values, const std::string& problem,
            const Options& options, const Sink& sink);

  // [Note: changed parameters] A program can change a parameter outside the engine in two ways.
  // torch::load(), Module::to() and set_data() replace its storage: the engine then trains memory
  // that the model does not read. An in-place operation keeps the storage and increments the
  // version counter of the parameter. Writes of the engine do not change that counter, because they
  // go through its own tensors.
  bool is_replaced(int param) const;
  // Returns true if the parameter was written to in place since fill(), load() or the last
  // accept_write().
  bool is_written(int param) const;
  void accept_write(int param);

  // Returns the elements of a parameter that this rank updates: its shard, or all of them at stage
  // 0; flat.
  at::Tensor param_shard(int param) const;

  void enter_forward(int unit);
  void enter_recompute(int unit);  // a forward inside a backward
  void leave_forward(int unit, bool differentiable);
  void enter_backward(int unit);
  void end_forward();
  void reshard(int unit);  // no effect below stage 3, or if the unit is not unsharded
  void end_backward();     // reshards all units

  // Reshards units and waits for gathers in flight, whose values the update makes stale.
  void begin_update();
  void all_gather_updated();  // after an update
  // Collective. Waits until no rank reads the shards of this rank any more.
  void await_readers();
  void wait_all();
  // Called when the engine is destroyed. Reading a sharded parameter is an error from then on.
  void detach();

  // Reader of whole parameters between two steps, with one unit unsharded at a time. Collective at
  // stage 3: all ranks must read the same parameters in the same order.
  class Reader {
   public:
    explicit Reader(Gatherer& gatherer) : gatherer_(gatherer) { gatherer_.wait_all(); }
    ~Reader() {
      if (unit_ >= 0) gatherer_.reshard(unit_);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    // Returns the elements of a parameter in memory order, flat: a view valid until the next call.
    at::Tensor elements(int param);

   private:
    Gatherer& gatherer_;
    int unit_ = -1;
  };

  bool shards() const { return sharded_; }
  Stopwatch& exposed() { return exposed_; }

 private:
  struct UnitState {
    // Per range: tensor that the unit's parameters are views of. While the unit is resharded or in
    // flight, its storage is empty or must not be read.
    std::vector<at::Tensor> full;
    std::vector<at::Tensor> prefetched;  // memory of an all-gather in flight
    std::vector<comm::Work> works;
    bool in_flight = false;
    bool unsharded = false;
  };

  // Return the initial values of a parameter, flat: written to `place` directly if possible.
  at::Tensor own_values(const Options& options, const Param& param, const at::Tensor& place) const;
  at::Tensor all_values(const Options& options, const Param& param, const at::Tensor& place) const;
  void write_initial(const Options& options, int index, const at::Tensor& place,
                     const Sink& sink) const;
  void check_initial(const Options& options) const;
  void check_initial(const Options& options, const DataGroups& groups, bool experts) const;
  std::vector<bool> agree_on_new(const std::vector<at::Tensor>& values, const std::string& problem,
                                 bool from_rank_0) const;
  void agree_on_new(const comm::Group& group, bool experts, const std::vector<at::Tensor>& values,
                    const std::string& problem, bool from_rank_0, std::vector<bool>& is_new) const;
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
  std::vector<at::Tensor> views_;        // per parameter: its view of the buffer
  std::vector<std::uint32_t> versions_;  // per parameter: its version counter, as last accepted
  UnitOrder forward_, backward_;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
