#include "tessera/cli/commands.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "tessera/cli/missing_libraries.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

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

}  // namespace tessera::cli
