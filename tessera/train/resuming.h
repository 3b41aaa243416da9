#pragma once

#include <cstdint>
#include <string>

#include "tessera/train/config.h"

namespace tessera::train {

// Functions for --resume that need only files and settings, not a model. They are called before
// ranks are started, and again by the ranks. None of them is collective.

// Returns the checkpoint that --resume names, or the newest good one if --resume is the folder of a
// run. Throws UsageError that describes the path otherwise. Not for none and auto.
std::string checkpoint_to_resume(const RunConfig& config);

// Number of attempts to find the newest checkpoint. Another run may still train in that folder, and
// remove old checkpoints while this one starts.
inline constexpr int kResumeAttempts = 5;
// Returns true if `folder`, which checkpoint_to_resume() found in the folder of a run, was removed
// since.
bool is_pruned(const RunConfig& config, const std::string& folder);

// Description of a run in a checkpoint.
struct SavedRun {
  std::int64_t step = 0;
  std::string model;  // result of shape_json()
  std::string optimizer;
  std::string tokenizer;     // fingerprint of the tokenizer of its data; "": unknown
  std::int64_t samples = 0;  // number of samples taken from the data
};
// Throws UsageError unless a run with these settings can resume from a checkpoint in `folder`.
void check_fits(const std::string& folder, const SavedRun& saved, const RunConfig& config,
                const Resolved& resolved);

// Returns the reason that a run that starts after `steps` steps must not save into --save; "" if it
// may. A restart after a failure resumes from the newest checkpoint of that folder, which must be
// one of this run.
std::string later_checkpoint(const RunConfig& config, std::int64_t steps);

// Makes all of these checks for --resume and --save.
void check_resume(const RunConfig& config, const Resolved& resolved);

// Describes the differences of a saved shape from this one; "" if there are none.
std::string other_shape(const std::string& saved, const ModelShape& shape);
// Returns the shape of a model as checkpoints store it.
std::string shape_json(const ModelShape& shape);
// Parses the result of shape_json(). `where` names the checkpoint in errors. Throws DataError if
// the text is not the shape of a model.
ModelShape parse_shape_json(const std::string& json, const std::string& where);

}  // namespace tessera::train
