#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/core/experts.h"
#include "tessera/experts/layer.h"

namespace tessera {
struct StoredValues;  // parallelize.h
}

namespace tessera::parallel {

// Layers with experts of a rank.
class ModelExperts {
 public:
  // Adds those in layer number `index` of the model.
  void take(std::size_t index, const std::string& layer, torch::nn::Module& module);

  // Reads the selection biases that are stored, with the names of the whole model.
  void read_biases(const StoredValues& stored);

  bool any() const { return !layers_.empty(); }
  bool has_jitter() const;  // its random numbers change in every step
  bool has_losses() const;
  // Returns whether the host waits for the numbers of rows of experts on a GPU: only products of
  // bf16 matrices of all experts are one call.
  bool wait_for_counts() const;
  // Collective over the ranks with other tokens, after a step. Moves the selection biases of layers
  // that have a rate.
  void end_step(const comm::Mesh& mesh);
  // Collective over the mesh. Returns the use since the last call, by layer of the whole model.
  std::vector<ExpertLoad> take_loads(const comm::Mesh& mesh);

 private:
  struct Entry {
    std::size_t index = 0;
    std::string name;
    experts::MixtureOfExpertsImpl* layer = nullptr;
    std::vector<double> sums = {};  // taken from the layer, on this rank: see numbers_of()
  };
  void take_from(Entry& entry);

  std::vector<Entry> layers_;
  std::vector<torch::nn::ModuleHolder<experts::MixtureOfExpertsImpl>> owners_;
};

}  // namespace tessera::parallel
