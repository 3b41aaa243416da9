#pragma once

#include <string>

#include "tessera/core/fingerprint.h"
#include "tessera/parallel/save.h"

namespace tessera::parallel {

// [Note: frozen parameters in checkpoints] A checkpoint may omit frozen parameters
// (SaveOptions::frozen): for a model fine-tuned with adapters it then has only the adapters. A
// program that loads it gets the frozen parameters from their original source, and they must be the
// same: the checkpoint has their fingerprint, a sum over all elements of all frozen parameters,
// each rounded to bf16 and multiplied by a number derived from the parameter's name and the
// element's index. So it depends neither on the mesh nor on whether the layout stores them in fp32
// or bf16.

// Collective. Returns "" if nothing is frozen.
std::string fingerprint_of_frozen(const Checkpointable& what);

// Key of the fingerprint in a checkpoint.
inline constexpr const char* kFrozen = kFrozenKey;

}  // namespace tessera::parallel
