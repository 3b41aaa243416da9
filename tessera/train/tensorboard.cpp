#include "tessera/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

// Appends in little-endian order on every machine.
template <class Word>
void append_word(std::string& to, Word word) {
  for (std::size_t i = 0; i < sizeof word; ++i) to += static_cast<char>(word >> (8 * i) & 0xff);
}

// Wire types of protocol buffers: a field is a key (its number and wire type) and a value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void append_key(std::string& to, int field, Wire wire) {
  append_varint(to, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
void append_number(std::string& to, int field, std::uint64_t value) {
  append_key(to, field, Wire::varint);
  append_varint(to, value);
}
void append_double(std::string& to, int field, double value) {
  append_key(to, field, Wire::fixed64);
  append_word(to, std::bit_cast<std::uint64_t>(value));
}
void append_float(std::string& to, int field, float value) {
  append_key(to, field, Wire::fixed32);
  append_word(to, std::bit_cast<std::uint32_t>(value));
}
void append_bytes(std::string& to, int field, std::string_view value) {
  append_key(to, field, Wire::bytes);
  append_varint(to, value.size());
  to += value;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_of(std::int64_t step) {
  std::string event;
  append_double(event, 1, wall_time());
  append_number(event, 2, static_cast<std::uint64_t>(step));
  return event;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return "host";
  return name;
}

[[noreturn]] void refuse_folder(const std::string& folder, std::string_view flag,
                                const std::string& why) {
  throw UsageError(str(flag, ": cannot write into ", quote(folder), ": ", why,
                       "; must be a folder for TensorBoard's files"));
}

}  // namespace

std::uint32_t masked_crc(std::string_view data) {
  const std::uint32_t crc = checkpoint::crc32c(data);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

void check_event_folder(const std::string& folder, std::string_view flag) {
  std::filesystem::path at = std::filesystem::absolute(folder);
  if (const std::string kind = kind_of_file(folder); kind != "nothing" && kind != "a folder") {
    refuse_folder(folder, flag, "it is " + kind);
  }
  // The deepest existing folder of the path must be writable.
  while (!std::filesystem::exists(at) && at.has_relative_path()) at = at.parent_path();
  if (::access(at.c_str(), W_OK | X_OK) != 0) refuse_folder(folder, flag, std::strerror(errno));
}

EventFile::EventFile(const std::string& folder, std::string_view flag, std::int64_t first_step) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) refuse_folder(folder, flag, problem.message());
  const auto seconds = static_cast<std::int64_t>(wall_time());
  // Files are read in the order of their names: later files must sort after earlier ones.
  for (int n = 0;; ++n) {
    std::string number = str(n);
    number.insert(0, 3 - std::min<std::size_t>(3, number.size()), '0');
    path_ = str(folder, "/events.out.tfevents.", seconds, ".", number, ".", host_name(), ".",
                ::getpid());
    file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (file_.open()) break;
    if (errno != EEXIST) refuse_folder(folder, flag, std::strerror(errno));
  }
  std::string version = event_of(0);
  append_bytes(version, 3, "brain.Event:2");
  record(version);
  // A session log makes readers drop earlier records of this and later steps.
  std::string session, start = event_of(first_step);
  append_number(session, 1, 1);
  append_bytes(start, 7, session);
  record(start);
}

void EventFile::record(const std::string& event) {
  std::string length, data;
  append_word(length, static_cast<std::uint64_t>(event.size()));
  data = length;
  append_word(data, masked_crc(length));
  data += event;
  append_word(data, masked_crc(event));
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  if (write_all(file_.get(), data)) return;
  const int error = errno;
  if (before >= 0) (void)!::ftruncate(file_.get(), before);
  throw DataError(str("cannot write ", data.size(), " bytes to ", quote(path_), ": ",
                      std::strerror(error), advice_on(error)));
}

void EventFile::write(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, 1, tag);
    append_float(value, 2, static_cast<float>(number));
    append_bytes(summary, 1, value);
  }
  std::string event = event_of(step);
  append_bytes(event, 5, summary);
  record(event);
}

void EventFile::write(const StepMetrics& step) {
  Scalars scalars = {{"train/loss", step.loss},
                     {"train/grad_norm", step.grad_norm},
                     {"train/lr", step.lr},
                     {"speed/tokens_per_s", step.tokens_per_s()},
                     {"speed/step_s", step.step_s},
                     {"speed/comm_exposed_s", step.comm_exposed_s},
                     {"memory/peak_bytes", static_cast<double>(step.mem_peak_bytes)},
                     {"memory/bytes", static_cast<double>(step.mem_bytes)}};
  if (!step.experts.empty()) {
    ExpertLoad mean;
    double imbalance = 0;
    for (const ExpertLoad& load : step.experts) {
      const double share = 1 / static_cast<double>(step.experts.size());
      imbalance = std::max(imbalance, load.imbalance());
      mean.dropped += share * load.dropped;
      mean.entropy += share * load.entropy;
      mean.balance += share * load.balance;
      mean.z += share * load.z;
    }
    scalars.insert(scalars.end(), {{"experts/busiest_over_mean", imbalance},
                                   {"experts/dropped", mean.dropped},
                                   {"experts/entropy", mean.entropy},
                                   {"experts/balance", mean.balance},
                                   {"experts/z", mean.z}});
  }
  if (step.evaluation) {
    scalars.emplace_back("eval/loss", step.evaluation->loss());
    scalars.emplace_back("eval/perplexity", step.evaluation->perplexity());
    if (step.evaluation->bytes > 0) {
      scalars.emplace_back("eval/bits_per_byte", step.evaluation->bits_per_byte());
    }
  }
  write(step.step, scalars);
}

}  // namespace tessera::train
