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
  const std::vector<Run>& counted(const std::string& param) const;
  std::string name_of(const std::string& raw) const;  // in the whole model

 private:
  std::string whole_name_of(const Layer::Tie& tie) const;

  const comm::Mesh mesh_;
  const ParallelOptions& options_;
  std::vector<ParamSpec> specs_;
  std::map<std::string, std::vector<Run>> counted_;
  std::map<std::string, std::string> tied_;  // raw name, less its chunk: name in the whole model
  std::map<std::string, bool> flat_;         // by the name of a layer
  std::set<std::string> kept_;
  std::set<std::string> stored_;             // those that lie in options_.stored
  std::map<std::string, ParamSpec> filled_;  // those that are not
};

}  // namespace tessera::parallel
