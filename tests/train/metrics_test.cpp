#include "tessera/train/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/train/run_trace.h"
#include "tests/temporary_folder.h"

namespace tessera::train {
namespace {

using Json = nlohmann::json;

TEST(Metrics, StepHasExactlyTheseKeys) {
  StepMetrics step;
  step.tokens = 100;
  step.step_s = 0.5;
  const Json json = Json::parse(to_json(step));
  const std::vector<std::string> keys = {
      "step",       "loss",           "grad_norm",      "lr",
      "tokens",     "tokens_per_s",   "step_s",         "forward_s",
      "backward_s", "comm_s",         "comm_exposed_s", "optimizer_s",
      "data_s",     "data_prepare_s", "mem_bytes",      "mem_peak_bytes",
      "sent_bytes", "control_bytes"};
  EXPECT_EQ(json.size(), keys.size());
  for (const std::string& key : keys) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["tokens_per_s"], 200.0);
}

TEST(Metrics, OverlappingCallsCountOnce) {
  CommClock clock;
  const CommClock::Time zero;
  const auto add = [&](int from, int to) {
    clock.add(zero + std::chrono::seconds(from), zero + std::chrono::seconds(to));
  };
  add(5, 6);
  add(0, 3);
  add(1, 2);
  add(2, 4);
  EXPECT_EQ(clock.take(), 5);
  EXPECT_EQ(clock.take(), 0);
}

TEST(Metrics, FailureIsAppendedUnlessTheRunHasEnded) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.jsonl";
  write_failure(path, "rank 1 was killed");
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto last = [&] {
    std::ifstream file(path);
    std::string line, kept;
    while (std::getline(file, line)) kept = line;
    return kept;
  };
  std::ofstream(path) << "{\"step\":1}\n";
  write_failure(path, "rank 1 was killed");
  const Json end = Json::parse(last()).at("end");
  EXPECT_EQ(end.at("state"), "failed");
  EXPECT_EQ(end.at("reason"), "rank 1 was killed");
  EXPECT_GT(end.at("time"), 1e9);
  std::ofstream(path) << to_json(Summary()) << "\n";
  write_failure(path, "rank 1 was killed");
  EXPECT_TRUE(Json::parse(last()).contains("summary"));
}

TEST(Metrics, RanksAreColumnsOfNonzeroPhases) {
  RankPhases one{}, two{};
  one[0] = two[0] = 0.5;  // step_s
  two[1] = 0.12345678;    // forward_s
  StepMetrics step;
  step.ranks = {one, two};
  step.slow_ranks = {{1, "forward", 1.5}};
  Summary summary;
  summary.ranks = step.ranks;
  summary.slow_ranks = step.slow_ranks;
  for (const Json& json :
       {Json::parse(to_json(step)), Json::parse(to_json(summary)).at("summary")}) {
    EXPECT_EQ(json.at("ranks"),
              Json::parse(R"({"step_s": [0.5, 0.5], "forward_s": [0, 0.1234568]})"));
    EXPECT_EQ(json.at("slow_ranks"),
              Json::parse(R"([{"rank": 1, "phase": "forward", "factor": 1.5}])"));
  }
}

TEST(Metrics, SavesAreInTheLinesOfTheirSteps) {
  StepMetrics step;
  step.save_exposed_s = 0.25;
  EXPECT_EQ(Json::parse(to_json(step))["save_exposed_s"], 0.25);
  Summary summary;
  summary.step_s = 0.5;
  EXPECT_FALSE(Json::parse(to_json(summary)).at("summary").contains("saves"));
  summary.saves = 3;
  summary.save_exposed_s = 0.1;
  const Json json = Json::parse(to_json(summary)).at("summary");
  EXPECT_EQ(json["saves"], 3);
  EXPECT_EQ(json["save_exposed_s"], 0.1);
  EXPECT_DOUBLE_EQ(json["save_exposed_percent"], 20);
}

TEST(Metrics, TooLargeLossScaleIsNotABrokenStep) {
  StepMetrics step;
  step.skipped = true;
  EXPECT_TRUE(step.broke());
  step.loss_scale = 65536;
  EXPECT_FALSE(step.broke());
  EXPECT_EQ(Json::parse(to_json(step))["loss_scale"], 65536);
  step.loss = std::nan("");
  EXPECT_TRUE(step.broke());
  EXPECT_FALSE(StepMetrics().broke());
}

TEST(Metrics, GpuStepHasAdditionalKeys) {
  StepMetrics step;
  step.graph_s = 0.25;
  step.gpu = process::GpuReading{97, 1000, 1980, 650.5, 60};
  const Json json = Json::parse(to_json(step));
  EXPECT_EQ(json["graph_s"], 0.25);
  EXPECT_EQ(json["gpu"]["utilization"], 97);
  EXPECT_EQ(json["gpu"]["memory_used_bytes"], 1000);
  EXPECT_EQ(json["gpu"]["sm_mhz"], 1980);
  EXPECT_EQ(json["gpu"]["power_w"], 650.5);
  EXPECT_EQ(json["gpu"]["temperature_c"], 60);
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  StepMetrics step;
  step.loss = std::nan("");
  step.grad_norm = INFINITY;
  step.skipped = true;
  const Json json = Json::parse(to_json(step));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["skipped"], true);
}

TEST(Metrics, SummaryHasPredictionsAndMeasurements) {
  Summary summary;
  SentBytes sent;
  sent[Axis::dp_shard] = 10, sent[Axis::tp] = 15, sent[Axis::pp] = 5;
  summary.predicted = {{{"params", 10}, {"grads", 20}}, 0.5, sent};
  summary.measured = {{{"params", 11}, {"peak", 99}}, std::nullopt, std::nullopt};
  summary.params_hash = "00ff";
  const std::string text = to_json(summary);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json json = Json::parse(text).at("summary");
  EXPECT_EQ(json["predicted"]["memory"]["params"], 10);
  EXPECT_EQ(json["predicted"]["sent_bytes"], 30);
  EXPECT_EQ(json["measured"]["memory"]["peak"], 99);
  EXPECT_FALSE(json["measured"].contains("sent_bytes"));
  EXPECT_EQ(json["params_hash"], "00ff");
}

class Folder : public ::testing::Test {
 protected:
  static std::string text(const std::filesystem::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path path = temporary_.path;
};

TEST_F(Folder, LinesReplaceAnExistingFile) {
  const std::filesystem::path file = path / "m.jsonl";
  std::ofstream(file) << "old\n";
  {
    LineFile lines(file.string(), "--metrics");
    lines.write("a");
    EXPECT_EQ(text(file), "a\n");
    lines.write("b");
  }
  EXPECT_EQ(text(file), "a\nb\n");
  try {
    LineFile("/no/folder/m", "--metrics");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--metrics"), std::string::npos);
  }
}

TEST_F(Folder, LinesAreWrittenToAPipeWithAReader) {
  const std::string pipe = (path / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto refused = [](auto&& open) -> std::string {
    try {
      open();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  // A blocking open() would never return here.
  for (const std::string& what : {refused([&] { LineFile lines(pipe, "--metrics"); }), refused([&] {
                                    const Fd held = check_lines(pipe, "--metrics");
                                  })}) {
    EXPECT_NE(what.find("--metrics: "), std::string::npos);
    EXPECT_NE(what.find("is a pipe that no process reads"), std::string::npos) << what;
  }
  const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(reader.open());
  const Fd held = check_lines(pipe, "--metrics");
  {
    LineFile lines(pipe, "--metrics");
    lines.write("a");
  }
  char got[8] = {};
  EXPECT_EQ(::read(reader.get(), got, sizeof got), 2);
  EXPECT_STREQ(got, "a\n");
  // The reader sees no end of file while the descriptor is open.
  EXPECT_EQ(::read(reader.get(), got, sizeof got), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(Folder, LinesAreWrittenToDevicesAndOwnStreams) {
  LineFile("/dev/null", "--metrics").write("a");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  testing::internal::CaptureStdout();
  LineFile("/dev/stdout", "--metrics").write("line");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "line\n");
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_THROW((void)check_lines("/dev/full", "--metrics"), UsageError);
  }
}

TEST_F(Folder, CheckLinesRejectsBadPathsWithoutAChange) {
  const std::string file = (path / "m.jsonl").string();
  EXPECT_FALSE(check_lines(file, "--metrics").open());
  EXPECT_FALSE(std::filesystem::exists(file));
  std::ofstream(file) << "old\n";
  EXPECT_TRUE(check_lines(file, "--metrics").open());
  EXPECT_EQ(text(file), "old\n");
  for (const std::string& bad : {path.string(), (path / "no" / "m").string(), file + "/m"}) {
    EXPECT_THROW((void)check_lines(bad, "--metrics"), UsageError) << bad;
    EXPECT_THROW(LineFile(bad, "--metrics"), UsageError) << bad;
  }
}

TEST_F(Folder, TraceIsJsonOfAllRanks) {
  std::vector<std::string> ranks;
  const Trace::Time now{std::chrono::seconds(10)};
  for (int r = 0; r < 3; ++r) {
    Trace trace(r, 4);
    for (int step = 1; step <= 6; ++step) {  // two more than it records
      trace.begin_step(step);
      trace.span("forward", now, now + std::chrono::microseconds(1500), 7);
      trace.begin_step(0);
      trace.span("between", now, now);
    }
    ranks.push_back(trace.events());
  }
  const std::filesystem::path file = path / "t.json";
  write_trace(file.string(), ranks);
  const Json json = Json::parse(text(file));
  const std::size_t each = 3 + 4;  // three names, four steps
  ASSERT_EQ(json["traceEvents"].size(), 3 * each);
  EXPECT_EQ(json["traceEvents"][1]["args"]["name"], "compute");
  const Json& span = json["traceEvents"][3];
  EXPECT_EQ(span["name"], "forward");
  EXPECT_EQ(span["ts"], 1e7);
  EXPECT_EQ(span["dur"], 1500.0);
  EXPECT_EQ(span["args"]["step"], 1);
  EXPECT_EQ(span["args"]["micro_batch"], 7);
  EXPECT_EQ(json["traceEvents"][3 * each - 1]["pid"], 2);
  EXPECT_EQ(json["traceEvents"][3 * each - 1]["args"]["step"], 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1) << "no draft left";
  EXPECT_TRUE(Trace(0, 0).events().empty());
}

TEST(Trace, CallsAreOnTheTracksOfTheirAxes) {
  Trace trace(1, 1);
  CallListener::Waited waited{0};
  CommClock clock;
  CallListener dp("dp", trace, clock, waited), pp("pp", trace, clock, waited);
  trace.begin_step(1);
  const Trace::Time now{std::chrono::seconds(1)};
  comm::Collective call;
  call.op = comm::Op::all_reduce;
  call.dtype = comm::DType::f32;
  call.count = 10;
  call.label = "a \"name\" · of\n bytes \xff";
  dp.ran(call, now, now + std::chrono::milliseconds(2));
  dp.waited(call, now, now + std::chrono::milliseconds(1));
  call.op = comm::Op::send;
  call.peer = 0;
  call.label = "x";
  pp.ran(call, now, now + std::chrono::milliseconds(3));
  pp.waited(call, now, now + std::chrono::milliseconds(4));
  EXPECT_EQ(waited.load(), 5'000'000);

  std::map<std::string, std::vector<std::string>> spans;
  std::map<int, std::string> tracks;
  for (const Json& event : Json::parse("[" + trace.events() + "]")) {
    const int track = event.value("tid", -1);
    if (event["name"] == "thread_name") tracks[track] = event["args"]["name"];
    if (event["ph"] == "X") spans[tracks.at(track)].push_back(event["name"]);
    if (event["name"] == "send x") {
      EXPECT_EQ(event["args"]["bytes"], 40);
    }
  }
  EXPECT_EQ(spans["compute"].size(), 2u);
  EXPECT_EQ(spans["compute"].back(), "wait: send x");
  EXPECT_EQ(spans["dp"].size(), 1u);
  EXPECT_EQ(spans["pp to 0"], std::vector<std::string>{"send x"});
}

TEST_F(Folder, FailedWriteLeavesNoPartOfALine) {
  const std::filesystem::path file = path / "m.jsonl";
  const pid_t child = ::fork();
  if (child == 0) {  // the limit applies to the whole process
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20, 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    LineFile lines(file.string(), "--metrics");
    lines.write("0123456789");
    try {
      lines.write("this one is too long for the limit");
    } catch (const DataError& error) {
      ::_exit(std::string(error.what()).find("ulimit -f") != std::string::npos ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text(file), "0123456789\n");
}

TEST_F(Folder, CheckRejectsAMissingFolder) {
  EXPECT_NO_THROW(check_lines((path / "x.jsonl").string(), "--metrics"));
  EXPECT_THROW(check_lines((path / "y" / "x.jsonl").string(), "--metrics"), UsageError);
}

}  // namespace
}  // namespace tessera::train
