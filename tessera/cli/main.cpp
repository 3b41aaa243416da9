// The front program `tessera`. It does not link torch, so it starts in milliseconds. For commands
// that need torch it execs its sibling tessera-torch.

#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

std::string general_help() {
  std::string text =
      "Tessera: distributed training for LibTorch.\n"
      "\nUsage: tessera COMMAND [OPTIONS]\n\nCommands:\n";
  for (const CommandInfo& command : commands()) {
    text +=
        str("  ", command.name, std::string(14 - command.name.size(), ' '), command.summary, "\n");
  }
  text +=
      "\nOptions:\n"
      "  -h, --help    print this help; `tessera COMMAND --help` describes a command\n"
      "  --version     print the version\n"
      "\nExamples:\n"
      "  tessera run -n 4 -- ./program --its-own-options\n"
      "  tessera doctor\n"
      "  tessera plan --model gpt2-xl --dp 8 --zero 1 --micro-batch 8\n"
      "  tessera bench comm --ranks 2\n";
  return text;
}

using CommandFunction = int (*)(int, char**);

CommandFunction front_command(const std::string& command) {
#define TESSERA_FRONT(name, summary) \
  if (command == #name) return name##_command;
#define TESSERA_TORCH(name, summary)
#define TESSERA_PART(name)
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
#undef TESSERA_PART
  return nullptr;
}

int front(std::vector<char*> words) {
  if (words.empty()) {
    write_all(2, general_help());
    return 2;
  }
  static char help_option[] = "--help";
  if (std::string(words[0]) == "help" && words.size() > 1) words = {words[1], help_option};
  const std::string first = words[0];
  if (first == "--help" || first == "-h" || first == "help") {
    return print_out(general_help());
  }
  if (first == "--version" || first == "-V") {
    // A planner-only package may come from a build with LibTorch, so check for the program too.
    const std::string torch = TESSERA_TORCH_VERSION;
    const bool exists = !torch.empty() && ::access(sibling("tessera-torch").c_str(), X_OK) == 0;
    const std::string with = exists ? "LibTorch " + torch : "without LibTorch";
    return print_out(str("tessera ", TESSERA_VERSION, " (", with, ")\n"));
  }
  for (const CommandInfo& command : commands()) {
    if (command.name != first) continue;
    if (command.torch) return execute_torch_program(first, words);
    // Writes beyond the file size limit then fail with EFBIG, which is reported. Not for `run`,
    // whose ranks would inherit the disposition.
    if (first != "run") ::signal(SIGXFSZ, SIG_IGN);
    return guarded("tessera " + first, [&] {
      return front_command(first)(static_cast<int>(words.size()), words.data());
    });
  }
  std::vector<std::string> names =
      first[0] == '-' ? std::vector<std::string>{"--help", "--version"} : command_names();
  throw UsageError(str(quote(first), ": unknown ", first[0] == '-' ? "option" : "command",
                       did_you_mean(first, names)));
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  return tessera::cli::guarded("tessera", [&] {
    return tessera::cli::front(std::vector<char*>(argv + (argc > 0 ? 1 : 0), argv + argc));
  });
}
