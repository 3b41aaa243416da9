#include "tessera/process/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera::process {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// CPU set sized for its highest member: machines may have more than CPU_SETSIZE CPUs.
class CpuMask {
 public:
  explicit CpuMask(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
    size_ = CPU_ALLOC_SIZE(count);
    bits_.resize(size_ / sizeof(cpu_set_t) + 1);
    CPU_ZERO_S(size_, bits_.data());
    for (int cpu : cpus) CPU_SET_S(as_size(cpu), size_, bits_.data());
  }
  std::size_t size() const { return size_; }
  const cpu_set_t* bits() const { return bits_.data(); }

 private:
  std::size_t size_ = 0;
  std::vector<cpu_set_t> bits_;
};

void make_pipe(Fd& read_end, Fd& write_end) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw Error(str("cannot create a pipe: ", std::strerror(errno)));
  }
  read_end = Fd(fds[0]);
  write_end = Fd(fds[1]);
}

// Runs in the child. Only system calls are safe between fork and exec: another thread of the
// launcher may have held the heap lock at the fork.
[[noreturn]] void exec_child(const ProcessSpec& spec, const CpuMask& mask, char* const* arguments,
                             char* const* environment, int null_fd, int report_fd, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the launcher died before prctl()
  // A failed binding costs speed, not correctness.
  if (mask.size() > 0) ::sched_setaffinity(0, mask.size(), mask.bits());
  ::dup2(spec.in >= 0 ? spec.in : null_fd, 0);
  if (spec.out >= 0) ::dup2(spec.out, 1);
  if (spec.err >= 0) ::dup2(spec.err, 2);
  if (spec.inherited >= 0) ::fcntl(spec.inherited, F_SETFD, 0);
  // Reset before signals are unblocked: the parent's handlers would swallow them until exec.
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
  ::sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
  ::execve(spec.path.c_str(), arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(report_fd, &error, sizeof error);
  ::_exit(127);
}

// Main loop of the guard process. `groups` was allocated before the fork.
[[noreturn]] void guard_groups(int pipe_fd, pid_t* groups, int capacity) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "tessera-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Keeps only the pipe (as descriptor 0) open, so that readers of inherited pipes see them close.
  ::dup2(pipe_fd, 0);
#ifdef SYS_close_range
  ::syscall(SYS_close_range, 1u, ~0u, 0u);
#else
  for (int fd = 1; fd < 4096; ++fd) ::close(fd);
#endif
  pid_t message = 0;
  while (true) {
    const ssize_t count = ::read(0, &message, sizeof message);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof message) break;
    const pid_t old_entry = message > 0 ? 0 : -message;
    pid_t* const slot = std::find(groups, groups + capacity, old_entry);
    if (slot != groups + capacity) *slot = message > 0 ? message : 0;
  }
  for (int i = 0; i < capacity; ++i) {
    if (groups[i] > 0) ::kill(-groups[i], SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Started start_process(const ProcessSpec& spec) {
  const CpuMask mask(spec.cpus);
  const std::vector<char*> arguments = pointers(spec.arguments);
  const std::vector<char*> environment = pointers(spec.environment);
  const Fd null_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Fd report, report_write;
  make_pipe(report, report_write);
  const pid_t parent = ::getpid();
  Started result;
  result.pid = ::fork();
  if (result.pid < 0) throw Error(str("cannot start a process: ", start_failure_text(errno)));
  if (result.pid == 0) {
    exec_child(spec, mask, arguments.data(), environment.data(), null_fd.get(), report_write.get(),
               parent);
  }
  // Called in parent and child, so that the group exists before either continues.
  ::setpgid(result.pid, result.pid);
  report_write.reset();
  // A successful exec closes the pipe (O_CLOEXEC).
  ssize_t count = 0;
  do {
    count = ::read(report.get(), &result.exec_errno, sizeof result.exec_errno);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    ::waitpid(result.pid, nullptr, 0);
    result.pid = -1;
  }
  return result;
}

std::string find_program(const std::string& program, const std::string& search_path) {
  const auto is_program = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) {
    // A file that cannot be executed is left to exec, which returns the reason.
    return ::access(program.c_str(), F_OK) == 0 ? program : "";
  }
  for (std::size_t start = 0; start <= search_path.size() && !program.empty();) {
    const std::size_t end = std::min(search_path.find(':', start), search_path.size());
    const std::string folder = search_path.substr(start, end - start);
    const std::string path = (folder.empty() ? "." : folder) + "/" + program;
    if (is_program(path)) return path;
    start = end + 1;
  }
  return "";
}

Guard::Guard(int most_groups) {
  const auto groups = std::make_unique<pid_t[]>(as_size(most_groups));
  Fd read_end;
  make_pipe(read_end, pipe_);
  pid_ = ::fork();
  if (pid_ < 0) throw Error(str("cannot start the guard process: ", start_failure_text(errno)));
  if (pid_ == 0) {
    pipe_.reset();
    guard_groups(read_end.get(), groups.get(), most_groups);
  }
}

Guard::~Guard() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void Guard::watch(pid_t group) {
  [[maybe_unused]] const ssize_t ignored = ::write(pipe_.get(), &group, sizeof group);
}

void Guard::forget(pid_t group) { watch(-group); }

}  // namespace tessera::process
