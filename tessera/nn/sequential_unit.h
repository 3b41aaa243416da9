#pragma once

#include <torch/nn/modules/container/any.h>

#include <memory>

#include "tessera/nn/unit.h"

// Children of a Sequential as units. Internal.
namespace tessera::nn {

// [Note: Sequential] A Sequential calls its children through AnyModules, each of which holds a
// child and forwards calls to it. If a child is a unit, this holder is replaced by one that routes
// the call through the unit and otherwise behaves as before: the children stay registered, seq[i]
// is the child with its own type, and clone() clones the child without the unit. seq->at<T>(i)
// casts the holder and so needs one made for T. These exist for torch's layers; for other types
// at<T>() throws while they are units, and seq[i]->as<T>() works.
class SequentialUnit : public UnitBase {
 public:
  explicit SequentialUnit(torch::nn::AnyModule child) : child_(std::move(child)) {}
  at::Tensor forward(at::Tensor x);
  const torch::nn::AnyModule& child() const { return child_; }

 private:
  torch::nn::AnyModule child_;  // holder of the child before it became a unit
};

// Returns the unit through which a child of a Sequential is called; null if it is called directly.
std::shared_ptr<SequentialUnit> unit_of(torch::nn::AnyModule& slot);
void call_through(torch::nn::AnyModule& slot, const std::shared_ptr<SequentialUnit>& unit);

}  // namespace tessera::nn
