#include "tessera/cli/commands.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/log.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

bool is_of_torch(const std::string& library) {
  return library.starts_with("libtorch") || library.starts_with("libc10");
}

// Returns the library list that glibc's loader prints, as for ldd. The loader exits before the
// program would start.
std::string loader_list(const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const Fd from(ends[0]);
  Fd to(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, to.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::string path = program, trace = "LD_TRACE_LOADED_OBJECTS=1";
  char* const arguments[] = {path.data(), nullptr};
  std::vector<char*> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
  variables.push_back(trace.data());
  variables.push_back(nullptr);
  pid_t pid = -1;
  const int problem =
      ::posix_spawn(&pid, path.c_str(), &actions, nullptr, arguments, variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  to = Fd();
  if (problem != 0) return "";
  std::string text;
  char some[4096];
  for (ssize_t count = 0; (count = ::read(from.get(), some, sizeof some)) > 0;) {
    text.append(some, static_cast<std::size_t>(count));
  }
  ::waitpid(pid, nullptr, 0);
  return text;
}

// Returns the names of the shared libraries of a program that the loader does not find; empty if it
// finds all or cannot be run. Does not run the program.
std::vector<std::string> missing_libraries(const std::string& program) {
  constexpr std::string_view kMissing = " => not found";
  std::vector<std::string> missing;
  std::istringstream lines(loader_list(program));
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with(kMissing)) continue;
    const std::size_t begin = line.find_first_not_of(" \t");
    std::string name = line.substr(begin, line.size() - kMissing.size() - begin);
    if (std::find(missing.begin(), missing.end(), name) == missing.end()) missing.push_back(name);
  }
  return missing;
}

// Returns a one-line message: which libraries are missing and how to get them. `torch_folder` is
// where an installed tessera-torch looks for LibTorch.
std::string missing_libraries_text(const std::vector<std::string>& missing,
                                   const std::string& torch_folder) {
  std::vector<std::string> torch, others;
  for (const std::string& name : missing) (is_of_torch(name) ? torch : others).push_back(name);
  std::vector<std::string> texts;
  if (!torch.empty()) {
    const std::string full = TESSERA_TORCH_VERSION, version = full.substr(0, full.find('+'));
    texts.push_back(str(join(torch, ", "), " of LibTorch ", version,
                        ": pip install torch==", version,
                        ", then link its folder (ln -s "
                        "…/site-packages/torch ",
                        torch_folder, "), or set LD_LIBRARY_PATH to the lib folder in it"));
  }
  if (!others.empty()) {
    texts.push_back(str(join(others, ", "),
                        ": install the packages that have them (Debian: apt-file search ",
                        others.front(), ")"));
  }
  return str("libraries are missing: ", join(texts, "; "));
}

std::string own_folder() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw Error(str("cannot read /proc/self/exe: ", std::strerror(errno)));
  path.resize(static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/'));
}

// Opens /dev/null in place of closed standard descriptors (`2>&-`, some daemons). Otherwise the
// next file opened, such as a checkpoint, would get the number and receive messages. The open modes
// keep the descriptor unusable, as before.
void reserve_standard_descriptors() {
  for (const int fd : {0, 1, 2}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number. Without O_CLOEXEC: child programs need it too.
    ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

// LibTorch folder of an installation.
std::string installed_torch() {
  const std::string folder = own_folder();
  return folder.substr(0, folder.rfind('/')) + "/lib/tessera/torch";
}

}  // namespace

std::vector<CommandInfo> commands() {
  return {
#define TESSERA_FRONT(name, summary) {#name, summary, false},
#define TESSERA_TORCH(name, summary) {#name, summary, true},
#define TESSERA_PART(name)
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
#undef TESSERA_PART
  };
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands()) names.emplace_back(command.name);
  return names;
}

std::string sibling(const std::string& program) { return own_folder() + "/" + program; }

int execute_sibling(const std::string& program, const std::string& how, const std::string& command,
                    std::vector<char*> arguments) {
  std::string path = sibling(program);
  arguments.insert(arguments.begin(), path.data());
  arguments.push_back(nullptr);
  ::execv(path.c_str(), arguments.data());
  throw Error(str("the command ", command, " needs ", path,
                  ", which cannot be started: ", std::strerror(errno), ". ", how));
}

int execute_torch_program(const std::string& command, std::vector<char*> arguments) {
  // The dynamic loader would exit without saying how to get the libraries.
  if (const auto missing = missing_libraries(sibling("tessera-torch")); !missing.empty()) {
    throw Error(str("the command ", command,
                    " cannot start: ", missing_libraries_text(missing, installed_torch())));
  }
  return execute_sibling("tessera-torch",
                         "It is in the Debian package tessera. A source build makes it if LibTorch "
                         "is found: run `make build`, or configure CMake with "
                         "-DTESSERA_TORCH=ON and -DTORCH_DIR=<libtorch>",
                         command, std::move(arguments));
}

int guarded(const std::string& who, const std::function<int()>& body) {
  reserve_standard_descriptors();
  try {
    return body();
  } catch (const UsageError& error) {
    write_all(2, str(who, ": ", visible_lines(error.what()), "\n", "Try: ", who, " --help\n"));
    return 2;
  } catch (const std::exception& error) {
    write_all(2, str(who, ": ", visible_lines(message_of(error)), "\n"));
    return 1;
  }
}

int print_out(const std::string& text) {
  if (write_all(1, text)) return 0;
  if (errno == EPIPE) return 1;
  throw Error(str("cannot write to stdout: ", std::strerror(errno)));
}

// Starts the program of dashboard_main.cpp, which serves the page.
int dashboard_command(int argc, char** argv) {
  return execute_sibling("tessera-dashboard",
                         "In a source tree `make build` builds it; this needs zlib (Debian: "
                         "zlib1g-dev). `make train` builds only the trainer",
                         "dashboard", std::vector<char*>(argv + 1, argv + argc));
}

}  // namespace tessera::cli
