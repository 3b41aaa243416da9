#include "tessera/cli/sync_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

double seconds_between(RankTimes::Time from, RankTimes::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

// Appends the phases of a rank, split by its waits.
void add_phases(const RankTimes& times, int rank, RankTimes::Time zero, SyncPass& pass) {
  const std::pair<const char*, RankTimes::Time> phases[] = {{"forward", times.forward},
                                                            {"backward", times.backward},
                                                            {"wait", times.synchronized},
                                                            {"optimizer", times.end}};
  const auto add = [&](const char* what, RankTimes::Time begin, RankTimes::Time end) {
    if (begin >= end) return;
    pass.spans.push_back(
        {rank, "compute", "", what, 0, seconds_between(zero, begin), seconds_between(zero, end)});
  };
  RankTimes::Time at = times.begin;
  for (const auto& [what, end] : phases) {
    for (const RankTimes::Call& wait : times.waits) {
      const auto from = std::max(at, wait.begin), to = std::min(end, wait.end);
      if (from >= to || what == std::string("wait")) continue;
      add(what, at, from);
      add("wait", from, to);
      at = to;
    }
    add(what, at, end);
    at = std::max(at, end);
  }
}

std::string values_text(const std::vector<double>& values) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, values.size()); ++i) {
    char number[16];
    std::snprintf(number, sizeof(number), "%+.4f", values[i]);
    text += str(i > 0 ? " " : "", number);
  }
  return text + (values.size() > 3 ? " …" : "");
}

// Times of a bucket on the last rank.
struct BucketTimes {
  double ready = 0, sent = 0, done = 0;
};
BucketTimes times_of(const SyncWay& way, std::size_t bucket) {
  BucketTimes times;
  const SyncPass& pass = way.median();
  for (const std::string& name : way.buckets[bucket].params) {
    const auto when = pass.ready.find(name);
    if (when != pass.ready.end()) times.ready = std::max(times.ready, when->second);
  }
  for (const SyncSpan& span : pass.spans) {
    if (span.what != str("bucket ", bucket)) continue;
    times.sent = std::max(times.sent, span.begin);
    times.done = std::max(times.done, span.end);
  }
  return times;
}

// Calls of one kind by a rank in one pass.
struct OpCount {
  std::string op;
  int count = 0;
  std::int64_t bytes = 0;  // of the buffers
};
std::vector<OpCount> count_ops(const SyncPass& pass) {
  std::vector<OpCount> all;
  for (const SyncSpan& span : pass.spans) {
    if (span.rank != 0 || span.op.empty()) continue;
    auto found = std::find_if(all.begin(), all.end(),
                              [&](const OpCount& each) { return each.op == span.op; });
    if (found == all.end()) found = all.insert(all.end(), {span.op, 0, 0});
    ++found->count;
    found->bytes += span.bytes;
  }
  return all;
}

std::string buckets_text(const SyncReport& report) {
  std::string text =
      "Backward runs from the last layer to the first, so the gradients of the last layer are "
      "ready first.\nA bucket is sent as soon as all its gradients are ready, while backward "
      "continues.\n";
  const SyncWay& way = report.way("overlapped");
  for (std::size_t b = 0; b < way.buckets.size(); ++b) {
    const BucketTimes times = times_of(way, b);
    text += str("\nbucket ", b, ", ", format_bytes(way.buckets[b].bytes));
    if (times.done > 0) {
      text += str(", ready at ", format_time(times.ready), ", sent at ", format_time(times.sent),
                  ", done at ", format_time(times.done));
    }
    text += "\n";
    for (const std::string& name : way.buckets[b].params) {
      text += str("  ", name, "\n");
      for (std::size_t r = 0; r < report.gradients.before.size(); ++r) {
        text += str("    rank ", r, "  before  ", values_text(report.gradients.before[r].at(name)),
                    "  after  ", values_text(report.gradients.after[r].at(name)), "\n");
      }
    }
  }
  return text + "\nAfter synchronization every rank has the mean of the ranks' gradients.\n";
}

std::string against(double mine, double other) {
  return str(format_time(mine), " instead of ", format_time(other));
}

// Returns the reason that buckets were slower than per-parameter synchronization: the phase that
// grew the most, and its cause.
std::string slower_reason(const SyncReport& report, const SyncWay& buckets, const SyncWay& plain) {
  const SyncPass& mine = buckets.median();
  const SyncPass& other = plain.median();
  struct Phase {
    const char* name;
    double mine, other;
  };
  const Phase phases[] = {{"Forward", mine.forward, other.forward},
                          {"Backward", mine.backward, other.backward},
                          {"Exposed communication", mine.wait, other.wait},
                          {"The optimizer", mine.optimizer, other.optimizer}};
  const Phase& most = *std::max_element(
      std::begin(phases), std::end(phases),
      [](const Phase& a, const Phase& b) { return a.mine - a.other < b.mine - b.other; });
  const std::string text = str(most.name, " took ", against(most.mine, most.other));
  const auto& arguments = report.arguments;
  if (&most == &phases[1] && buckets.name == "overlapped") {
    return text + (2 * arguments.ranks > report.cores
                       ? str(": the computing and communicating threads of ", arguments.ranks,
                             " ranks share ", report.cores,
                             " cores, so communication slows "
                             "backward down")
                       : std::string(": communication during backward uses cores and memory "
                                     "bandwidth that backward needs"));
  }
  if (&most != &phases[2]) {
    return text + ". It does not communicate, so this is variation between passes";
  }
  if (buckets.buckets.size() == 1) {
    return text + ": a single bucket is ready only when backward ends, so nothing overlaps";
  }
  if (buckets.buckets.size() == plain.buckets.size()) {
    return text + ": each bucket holds one parameter, so the number of collectives is the same";
  }
  std::int64_t bytes = 0;
  for (const SyncBucket& bucket : plain.buckets) bytes += bucket.bytes;
  bytes /= static_cast<std::int64_t>(std::max<std::size_t>(1, plain.buckets.size()));
  return str(text, ": gradients of ", format_bytes(bytes), " on average are so large that ",
             buckets.buckets.size(), " collectives instead of ", plain.buckets.size(),
             " save little latency");
}

}  // namespace

SyncPass on_one_clock(const std::vector<RankTimes>& ranks) {
  SyncPass pass;
  if (ranks.empty()) return pass;
  RankTimes::Time zero = ranks.front().begin;
  for (const RankTimes& times : ranks) zero = std::min(zero, times.begin);
  const auto since = [&](RankTimes::Time when) { return seconds_between(zero, when); };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankTimes& times = ranks[r];
    const int rank = static_cast<int>(r);
    add_phases(times, rank, zero, pass);
    for (const RankTimes::Call& call : times.calls) {
      pass.spans.push_back(
          {rank, "comm", call.op, call.what, call.bytes, since(call.begin), since(call.end)});
    }
    for (const auto& [name, when] : times.ready) {
      pass.ready[name] = std::max(pass.ready[name], since(when));
    }
    pass.seconds = std::max(pass.seconds, since(times.end));
  }
  for (const SyncSpan& span : pass.spans) {
    if (!span.op.empty()) continue;
    double& phase = span.what == "forward"    ? pass.forward
                    : span.what == "backward" ? pass.backward
                    : span.what == "wait"     ? pass.wait
                                              : pass.optimizer;
    phase += (span.end - span.begin) / static_cast<double>(ranks.size());
  }
  pass.sent_bytes = ranks.front().sent_bytes;
  return pass;
}

const SyncPass& SyncWay::median() const {
  std::vector<const SyncPass*> sorted;
  for (const SyncPass& pass : passes) sorted.push_back(&pass);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(),
                   [](const SyncPass* a, const SyncPass* b) { return a->seconds < b->seconds; });
  return **middle;
}

double SyncWay::best_seconds() const {
  double best = passes.front().seconds;
  for (const SyncPass& pass : passes) best = std::min(best, pass.seconds);
  return best;
}

const SyncWay& SyncReport::way(const std::string& name) const {
  for (const SyncWay& each : ways) {
    if (each.name == name) return each;
  }
  throw UsageError(str("explain sync: no method ", quote(name)));
}

std::string sync_comparison(const SyncReport& report) {
  const SyncWay& plain = report.way("per-parameter");
  const SyncWay& after = report.way("bucketed");
  const SyncWay& during = report.way("overlapped");
  const SyncWay& buckets = during.median().seconds <= after.median().seconds ? during : after;
  const double mine = buckets.median().seconds, other = plain.median().seconds;
  const char* const how = &buckets == &during ? "during backward" : "after backward";
  std::string text;
  if (other < mine) {
    text = str("One all-reduce per parameter was faster than buckets: ", format_time(other),
               " against ", format_time(mine), " for buckets reduced ", how, ". ",
               slower_reason(report, buckets, plain), ".");
  } else {
    text = str("Buckets reduced ", how,
               " were faster than one all-reduce per parameter: ", format_time(mine), " against ",
               format_time(other), ". Exposed communication took ",
               against(buckets.median().wait, plain.median().wait), ".");
  }
  const SyncWay& slower = other < mine ? buckets : plain;
  if (slower.best_seconds() < std::min(mine, other)) {
    text +=
        str(" The passes vary by more than this difference (the fastest of the slower method "
            "took ",
            format_time(slower.best_seconds()), "), so another run may reverse the order.");
  }
  return text;
}

std::string sync_text(const SyncReport& report) {
  const SyncArguments& arguments = report.arguments;
  std::string text = buckets_text(report);
  text +=
      str("\nForward, backward, synchronization and optimizer of ", arguments.layers, " layers of ",
          arguments.width, " × ", arguments.width, " on ", arguments.ranks, " ranks, median of ",
          arguments.rounds,
          " passes.\n\"wait\" is exposed communication, mean over ranks. \"sent\" is by a rank, "
          "as if by rings.\n\n");
  char line[160];
  std::snprintf(line, sizeof(line), "  %-14s %11s %11s %10s  %s\n", "method", "time", "wait",
                "sent", "collectives");
  text += line;
  for (const SyncWay& way : report.ways) {
    const SyncPass& pass = way.median();
    std::vector<std::string> ops;
    for (const OpCount& each : count_ops(pass)) ops.push_back(str(each.count, " ", each.op));
    std::snprintf(line, sizeof(line), "  %-14s %8.2f ms %8.2f ms %10s  %s\n", way.name.c_str(),
                  pass.seconds * 1e3, pass.wait * 1e3, format_bytes(pass.sent_bytes).c_str(),
                  join(ops, ", ").c_str());
    text += line;
  }
  text += "\n";
  for (const SyncWay& way : report.ways) text += str("  ", way.name, ": ", way.text, "\n");
  return str(text, "\n", sync_comparison(report), "\n");
}

nlohmann::ordered_json sync_json(const SyncReport& report) {
  using Json = nlohmann::ordered_json;
  Json parameters = Json::array(), buckets = Json::array(), ways = Json::array();
  const SyncWay& overlapped = report.way("overlapped");
  for (std::size_t b = 0; b < overlapped.buckets.size(); ++b) {
    const SyncBucket& bucket = overlapped.buckets[b];
    for (const std::string& name : bucket.params) {
      Json before = Json::array(), after = Json::array();
      for (const auto& rank : report.gradients.before) before.push_back(rank.at(name));
      for (const auto& rank : report.gradients.after) after.push_back(rank.at(name));
      parameters.push_back({{"name", name},
                            {"elements", report.gradients.elements.at(name)},
                            {"bucket", b},
                            {"before", std::move(before)},
                            {"after", std::move(after)}});
    }
    const BucketTimes times = times_of(overlapped, b);
    buckets.push_back({{"index", b},
                       {"bytes", bucket.bytes},
                       {"parameters", bucket.params},
                       {"ready", times.ready},
                       {"sent", times.sent},
                       {"done", times.done}});
  }
  for (const SyncWay& way : report.ways) {
    const SyncPass& pass = way.median();
    Json spans = Json::array(), collectives = Json::array();
    for (const SyncSpan& span : pass.spans) {
      spans.push_back({{"rank", span.rank},
                       {"lane", span.lane},
                       {"what", span.op.empty() ? span.what : str(span.op, " ", span.what)},
                       {"begin", span.begin},
                       {"end", span.end}});
    }
    for (const OpCount& each : count_ops(pass)) {
      collectives.push_back({{"op", each.op}, {"count", each.count}, {"bytes", each.bytes}});
    }
    ways.push_back({{"name", way.name},
                    {"text", way.text},
                    {"seconds", pass.seconds},
                    {"best_seconds", way.best_seconds()},
                    {"wait_seconds", pass.wait},
                    {"sent_bytes", pass.sent_bytes},
                    {"collectives", std::move(collectives)},
                    {"spans", std::move(spans)}});
  }
  return {{"ranks", report.arguments.ranks},       {"bucket_bytes", report.arguments.bucket_bytes},
          {"width", report.arguments.width},       {"layers", report.arguments.layers},
          {"comparison", sync_comparison(report)}, {"parameters", std::move(parameters)},
          {"buckets", std::move(buckets)},         {"ways", std::move(ways)}};
}

}  // namespace tessera::cli
