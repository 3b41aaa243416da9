#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/run_options.h"

namespace tessera::planner {

struct Topology;

// Link between two devices. Moving n bytes in one direction takes latency + n / bandwidth seconds.
struct Link {
  double bandwidth = 0;  // bytes per second in one direction, as achieved by collectives
  double latency = 0;    // seconds per step of a collective, in addition
};

// Level of switches above the nodes, nearest first. A switch joins `nodes` nodes, and its uplinks
// carry 1/oversubscription of the bandwidth below it. Adapters are on rails: adapter i of every
// node is on the same switches. A group with one member per node stays on its rail and does not
// cross the level, and neither does a tree, whose edges join the same devices of two nodes. A ring
// through several devices of a node enters by one adapter and leaves by another, so it changes
// rails through the switches above.
struct SwitchLevel {
  int nodes = 0;
  double oversubscription = 1;
};

// [Note: software] Performance figures of a training program on a device, one set for all models:
// launches, fusions and efficiencies depend on the software, peaks and links do not. Each set was
// measured or fitted with one program on one device; hardware.toml states how.
struct SoftwareFigures {
  double product_efficiency = 1;    // share of the peak, for a large product on all units
  double attention_efficiency = 1;  // share of the peak, for fused attention
  double memory_efficiency = 1;     // share of the memory bandwidth, for a large elementwise pass
  double launch = 0;                // host seconds per kernel
  double kernel_start = 0;          // device seconds per kernel, in addition to its work
  double launch_skew = 0;           // seconds: [Note: the last host]
  double logit_bytes = 0;           // bytes read and written per logit by the loss and its gradient
  double gradient_passes = 1;       // passes of an optimizer step over the gradients
  double accumulate_passes = 2;     // passes of a micro-batch over the gradients, to accumulate
  double layer_launches = 1;        // share of an eager layer's kernels that are launched
};

// [Note: the last host] Each rank's host launches its own kernels, and a collective inside a layer
// begins when the last host has launched it. The delay of the last of n hosts grows with the
// logarithm of n: `launch_skew` seconds for each doubling. On links inside a node this is much
// longer than the steps of the collective itself.

// Device, host and network, with the figures of the software that runs on them. All values come
// from hardware.toml or from a user's file; none is in the code.
struct Hardware : SoftwareFigures {
  std::string name;
  double memory = 0;            // bytes of device memory
  double reserve = 0;           // bytes used by the runtime: context, workspaces
  double usable = 1;            // share of `memory` that can be used in spite of fragmentation
  double peak_16bit = 0;        // FLOP/s, dense
  double peak_fp32 = 0;         // FLOP/s of the products in fp32 training
  double peak_tf32 = 0;         // FLOP/s, dense; 0: the device has no TF32
  double peak_fp8 = 0;          // FLOP/s, dense; 0: the device has no fp8
  double memory_bandwidth = 0;  // bytes/s
  bool fused_attention = true;  // false: attention stores the matrix of scores
  bool bf16 = true;             // false: 16-bit products only in fp16
  int units = 1;                // SMs or cores over which the tiles of a product are spread

  Link inside;                        // between devices of a node
  Link between;                       // between nodes, per adapter
  int nics = 0;                       // adapters per node; 0: one per device
  std::string kind = "NVLink";        // type of the links inside a node
  std::vector<SwitchLevel> switches;  // above the nodes
  // Slowdown of concurrent kernels, in seconds per second of a collective, which uses units and
  // memory bandwidth.
  double interference = 0;
  int per_node = 8;
  bool cpu = false;  // devices are shares of a host's CPU and memory, as Tessera's CPU ranks are
  // Cores of a node, shared by its ranks with `units` threads each; 0: unknown. Rates are those of
  // a rank while all `per_node` ranks are busy: [Note: shared cores].
  int cores = 0;

  double watts = 0;           // per device, including its share of the node
  double price_per_hour = 0;  // per device; 0: unknown
  std::string caution;        // warning to print with plans for this device

  std::string software;  // software whose figures are active; the default for plans
  std::vector<std::pair<std::string, SoftwareFigures>> figures;  // by software
  // Products of fp32 tensors run in TF32. Set by with_precision().
  bool tf32 = false;
  // Returns the peak of products of elements of this number of bytes.
  double product_peak(int element) const {
    return element == 1 ? peak_fp8 : element < 4 ? peak_16bit : tf32 ? peak_tf32 : peak_fp32;
  }
  // Activates the figures of that software, if there are any.
  void run_by(std::string_view name);

  // Returns the network with `devices` devices per node (0: per_node). The number of adapters
  // scales with it.
  Topology topology(int devices = 0) const;
};

// Returns the device with this precision of fp32 products. Throws UsageError if it lacks that, or
// the precision of linears.
Hardware with_precision(Hardware hardware, MatmulPrecision products, Precision linears);

// Built-in hardware catalog, with optional user files on top. An entry with a known name overrides
// the keys that it sets. A new entry either names another entry in `like` or sets all keys. Throws
// UsageError with file, line and column for invalid TOML, an unknown key or a bad value.
class Catalog {
 public:
  Catalog();
  // Adds a user's file to the catalog.
  void read(const std::string& path);
  // As read(), from a string. `where` replaces the file name in messages.
  void parse(std::string_view toml, const std::string& where);
  const std::vector<Hardware>& all() const { return all_; }
  const Hardware& find(std::string_view name) const;  // throws UsageError with the nearest name

  // Function that resolves --model; by default find_model_shape().
  using FindModel = std::function<ModelShape(const std::string& name)>;
  // Replaces the function, for programs that can also read models from folders.
  void find_models_by(FindModel find) { find_model_ = std::move(find); }
  // Returns the shape of a model. Throws UsageError with the nearest name.
  ModelShape model(const std::string& name) const {
    return find_model_ ? find_model_(name) : find_model_shape(name);
  }

 private:
  std::vector<Hardware> all_;
  FindModel find_model_;
};

}  // namespace tessera::planner
