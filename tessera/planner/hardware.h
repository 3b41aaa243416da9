#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// [Note: software] What a program makes of a device, one set for all models: launches, fusions and
// efficiencies are its doing, peaks and links are not. Each set was measured or fitted with one
// program on one device; hardware.toml says how.
struct SoftwareFigures {
  double product_efficiency = 1;    // of the peak, for a large product that fills all units
  double attention_efficiency = 1;  // of the peak, for fused attention
  double memory_efficiency = 1;     // of the memory bandwidth, for a large elementwise pass
  double launch = 0;                // seconds of the host per kernel
  double kernel_start = 0;          // seconds of the device per kernel, besides its work
  double launch_skew = 0;           // [Note: the last host]
  double logit_bytes = 0;           // read and written per logit by loss and its gradient
  double gradient_passes = 1;       // times that an optimizer step goes over the gradients
  double accumulate_passes = 2;     // times that a micro-batch goes over them, to add to them
  double layer_launches = 1;        // of an eager layer's kernels, those that are launched
};

// [Note: the last host] Every rank's host launches for itself, some sooner and some later, and a
// collective in the middle of a layer begins when the last of them has. How long the last of n is
// behind the others grows with the logarithm of n: `launch_skew` seconds for each doubling. On
// links inside a node that is much more than the collective's own steps.

// A device, its host and its network, as the catalogue describes them, and what the software that
// runs on it makes of it. All of them come from hardware.toml or a file of the user's: numbers are
// data here, not code.
struct Hardware : SoftwareFigures {
  std::string name;
  double memory = 0;            // bytes of the device
  double reserve = 0;           // bytes of them that the runtime takes: context, workspaces
  double usable = 1;            // share of them that can be filled before fragments are in the way
  double peak_16bit = 0;        // FLOP/s, dense
  double peak_fp32 = 0;         // likewise, as the products of fp32 training run
  double memory_bandwidth = 0;  // bytes/s
  bool fused_attention = true;  // false: attention keeps the matrix of scores
  bool bf16 = true;             // false: 16-bit products are fp16's alone
  int units = 1;                // that tiles of a product are spread over (SMs, cores)

  Link inside;                        // between devices of a node
  Link between;                       // between nodes, of one adapter
  int nics = 0;                       // adapters of a node; 0: one for each device
  std::string kind = "NVLink";        // of the links inside
  std::vector<SwitchLevel> switches;  // above the nodes
  // Seconds that the kernels beside a collective lose for each second that it goes on: it takes
  // units and memory bandwidth away from them.
  double interference = 0;
  int per_node = 8;
  bool cpu = false;  // devices are shares of a host's processor and memory, as Tessera's ranks have
  // Cores of a node that its ranks share, each with `units` threads; 0: not known. Rates are those
  // of a rank while all `per_node` of them are busy: [Note: shared cores].
  int cores = 0;

  double watts = 0;           // per device, with its share of the node
  double price_per_hour = 0;  // per device; 0: unknown
  std::string caution;        // what plans with it should be read with

  std::string software;  // whose figures are in force, and run on it unless somebody says otherwise
  std::vector<std::pair<std::string, SoftwareFigures>> figures;  // by software
  // Puts the figures of that software in force, if there are any of it.
  void run_by(std::string_view name);

  // Its network, with so many devices in a node (0: as it has); adapters go with the devices.
  Topology topology(int devices = 0) const;
};

// The catalogue that comes with the library, and a user's file over it. An entry of a known name
// changes what it says and keeps the rest; a new one names another as `like`, or says everything.
// Throws UsageError with file, line and column for bad TOML, an unknown key and a bad value.
class Catalogue {
 public:
  Catalogue();
  // Puts a user's file over what is there.
  void read(const std::string& path);
  // The same from a text; `where` stands for the file in messages.
  void parse(std::string_view toml, const std::string& where);
  const std::vector<Hardware>& all() const { return all_; }
  const Hardware& find(std::string_view name) const;  // throws UsageError with the near name

  // What --model names: by find_model_shape(), or by what a program that knows more names put here.
  using FindModel = std::function<ModelShape(const std::string& name)>;
  // For programs that read models from folders, which the planner alone cannot.
  void find_models_by(FindModel find) { find_model_ = std::move(find); }
  // Throws UsageError with the near name.
  ModelShape model(const std::string& name) const {
    return find_model_ ? find_model_(name) : find_model_shape(name);
  }

 private:
  std::vector<Hardware> all_;
  FindModel find_model_;
};

}  // namespace tessera::planner
