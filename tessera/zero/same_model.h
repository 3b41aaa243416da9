#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/zero/plan.h"

namespace tessera::zero {

// Checks that all ranks start with the same model. Either all ranks throw UsageError, or none.

// Returns the plan after checking that names, shapes and types are equal on all ranks, and values
// too if they are not broadcast: at stage 3 no rank has another rank's values afterwards.
Plan same_on_all_ranks(Plan plan, const torch::nn::Module& model, const comm::Group& group,
                       const Options& options);
// Compares texts with one line for each property that must be equal on all ranks. Ranks with an
// empty text are ignored. `what`: the subject, such as "models"; `todo`: end of the message.
void expect_same_lines(const comm::Group& group, const std::string& mine, const char* what,
                       const char* todo);
// Compares a hash of the initial values of each rank.
void expect_same_start(const comm::Group& group, std::uint64_t hash);
// Compares a hash of the initial values of each rank with the hash that the rank before it computed
// for them. `next`: this rank's hash for the next rank.
void expect_same_as_next(const comm::Group& group, std::uint64_t own, std::uint64_t next);

// Collective. Gathers a number of each rank, by rank.
std::vector<std::int64_t> gather_numbers(const comm::Group& group, std::int64_t mine,
                                         const char* label = "shape of the model");

// Collective. Returns true if `here` is true on any rank.
bool on_any_rank(const comm::Group& group, bool here);

// Mixes the bits of a tensor, eight bytes at a time, into a hash.
std::uint64_t mix_bits(std::uint64_t hash, const at::Tensor& values);

}  // namespace tessera::zero
