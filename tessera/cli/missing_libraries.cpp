#include "tessera/cli/missing_libraries.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "tessera/core/fd.h"
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

}  // namespace

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

}  // namespace tessera::cli
