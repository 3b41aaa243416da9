#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/parallel/cut.h"
#include "tessera/parallel/model_chunk.h"
#include "tessera/zero/options.h"

namespace tessera::parallel {

// Names, cuts and initial values of the parameters of a rank.
class Start {
 public:
  Start(const comm::Mesh& mesh, const ParallelOptions& options, const std::vector<Layer>& layers);

  // Registers a layer that has been made. Frees the memory of its parameters, unless their values
  // are kept; the engine fills each rank's shards from source().
  void take(const Layer& layer, torch::nn::Module& module);
  zero::InitialSource source() const;
  // Collective. Broadcasts kept values from the first rank that has them.
  void share_kept(torch::nn::Module& module, const std::vector<TieGroup>& ties);

  const std::vector<ParamSpec>& specs() const { return specs_; }
  // Returns one line for each parameter of this rank, with all properties that must be equal on
  // other ranks, or on those with the same experts.
  std::vector<std::string> lines(bool of_experts) const;
  // The same for parameters that several layers share, on any ranks. Each line starts with a number
  // that is the same on all ranks, and a space.
  std::vector<std::string> tied_lines() const;
  bool has_ties() const { return !shared_.empty(); }
  const std::vector<Run>& counted(const std::string& param) const;
  // Returns true if the ranks of an axis hold different elements of the parameter.
  bool is_cut(const std::string& param) const;
  // Returns true if only ranks with the same experts have the parameter.
  bool of_expert(const std::string& param) const;
  std::string name_of(const std::string& raw) const;  // in the whole model

 private:
  void check_ties(const Layer& layer, const torch::nn::Module& module) const;
  void check_shared(const Layer& layer, const std::string& param, const ParamSpec& spec,
                    const at::Tensor& tensor) const;
  std::string line(const ParamSpec& spec) const;

  const comm::Mesh mesh_;
  const ParallelOptions& options_;
  std::vector<ParamSpec> specs_;
  std::map<std::string, std::vector<Run>> counted_;
  std::set<std::string> of_expert_;
  std::map<std::string, std::string> tied_;  // raw name without chunk: name in the whole model
  // By the name of a layer: names in the whole model of its tied parameters, and the ties to it.
  struct Ties {
    std::map<std::string, std::string> own;
    std::map<std::string, std::string> to;  // parameter: a layer that is tied to it
  };
  std::map<std::string, Ties> ties_;
  std::set<std::string> shared_;  // names in the whole model of parameters that have ties
  // First layer here that has a parameter, and its tensor, by its name in the whole model.
  struct First {
    std::string layer;
    at::Tensor tensor;
  };
  std::map<std::string, First> first_;
  std::set<std::string> kept_;
  std::set<std::string> stored_;             // parameters with values in options_.stored
  std::map<std::string, ParamSpec> filled_;  // parameters that source() fills, stored ones included
};

}  // namespace tessera::parallel
