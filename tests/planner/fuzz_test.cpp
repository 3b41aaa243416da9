// Feeds the parsers with mutations of the files in tests/data/fuzz: cut, copied, with flipped bits
// and inserted troublesome text. Deterministic.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fuzz_mutator.h"
#include "tests/planner/fuzz_targets.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kInputs = TESSERA_FUZZ_INPUTS;

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {"0",
                                               "-1",
                                               "1",
                                               "2",
                                               "64",
                                               "65536",
                                               "2147483648",
                                               "9223372036854775807",
                                               "1e308",
                                               "1e-308",
                                               "1e999",
                                               "nan",
                                               "inf",
                                               "null",
                                               "true",
                                               "false",
                                               "\"\"",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               "{}",
                                               ":",
                                               ",",
                                               "\"",
                                               "\\u0000",
                                               "\\ud800",
                                               "\xff",
                                               "\xc3\xa9",
                                               "\n",
                                               "\r\n",
                                               "\t",
                                               "#",
                                               "=",
                                               "'",
                                               "\"\"\"",
                                               "'''",
                                               ".a.a.a",
                                               "\"dp\":",
                                               "\"pp\":",
                                               "\"tp\":",
                                               "\"layers\":",
                                               "\"params\":\"13B\"",
                                               "\"chunks\":",
                                               "\"schedule\":\"zb-v\"",
                                               "\"global_batch\":",
                                               "\"zero\":3",
                                               "\"layout\":\"2,6,12\"",
                                               "\"model\":\"llama3-8b\"",
                                               "\"sequence_parallel\":true",
                                               "\"hardware\":\"cpu\"",
                                               "step_ms",
                                               "like",
                                               "inside",
                                               "80GiB",
                                               "100Gb/s",
                                               "3us"};
  return all;
}

void run(const std::string& kind, void (*target)(std::string_view), std::int64_t inputs) {
  tessera::run_fuzz(std::string(TESSERA_FUZZ_DATA) + "/" + kind, words(), target, inputs);
}

TEST(Fuzz, QuestionLines) { run("line", fuzz_line, kInputs / 2); }
TEST(Fuzz, RunsFiles) { run("runs", fuzz_runs, kInputs / 4); }
TEST(Fuzz, HardwareFiles) { run("hardware", fuzz_hardware, kInputs / 4); }

}  // namespace
}  // namespace tessera::planner
