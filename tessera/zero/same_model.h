#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "tessera/zero/plan.h"

namespace tessera::zero {

// Do all ranks start alike? All throw UsageError if they do not, or none.

// The plan, once names, shapes and types have turned out to be the same, and the values too where
// nobody broadcasts them: at stage 3 nobody has all of another's values afterwards.
Plan same_on_all_ranks(Plan plan, const torch::nn::Module& model, const comm::Group& group,
                       const Options& options);
// Compares texts of one line for each thing in which ranks must not differ. Ranks with an empty
// text are left out. `what`: "models", say; `todo`: what the message ends with.
void expect_same_lines(const comm::Group& group, const std::string& mine, const char* what,
                       const char* todo);
// A hash of what a rank starts with.
void expect_same_start(const comm::Group& group, std::uint64_t hash);
// Hashes of what a rank starts with, and of what it takes the next rank to start with.
void expect_same_as_next(const comm::Group& group, std::uint64_t own, std::uint64_t next);

// Collective: whether this is true on some rank.
bool on_any_rank(const comm::Group& group, bool here);

// Mixes the bits of a tensor, eight bytes at a time, into a hash.
std::uint64_t mix_bits(std::uint64_t hash, const at::Tensor& values);

}  // namespace tessera::zero
