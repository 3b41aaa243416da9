#include <gtest/gtest.h>

#include <fstream>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/calibration.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {
namespace {

// Returns the error of parsing a text, or "".
std::string complaint(const std::string& toml) {
  Catalog catalog;
  try {
    catalog.parse(toml, "my.toml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}
void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
  }
}

TEST(Hardware, CatalogueEntriesAreComplete) {
  const Catalog catalog;
  for (const char* name : {"v100-32", "a100-40", "a100-80", "h100", "h200", "b200", "cpu"}) {
    const Hardware& h = catalog.find(name);
    EXPECT_EQ(h.name, name);
    EXPECT_GT(h.memory, 1e9) << name;
    EXPECT_GE(h.peak_16bit, h.peak_fp32) << name;
    EXPECT_GT(h.inside.bandwidth, h.between.bandwidth) << name;
    EXPECT_GT(h.launch, 0) << name;
    EXPECT_GT(h.watts, 0) << name;
  }
  EXPECT_EQ(catalog.find("h100").memory, 81'559.0 * (1 << 20));
  EXPECT_EQ(catalog.find("a100-80").peak_16bit, 312e12);
  EXPECT_EQ(catalog.find("a100-40").units, 108);  // copied by `like`
}

// V100s have neither fused attention nor bf16.
TEST(Hardware, PlansUseOnlySupportedFeatures) {
  Catalog catalog;
  catalog.parse("[volta]\nlike = \"v100-32\"\n[turing]\nlike = \"h100\"\nbf16 = false\n", "mine");
  EXPECT_FALSE(catalog.find("volta").fused_attention);
  EXPECT_TRUE(catalog.find("turing").fused_attention);
  const auto plan_on = [&](const char* hardware, const char* key = nullptr,
                           const char* value = nullptr) {
    RunConfig settings = RunConfig::for_plan();
    settings.set("model", "gpt2-xl"), settings.set("hardware", hardware);
    if (key != nullptr) settings.set(key, value);
    return make_plan(look_up(settings, catalog));
  };
  const Plan v100 = plan_on("v100-32");
  EXPECT_EQ(v100.question.attention, Attention::unfused);
  EXPECT_EQ(v100.question.layout.name, "fp16");
  EXPECT_FALSE(v100.fits);
  for (const Advice& advice : v100.advice) {
    EXPECT_EQ(advice.flags.find("--attention"), std::string::npos) << advice.text;
  }
  EXPECT_EQ(v100.remedy.find("--attention"), std::string::npos) << v100.remedy;
  EXPECT_EQ(plan_on("h100").question.attention, Attention::fused);
  EXPECT_EQ(plan_on("h100").question.layout.name, "bf16");
  EXPECT_EQ(plan_on("turing").question.layout.name, "fp16");
  EXPECT_EQ(plan_on("v100-32", "layout", "2,6,12").question.layout.name, "2,6,12");
  for (const auto& [key, value] :
       {std::pair{"attention", "fused"}, {"layout", "bf16"}, {"layout", "bf16-nomaster"}}) {
    try {
      plan_on("v100-32", key, value);
      FAIL() << key << " " << value;
    } catch (const UsageError& error) {
      expect_words(error.what(), {str("--", key), value, "v100-32", "must be"});
    }
  }
  // The written entry records missing features.
  Catalog written;
  written.parse(hardware_toml(catalog.find("volta")), "written");
  EXPECT_FALSE(written.find("volta").fused_attention || written.find("volta").bf16);
}

TEST(Hardware, SuggestsTheNearestNameForAnUnknownOne) {
  try {
    Catalog().find("a100-8");
    FAIL();
  } catch (const UsageError& error) {
    expect_words(error.what(), {"a100-8", "did you mean a100-80", "h200"});
  }
}

TEST(Hardware, UserEntryOverridesOnlyItsKeys) {
  Catalog catalog;
  const std::size_t known = catalog.all().size();
  catalog.parse(R"(
    [h100]
    launch = "20us"
    between = { bandwidth = "200Gb/s" }
    [mine]
    like = "h100"
    memory = 1e11
    per_node = 4
  )",
                "my.toml");
  EXPECT_EQ(catalog.all().size(), known + 1);
  EXPECT_DOUBLE_EQ(catalog.find("h100").launch, 20e-6);
  EXPECT_DOUBLE_EQ(catalog.find("h100").between.bandwidth, 25e9);
  EXPECT_EQ(catalog.find("h100").between.latency, Catalog().find("h100").between.latency);
  EXPECT_EQ(catalog.find("mine").memory, 1e11);
  EXPECT_EQ(catalog.find("mine").per_node, 4);
  EXPECT_DOUBLE_EQ(catalog.find("mine").launch, 20e-6);
}

TEST(Hardware, ReportsLineAndColumnOfInvalidFiles) {
  expect_words(complaint("[mine]\nmemory = = 3\n"), {"my.toml", "line 2", "column 10"});
  expect_words(complaint("[h100]\nmemmory = 3\n"),
               {"my.toml, line 2, column 1", "memmory", "did you mean memory"});
  expect_words(complaint("[h100]\nmemory = \"lots\"\n"), {"line 2", "memory", "lots"});
  expect_words(complaint("[h100]\nmemory = -1\n"), {"line 2", "-1"});
  expect_words(complaint("[h100]\nusable = 1.5\n"), {"usable", "1.5", "must be 0.01 to 1"});
  expect_words(complaint("[h100]\nunits = 1.5\n"), {"units", "whole number"});
  expect_words(complaint("[h100]\nlaunch = true\n"), {"launch", "number"});
  expect_words(complaint("[h100]\ninside = 3\n"), {"inside"});
  expect_words(complaint("[mine]\nmemory = 3\n"), {"mine", "peak_16bit is missing"});
  expect_words(complaint("[mine]\nlike = \"none\"\n"), {"line 2", "like"});
  expect_words(complaint("mine = 3\n"), {"line 1", "mine", "table"});
  EXPECT_EQ(complaint(""), "");
}

TEST(Hardware, RefusesHugeAndDeeplyNestedFiles) {
  std::string text = "[h100]\nlaunch = \"20us\"\n";
  text.resize(1 << 20, '\n');
  EXPECT_EQ(complaint(text), "");
  expect_words(complaint(text + "\n"), {"my.toml", "1048577", "1 MiB"});
  std::string deep = "a";  // each part is a nested table, freed recursively
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  expect_words(complaint("\n" + deep + " = 1\n"), {"line 2", "parts"});
  expect_words(complaint("[" + deep + "]\n"), {"line 1", "parts"});
}

TEST(Hardware, AllowsNonAsciiOnlyInStringsAndComments) {
  const std::string good = "# für µs\n[h100] # é\n";
  EXPECT_EQ(complaint(good + "launch = \"20us\"\n"), "");
  EXPECT_EQ(complaint(good + "launch = \"20µs\"\n"), "");
  expect_words(complaint(good + "launch = \"20és\"\n"), {"line 3", "launch"});
  expect_words(complaint(good + "launch = é\n"), {"line 3, column 10", "ASCII"});
  expect_words(complaint("[h100]\nx = \"a\\\"é\" é\n"), {"line 2, column 12", "ASCII"});
  expect_words(complaint("[h100]\nx = \"\"\"é\n\"\"\"\"\" é\n"), {"line 3, column 7", "ASCII"});
  expect_words(complaint("[h100]\nx = 'é\\' é\n"), {"line 2, column 10", "ASCII"});
}

TEST(Hardware, InvalidFileChangesNothing) {
  Catalog catalog;
  EXPECT_THROW(catalog.parse("[h100]\nlaunch = 0.5\n[mine]\nx = 1\n", "my.toml"), UsageError);
  EXPECT_EQ(catalog.find("h100").launch, Catalog().find("h100").launch);
  EXPECT_THROW(catalog.read("/no/such/file.toml"), UsageError);
  EXPECT_THROW(catalog.read("/dev/zero"), UsageError);
}

// Software figures differ by software; peaks and links do not.
TEST(Hardware, EachSoftwareHasItsOwnFigures) {
  const Catalog catalog;
  Hardware h = catalog.find("h100");
  EXPECT_EQ(h.software, "megatron");
  const double megatron = h.launch, peak = h.peak_16bit;
  h.run_by("pytorch");
  EXPECT_LT(h.launch, megatron / 2);
  h.run_by("tessera");
  EXPECT_DOUBLE_EQ(h.launch, catalog.find("h200").launch);
  EXPECT_EQ(h.peak_16bit, peak);
  h.run_by("megatron");
  EXPECT_DOUBLE_EQ(h.launch, megatron);
  // Selecting the active software again keeps modified figures.
  h.launch = 1;
  h.run_by("megatron");
  EXPECT_EQ(h.launch, 1);
  // A calibrated machine has one set of figures for all software.
  Hardware cpu = catalog.find("cpu");
  const double before = cpu.launch;
  cpu.run_by("pytorch");
  EXPECT_EQ(cpu.launch, before);
}

TEST(Hardware, UserFileMaySetSoftwareAndSwitches) {
  Catalog catalog;
  catalog.parse(R"(
    [mine]
    like = "h100"
    software = "pytorch"
    nics = 2
    kind = "PCIe"
    switches = [[8, 1.0], [64, 2.5]]
    interference = 0.25
    rail_share = 0.5  # of an older version
    [mine.pytorch]
    launch = "3us"
    [h100.tessera]
    launch = "4us"
  )",
                "my.toml");
  const Hardware& h = catalog.find("mine");
  EXPECT_DOUBLE_EQ(h.launch, 3e-6);
  const Topology t = h.topology();
  EXPECT_EQ(t.nics, 2);
  EXPECT_EQ(t.kind, "PCIe");
  ASSERT_EQ(t.switches.size(), 2U);
  EXPECT_EQ(t.switches[1].oversubscription, 2.5);
  EXPECT_EQ(h.topology(4).nics, 1);  // half a node has half of the adapters
  Hardware other = catalog.find("h100");
  EXPECT_NE(other.launch, 4e-6);
  other.run_by("tessera");
  EXPECT_DOUBLE_EQ(other.launch, 4e-6);
  // A value of the entry itself applies to all software.
  catalog.parse("[mine]\nlaunch = \"9us\"\n", "my.toml");
  Hardware mine = catalog.find("mine");
  for (const char* each : {"megatron", "tessera", "pytorch"}) {
    mine.run_by(each);
    EXPECT_DOUBLE_EQ(mine.launch, 9e-6);
  }
  expect_words(complaint("[h100.megatron]\nlunch = 1\n"),
               {"line 2", "megatron.lunch", "did you mean launch"});
  expect_words(complaint("[h100.megatron]\nlaunch = \"nan\"\n"), {"line 2", "launch"});
  expect_words(complaint("[h100.megatorn]\nlaunch = 1\n"), {"megatorn", "did you mean megatron"});
  expect_words(complaint("[h100]\nsoftware = \"jax\"\n"),
               {"software", "megatron, pytorch, tessera"});
  expect_words(complaint("[h100]\nkind = \"string\"\n"), {"kind", "NVLink, PCIe, memory"});
  for (const char* bad :
       {"3", "[3]", "[[1]]", "[[8, 0.5]]", "[[8, 2], [8, 2]]", "[[0, 2]]", "[[8, nan]]"}) {
    expect_words(complaint("[h100]\nswitches = " + std::string(bad) + "\n"),
                 {"line 2", "switches", "oversubscription"});
  }
}

}  // namespace
}  // namespace tessera::planner
