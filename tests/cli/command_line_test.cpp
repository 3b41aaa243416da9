#include "tessera/cli/command_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/table.h"

namespace tessera::cli {
namespace {

struct Example {
  CommandLine line{"example", "Shows options.", "  tessera example"};
  int ranks = 1;
  double grace = 5;
  std::int64_t size = 1024;
  std::string bind = "core";
  bool json = false;

  Example() {
    line.integer(line.app(), "-n,--ranks", ranks, 1, 8, "ranks");
    line.seconds(line.app(), "--grace", grace, "time");
    line.bytes(line.app(), "--size", size, "bytes");
    line.choice(line.app(), "--bind", bind, {"core", "none"}, "binding");
    line.app().add_flag("--json", json, "print JSON");
  }

  bool parse(std::vector<std::string> words) {
    words.insert(words.begin(), "example");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    return line.parse(static_cast<int>(pointers.size()), pointers.data());
  }

  std::string error(const std::vector<std::string>& words) {
    try {
      parse(words);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(CommandLine, ReadsValuesInUnits) {
  Example example;
  EXPECT_TRUE(
      example.parse({"-n", "4", "--grace", "250ms", "--size=25MiB", "--bind", "none", "--json"}));
  EXPECT_EQ(example.ranks, 4);
  EXPECT_EQ(example.grace, 0.25);
  EXPECT_EQ(example.size, 25 << 20);
  EXPECT_EQ(example.bind, "none");
  EXPECT_TRUE(example.json);
}

TEST(CommandLine, SuggestsASimilarOption) {
  EXPECT_EQ(Example().error({"--rnaks", "4"}), "--rnaks: unknown; did you mean --ranks?");
  EXPECT_EQ(Example().error({"--rank=4"}), "--rank: unknown; did you mean --ranks?");
  EXPECT_EQ(Example().error({"--josn"}), "--josn: unknown; did you mean --json?");
  EXPECT_EQ(Example().error({"--elephant"}), "--elephant: unknown");
  EXPECT_EQ(Example().error({"--powersgd-rank", "4"}),
            "--powersgd-rank: unknown. PowerSGD has moved to examples/power_sgd.cpp, a hook for "
            "Options::reduce_hook");
  EXPECT_EQ(Example().error({"stray"}), "stray: unexpected argument");
}

TEST(CommandLine, ReportsAMistypedOptionBeforeAMissingOne) {
  Example example;
  int needed = 0;
  example.line.integer(example.line.app(), "--world", needed, 0, 9, "needed")->required();
  EXPECT_EQ(example.error({"--wolrd", "4"}), "--wolrd: unknown; did you mean --world?");
}

TEST(CommandLine, NamesTheOptionAndTheValue) {
  EXPECT_EQ(Example().error({"-n", "0"}), "--ranks: got 0; must be 1 to 8");
  EXPECT_EQ(Example().error({"-n", "9"}), "--ranks: got 9; must be 1 to 8");
  EXPECT_EQ(Example().error({"-n", "x"}), "--ranks: got \"x\"; must be an integer from 1 to 8");
  EXPECT_EQ(Example().error({"-n", "1e30"}),
            "--ranks: got \"1e30\"; must be an integer from 1 to 8");
  EXPECT_EQ(Example().error({"--bind", "cor"}),
            "--bind: got \"cor\"; must be core or none; did you mean core?");
  EXPECT_EQ(Example().error({"--size", "5Q"}).substr(0, 18), "--size: bad size \"");
  EXPECT_NE(Example().error({"--grace"}), "no error");
}

TEST(CommandLine, NumbersAndRatesHaveBounds) {
  double share = 0.5, link = 1e9;
  const auto error = [&](const std::vector<std::string>& words) {
    Example example;
    example.line.number(example.line.app(), "--share", share, 0, 2, "a part");
    example.line.rate(example.line.app(), "--link", link, "a link");
    return example.error(words);
  };
  EXPECT_EQ(error({"--share", "1.25", "--link", "8Gb/s"}), "no error");
  EXPECT_EQ(share, 1.25);
  EXPECT_EQ(link, 1e9);
  EXPECT_EQ(error({"--share", "5e-1"}), "no error");
  EXPECT_EQ(share, 0.5);
  for (const char* text : {"-1", "3", "nan", "inf", "1e999", "much", "1x", "0x1"}) {
    EXPECT_EQ(error({std::string("--share=") + text}),
              "--share: got \"" + std::string(text) + "\"; must be 0 to 2");
  }
  EXPECT_EQ(error({"--link", "0GB/s"}), "--link: got \"0GB/s\"; must be greater than 0");
  EXPECT_EQ(error({"--link", "fast"}).substr(0, 16), "--link: bad rate");
  EXPECT_EQ(share, 0.5) << "what is refused changes nothing";
  EXPECT_EQ(link, 1e9);
}

TEST(CommandLine, NamesTheOptionAsItWasTyped) {
  const auto error = [](std::vector<std::string> words) {
    Example example;
    int micros = 1;
    example.line.integer(example.line.app(), "--micro-batches,--grad-accum", micros, 1, 8, "many");
    return example.error(words);
  };
  EXPECT_EQ(error({"--micro-batches", "0"}), "--micro-batches: got 0; must be 1 to 8");
  EXPECT_EQ(error({"--grad-accum=0"}), "--grad-accum: got 0; must be 1 to 8");
  EXPECT_EQ(error({"-n0"}), "--ranks: got 0; must be 1 to 8");
}

TEST(CommandLine, SuggestsSimilarSubcommandsAndOptions) {
  const auto error = [](const std::vector<std::string>& words) {
    Example example;
    int sizes = 0;
    CLI::App* comm = example.line.app().add_subcommand("comm", "collectives");
    comm->add_option("--sizes", sizes, "sizes");
    example.line.app().require_subcommand(1);
    return example.error(words);
  };
  EXPECT_EQ(error({"com"}), "com: unknown; did you mean comm?");
  EXPECT_EQ(error({"comm", "--size", "3"}), "no error") << "--size is the parent's";
  EXPECT_EQ(error({"comm", "--szies", "3"}), "--szies: unknown; did you mean --sizes?");
}

struct Runner : Example {
  Runner() { line.takes_program(); }
};

TEST(CommandLine, AcceptsAProgramAtTheEnd) {
  using Words = std::vector<std::string>;
  {
    Runner runner;
    EXPECT_TRUE(runner.parse({"-n", "2", "--", "./program", "--ranks", "9", "--", "x"}));
    EXPECT_EQ(runner.line.program(), (Words{"./program", "--ranks", "9", "--", "x"}));
    EXPECT_EQ(runner.ranks, 2);
  }
  {
    Runner runner;
    EXPECT_TRUE(runner.parse({"-n", "2", "./program", "--ranks", "9"}));
    EXPECT_EQ(runner.line.program(), (Words{"./program", "--ranks", "9"}));
    EXPECT_EQ(runner.ranks, 2);
  }
  EXPECT_EQ(Runner().error({"--rnaks", "2", "--", "./program"}),
            "--rnaks: unknown; did you mean --ranks?");
  EXPECT_EQ(Runner().error({"--rnaks", "2", "./program"}),
            "--rnaks: unknown; did you mean --ranks?");
  EXPECT_EQ(Runner().error({"stray", "--", "./program"}), "stray: unexpected argument");
}

TEST(CommandLine, HelpShowsExamplesAndDefaults) {
  Example example;
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(example.parse({"--help"}));
  const std::string help = ::testing::internal::GetCapturedStdout();
  for (const char* part : {"Examples:", "tessera example", "--ranks", "INT", "5 s", "1 KiB"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << " not in\n" << help;
  }
}

TEST(CommandLine, HelpIsWrappedAndAligned) {
  CommandLine line("example", "For a test.", "  tessera example\n");
  CLI::App& app = line.app();
  std::int64_t shard = 256'000'000, page = 4096;
  std::string text;
  app.add_option("--plain", text, "first")->type_name("INT")->default_str("4*h");
  app.add_option("--dotted", text, "second")->type_name("INT")->default_str("4·h");
  line.bytes(app, "--shard", shard, "third");
  line.bytes(app, "--page", page, "fourth");
  app.add_option("--long", text, std::string(70, 'a') + " " + std::string(70, 'b'))->group("More");
  ::testing::internal::CaptureStdout();
  std::string program = "example", flag = "--help";
  char* words[] = {program.data(), flag.data()};
  EXPECT_FALSE(line.parse(2, words));
  const std::string help = ::testing::internal::GetCapturedStdout();
  const auto column = [&](const std::string& word) {
    const std::size_t at = help.find(word);
    return columns_of(std::string_view(help).substr(0, at).substr(help.rfind('\n', at) + 1));
  };
  for (const char* word : {"first", "second", "third", "fourth", "aaaa", "bbbb"}) {
    EXPECT_EQ(column(word), 30u) << word << "\n" << help;
  }
  EXPECT_NE(help.find("SIZE=256 MB"), std::string::npos) << help;
  EXPECT_NE(help.find("SIZE=4 KiB"), std::string::npos) << help;
  EXPECT_EQ(help.find("\n\n\n"), std::string::npos) << help;
  EXPECT_EQ(help.find("\n\n", help.size() - 2), std::string::npos) << help;
}

}  // namespace
}  // namespace tessera::cli
