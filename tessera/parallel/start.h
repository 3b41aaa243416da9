#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/parallel/cut.h"
#include "tessera/parallel/model_chunk.h"
#include "tessera/zero/initial_source.h"

namespace tessera::parallel {

// What the parameters of a rank are called, how they are cut, and what they start with.
class Start {
 public:
  Start(const comm::Mesh& mesh, const ParallelOptions& options, const std::vector<Layer>& layers);

  // A layer has been made. What it starts with is known without it, unless its values are kept:
  // then its memory is free again, and the engine fills the shard of each rank from source().
  void take(const Layer& layer, torch::nn::Module& module);
  zero::InitialSource source() const;
  // Collective: values that constructors gave are those of the first rank that has them.
  void share_kept(torch::nn::Module& module, const std::vector<TieGroup>& ties);

  const std::vector<ParamSpec>& specs() const { return specs_; }
  // One line for each parameter of this rank, with all that other ranks must have alike.
  std::vector<std::string> lines() const;
  // The same of parameters that several layers share, on whatever ranks, each behind a number that
  // is the same on all ranks and a space.
  std::vector<std::string> tied_lines() const;
  bool has_ties() const { return !shared_.empty(); }
  const std::vector<Run>& counted(const std::string& param) const;
  // Returns true if the ranks of an axis hold different elements of the parameter.
  bool is_cut(const std::string& param) const;
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
  std::map<std::string, std::string> tied_;  // raw name, less its chunk: name in the whole model
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
  std::set<std::string> stored_;             // those that lie in options_.stored
  std::map<std::string, ParamSpec> filled_;  // those that are not
};

}  // namespace tessera::parallel
