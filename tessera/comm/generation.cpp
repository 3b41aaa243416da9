#include "tessera/comm/generation.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

int Generation::rank_of(int process) const {
  const auto found = std::find(members.begin(), members.end(), process);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::string generation_prefix(const std::string& run, std::int64_t number) {
  return str("tessera/", run, "/generation/", number, "/");
}

std::string to_text(const Generation& generation) {
  std::string text = str(generation.number, " ", generation.replicas, " ",
                         generation.trained ? 1 : 0, " ", generation.over ? 1 : 0);
  for (const int process : generation.members) text += str(" ", process);
  return text;
}

Generation parse_generation(const std::string& text) {
  std::istringstream in(text);
  Generation generation;
  int trained = 0, over = 0, process = 0;
  if (!(in >> generation.number >> generation.replicas >> trained >> over)) {
    throw DataError(str("Store key ", quote(kGenerationKey), " is ", quote(text),
                        ", expected four numbers and the members. Another process may be writing "
                        "to this store."));
  }
  generation.trained = trained != 0;
  generation.over = over != 0;
  while (in >> process) generation.members.push_back(process);
  return generation;
}

std::string report_key(const MemberReport& report) { return str(kReportPrefix, report.process); }

std::string to_text(const MemberReport& report) {
  return str(static_cast<int>(report.kind), " ", report.generation, " ", report.culprit, " ",
             report.text);
}

MemberReport parse_report(std::string_view key, const std::string& text) {
  MemberReport report;
  int kind = -1;
  std::istringstream in(text);
  const char* const begin = key.data() + std::min(key.size(), kReportPrefix.size());
  const char* const end = key.data() + key.size();
  const auto [rest, error] = std::from_chars(begin, end, report.process);
  if (error != std::errc() || rest != end || !(in >> kind >> report.generation >> report.culprit) ||
      kind < 0 || kind > static_cast<int>(MemberReport::Kind::finished)) {
    throw DataError(str("Store key ", quote(std::string(key)), " is ", quote(text),
                        ", expected a report of a rank. Another process may be writing to this "
                        "store."));
  }
  report.kind = static_cast<MemberReport::Kind>(kind);
  in.ignore(1);
  std::getline(in, report.text, '\0');
  return report;
}

}  // namespace tessera::comm
