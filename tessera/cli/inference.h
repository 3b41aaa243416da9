// Common to `tessera generate` and `tessera evaluate`, which run a trained model on ranks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/train/model_files.h"

namespace tessera::cli {

struct InferenceArguments {
  std::string from, base, dtype = "auto", device = "cpu", backend = "auto";
  int tp = 1, threads = 0;
  bool force = false, json = false;
};

// Add the options of the arguments, except those that the commands describe differently.
void add_model_options(CommandLine& line, InferenceArguments& a);
void add_device_options(CommandLine& line, InferenceArguments& a);

// Throws UsageError if the backend or the device cannot be used.
void check_device_options(const InferenceArguments& a);
// Opens the model. Throws UsageError if --tp does not divide it.
std::unique_ptr<train::ModelFiles> open_model(const InferenceArguments& a);
// Returns the device of this rank, and makes it current.
c10::Device own_device(const InferenceArguments& a, const comm::Group& ranks);
// Throws UsageError, before the model is loaded, if `ranks` ranks on this device need more memory
// than is free. Does nothing with --force.
void check_memory(const InferenceArguments& a, std::int64_t need, c10::Device device, int ranks,
                  const std::string& remedy);
// Prints those notes on stderr that are not empty.
void print_notes(const std::string& command, const std::vector<std::string>& notes);
// Starts this command as ranks on this machine. Returns its exit status.
int start_own_ranks(const InferenceArguments& a, int ranks, const std::string& command, int argc,
                    char** argv);

}  // namespace tessera::cli
