#include "tessera/zero/state_storage.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::zero {
namespace {

class MemoryStorage final : public StateStorage {
 public:
  MemoryStorage(std::int64_t bytes, const Buffers& buffers)
      : buffer_(buffers.own(bytes, at::dtype(at::kByte), MemoryCategory::optimizer)),
        memory_(static_cast<std::byte*>(buffer_.tensor.mutable_data_ptr())) {}

  void read(ByteRange from, std::byte* into) const override {
    std::memcpy(into, memory_ + from.offset, static_cast<std::size_t>(from.bytes));
  }
  void write(ByteRange to, const std::byte* from) override {
    std::memcpy(memory_ + to.offset, from, static_cast<std::size_t>(to.bytes));
  }
  void update(const std::vector<ByteRange>& ranges,
              const std::function<void(std::size_t, std::byte*)>& change) override {
    for (std::size_t i = 0; i < ranges.size(); ++i) change(i, memory_ + ranges[i].offset);
  }

 private:
  const Buffer buffer_;
  std::byte* const memory_;
};

// Makes a file of `bytes` zeros whose blocks are allocated, so that a full disk is an error now
// instead of in some later step. The file has no name: the system removes it when the process ends,
// however it ends.
Fd make_scratch_file(const std::string& dir, std::int64_t bytes) {
  const std::string where = str("The folder for offloaded state, ", quote(dir), ", ");
  std::string path = dir + "/tessera-state-XXXXXX";
  Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file.open()) {
    const int why = errno;
    throw UsageError(
        str(where, why == ENOENT ? std::string("does not exist. Create it")
                   : why == ENOTDIR
                       ? std::string("is not a folder. Choose another one")
                       : str("cannot be written: ", std::strerror(why), ". Choose another one")));
  }
  ::unlink(path.c_str());
  if (bytes == 0) return file;
  if (const int why = ::posix_fallocate(file.get(), 0, bytes); why != 0) {
    struct statvfs space = {};
    const bool known = ::fstatvfs(file.get(), &space) == 0;
    throw UsageError(str(
        where, "cannot hold ", format_bytes(bytes), " of optimizer state: ", std::strerror(why),
        known ? str(", ", format_bytes(static_cast<std::int64_t>(space.f_bavail * space.f_frsize)),
                    " are free")
              : std::string(),
        ". Free space, or choose another folder"));
  }
  return file;
}

// State in a file. update() overlaps reading, changing and writing: a thread reads ahead and
// another one writes behind, through a ring of kRecordBuffers buffers.
class FileStorage final : public StateStorage {
 public:
  FileStorage(const std::string& dir, std::int64_t bytes, std::int64_t largest,
              const Buffers& buffers)
      : dir_(dir),
        file_(make_scratch_file(dir, bytes)),
        largest_((largest + 63) / 64 * 64),
        ring_(buffers.own(kRecordBuffers * largest_, at::dtype(at::kByte),
                          MemoryCategory::buffers)) {}

  void read(ByteRange from, std::byte* into) const override {
    transfer(from, into, ::pread, "read");
  }
  void write(ByteRange to, const std::byte* from) override {
    transfer(to, from, ::pwrite, "written");
  }

  void update(const std::vector<ByteRange>& ranges,
              const std::function<void(std::size_t, std::byte*)>& change) override {
    Progress progress;
    const auto slot = [&](std::size_t i) {
      return static_cast<std::byte*>(ring_.tensor.mutable_data_ptr()) +
             static_cast<std::int64_t>(i % kRecordBuffers) * largest_;
    };
    const auto each = [&](std::size_t Progress::*done, auto&& ready, auto&& work) {
      try {
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          if (!progress.await([&] { return ready(i); })) return;
          work(i);
          progress.advance(done);
        }
      } catch (...) {
        progress.fail(std::current_exception());
      }
    };
    std::thread reader([&] {
      each(
          &Progress::read, [&](std::size_t i) { return i < progress.written + kRecordBuffers; },
          [&](std::size_t i) { read(ranges[i], slot(i)); });
    });
    std::thread writer([&] {
      each(
          &Progress::written, [&](std::size_t i) { return i < progress.changed; },
          [&](std::size_t i) { write(ranges[i], slot(i)); });
    });
    each(
        &Progress::changed, [&](std::size_t i) { return i < progress.read; },
        [&](std::size_t i) { change(i, slot(i)); });
    reader.join();
    writer.join();
    if (progress.error) std::rethrow_exception(progress.error);
  }

 private:
  // Number of ranges that have passed each stage. An error ends all of them.
  struct Progress {
    std::size_t read = 0, changed = 0, written = 0;
    std::exception_ptr error;
    std::mutex mutex;
    std::condition_variable moved;

    template <class Ready>
    bool await(Ready&& ready) {
      std::unique_lock lock(mutex);
      moved.wait(lock, [&] { return error || ready(); });
      return !error;
    }
    void advance(std::size_t Progress::*stage) {
      const std::lock_guard lock(mutex);
      ++(this->*stage);
      moved.notify_all();
    }
    void fail(std::exception_ptr why) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::move(why);
      moved.notify_all();
    }
  };

  template <class Pointer, class Call>
  void transfer(ByteRange range, Pointer memory, Call&& call, const char* done) const {
    while (range.bytes > 0) {
      const ssize_t count =
          call(file_.get(), memory, static_cast<std::size_t>(range.bytes), range.offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        throw Error(str("offloaded state in ", quote(dir_), " cannot be ", done, ": ",
                        count == 0 ? "unexpected end of file" : std::strerror(errno),
                        ". Check the disk; the run can be resumed from its last checkpoint"));
      }
      memory += count;
      range.offset += count;
      range.bytes -= count;
    }
  }

  const std::string dir_;
  const Fd file_;
  const std::int64_t largest_;
  const Buffer ring_;
};

}  // namespace

std::unique_ptr<StateStorage> make_state_storage(StatePlacement placement, const std::string& dir,
                                                 std::int64_t bytes, std::int64_t largest,
                                                 const Buffers& buffers) {
  switch (placement) {
    case StatePlacement::device: return std::make_unique<MemoryStorage>(bytes, buffers);
    case StatePlacement::disk: return std::make_unique<FileStorage>(dir, bytes, largest, buffers);
  }
  return nullptr;
}

}  // namespace tessera::zero
