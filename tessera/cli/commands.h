#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

// Commands: each returns the exit status and throws UsageError for wrong arguments. argv[0] is the
// command's name.
#define TESSERA_FRONT(name, summary) int name##_command(int argc, char** argv);
#define TESSERA_TORCH(name, summary) int name##_command(int argc, char** argv);
#define TESSERA_PART(name) int name##_command(int argc, char** argv);
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
#undef TESSERA_PART

struct CommandInfo {
  std::string_view name;
  std::string_view summary;
  bool torch;
};

// Returns all commands, including those of tessera-torch.
std::vector<CommandInfo> commands();
std::vector<std::string> command_names();

// Replaces this process with tessera-torch from the same folder, with these arguments. If it is
// missing, throws Error with instructions to install it. `command` is the command the user ran.
int execute_torch_program(const std::string& command, std::vector<char*> arguments);
// The same for another program in the folder of this one. `how` has instructions to install it.
int execute_sibling(const std::string& program, const std::string& how, const std::string& command,
                    std::vector<char*> arguments);
// Returns the path of a program in the folder of this one.
std::string sibling(const std::string& program);

// Runs `body` and turns exceptions into a message on stderr and an exit status: 2 for UsageError, 1
// otherwise. `who` starts the message: "tessera run".
int guarded(const std::string& who, const std::function<int()>& body);

// Writes a command's result to stdout and returns the exit status. Throws Error if the write fails,
// for example on a full disk. A closed pipe gives status 1 without a message.
int print_out(const std::string& text);

}  // namespace tessera::cli
