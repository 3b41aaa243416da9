#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

// Every command is such a function. It returns the exit status, and throws UsageError for a call
// that is wrong; argv[0] is the command's name.
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

// All commands, also those of the other program.
std::vector<CommandInfo> commands();
std::vector<std::string> command_names();

// Becomes tessera-torch, the sibling of this program, with these arguments; throws Error that says
// how to get it where there is none. `command` is what the user called.
int execute_torch_program(const std::string& command, std::vector<char*> arguments);
// The same for another program beside this one; `how` says how to get it.
int execute_sibling(const std::string& program, const std::string& how, const std::string& command,
                    std::vector<char*> arguments);
// The path of such a program.
std::string sibling(const std::string& program);

// Runs `body` and turns what it throws into one line on stderr and an exit status: 2 for a
// UsageError, 1 for all else. `who` begins the line: "tessera run".
int guarded(const std::string& who, const std::function<int()>& body);

// A command's answer to stdout; its exit status. Throws Error where it cannot be written, as to a
// full disk; a reader that has gone is told nothing.
int print_out(const std::string& text);

}  // namespace tessera::cli
