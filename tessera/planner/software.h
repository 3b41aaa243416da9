#pragma once

#include <cstdint>
#include <string>

#include "tessera/planner/question.h"

namespace tessera::planner {

// [Note: what software lacks] A plan reckons with any stage and any schedule, so that one can ask
// what they would bring. Whoever gives advice proposes only what the software that runs it has.
enum class Lack : std::uint8_t {
  none,
  stage_two,    // Megatron-LM's distributed optimizer keeps whole gradients
  schedule,     // Megatron-LM has 1f1b and interleaved
  split_at_3,   // Tessera: weight gradients put off, of parameters that stage 3 frees
  kept_in_pp,   // Tessera: parameters kept between the passes of a pipeline
  tied_on_one,  // Tessera: a tied embedding and its head on one pipeline rank
};

// The first thing that the question asks for and its software has not.
Lack lack_of(const Question& question);
// What is odd about it, in a sentence; "" for none.
std::string lack_words(const Question& question);
// Whether `other` asks for something that its software has not, where `now` does not.
bool newly_lacks(const Question& other, const Question& now);

// How the software itself is asked for the question's ZeRO stage, in a sentence of its own: "in
// Megatron-LM: --use-distributed-optimizer"; "" of Tessera, whose flag is the plan's, and where
// nothing is sharded.
std::string stage_in_software(const Question& question);
// What that adds to a sentence about going from `now` to `other`: " (in Megatron-LM: …)", or "".
std::string new_stage_in_software(const Question& other, const Question& now);

// Returns the setting of the software for replicas, as the end of a sentence: " (in PyTorch: …)".
// "" if there is none to name.
std::string replicas_in_software(const Question& question);

}  // namespace tessera::planner
