#pragma once

#include <cstdint>
#include <string>

#include "tessera/train/config.h"

namespace tessera::train {

// What --resume means, as far as files and settings tell without a model: asked before ranks are
// started, and again by them. Nothing here is collective.

// The checkpoint that --resume names: itself, or the newest good one of the run whose folder it is.
// Throws UsageError that says what is there instead. Not for none and auto.
std::string checkpoint_to_resume(const TrainConfig& config);

// The run behind --resume may still train, and remove old checkpoints while this one starts. Then
// the newest is looked up again, this many times in all.
inline constexpr int kResumeAttempts = 5;
// Returns whether `folder`, which checkpoint_to_resume() has found in the folder of a run, is gone
// by now.
bool is_pruned(const TrainConfig& config, const std::string& folder);

// Throws UsageError unless a run with these settings can go on from a checkpoint in `folder`.
struct SavedRun {
  std::int64_t step = 0;
  std::string model;  // as shape_json() writes it
  std::string optimizer;
  std::string tokenizer;     // the fingerprint of that of its data; "": not known
  std::int64_t samples = 0;  // taken from the data
};
void check_fits(const std::string& folder, const SavedRun& saved, const TrainConfig& config,
                const Resolved& resolved);

// Why a run that starts after so many steps must not save into --save; "" if it may. What goes on
// from the newest checkpoint of that folder, after a failure, must find its own there.
std::string later_checkpoint(const TrainConfig& config, std::int64_t steps);

// All of these for what --resume says.
void check_resume(const TrainConfig& config, const Resolved& resolved);

// What of a saved shape is not that of this one, in words; "" if all of it is.
std::string other_shape(const std::string& saved, const ModelShape& shape);
// The shape of a model, as a checkpoint has it.
std::string shape_json(const ModelShape& shape);
// And back. `where` names the checkpoint in errors. Throws DataError for what is no model's.
ModelShape parse_shape_json(const std::string& json, const std::string& where);

}  // namespace tessera::train
