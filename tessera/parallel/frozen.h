#pragma once

#include <string>

#include "tessera/core/fingerprint.h"
#include "tessera/parallel/save.h"

namespace tessera::parallel {

// [Note: frozen parameters in checkpoints] A checkpoint may leave out what is frozen
// (SaveOptions::frozen): of a model that is fine-tuned by adapters it then has the adapters alone.
// Who loads it has the frozen parameters from where they came from, and they must be the same: the
// checkpoint has their fingerprint, a sum over all elements of all frozen parameters, each rounded
// to bf16 and times a number that its parameter's name and its place make. So it depends neither on
// the mesh nor on whether the layout keeps them in fp32 or bf16.

// Collective. "" if nothing is frozen.
std::string fingerprint_of_frozen(const Checkpointable& what);

// The key under which a checkpoint has it.
inline constexpr const char* kFrozen = kFrozenKey;

}  // namespace tessera::parallel
