#include "tessera/schedule/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace tessera::schedule {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Draw, ShowsThePassesOf1F1B) {
  EXPECT_EQ(draw_text(one_f_one_b(2, 3)),
            "rank 0 |F0F1....B0  F2B1  ..B2  \n"
            "rank 1 |..F0B0  F1B1  F2B2  ....\n"
            "1f1b: 2 ranks, 3 micro-batches; step 12, bubble 25.0%; activations held, by rank: "
            "2 1\n");
}

TEST(Draw, ShowsChunksAndHalvesOfBackward) {
  const std::string v = draw_text(zero_bubble_v(2, 2));
  for (const char* part : {"F0a", "F1b", "I0a", "W1b", "2 chunks a rank"}) {
    EXPECT_NE(v.find(part), std::string::npos) << v;
  }
}

// Each dot in the drawing is idle time in the schedule.
TEST(Draw, DotsAreTheBubble) {
  for (const std::string& name : names()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const Schedule schedule = make(name, ranks, 9, 2);
      const std::vector<std::string> lines = lines_of(draw_text(schedule));
      ASSERT_EQ(lines.size(), static_cast<std::size_t>(ranks) + 1);
      double dots = 0, all = 0;
      for (int r = 0; r < ranks; ++r) {
        const std::string bar = lines[static_cast<std::size_t>(r)].substr(8);
        dots += static_cast<double>(count(bar, "."));
        all += static_cast<double>(bar.size());
      }
      EXPECT_NEAR(dots / all, time(schedule, {}).bubble, 1e-9) << name << " " << ranks;
    }
  }
}

TEST(Draw, FitsTheTerminal) {
  for (const int columns : {10, 40, 80, 200}) {
    for (const std::string& line : lines_of(draw_text(gpipe(12, 64), {}, columns))) {
      if (line.find("rank ") == 0) {
        EXPECT_LE(line.size(), static_cast<std::size_t>(columns));
      }
    }
  }
}

// If labels do not fit, equal passes keep equal widths, and numbers are not truncated.
TEST(Draw, NarrowCellsHaveEqualWidth) {
  const Schedule schedule = zero_bubble_v(4, 8);
  const std::string narrow = draw_text(schedule, {0.5, 0.5, 0.5}, 120);
  EXPECT_EQ(lines_of(narrow)[0].substr(8, 16), "F0F1F2F3F4F5F6f0") << narrow;
  const std::string letters = draw_text(gpipe(2, 12), {1, 1, 1}, 90);
  EXPECT_EQ(lines_of(letters)[0].substr(8, 24), "F0F1F2F3F4F5F6F7F8F9F F ") << letters;
}

TEST(Draw, SvgContainsEverySlot) {
  for (const std::string& name : names()) {
    const Schedule schedule = make(name, 3, 4, 2);
    const std::string svg = draw_svg(schedule);
    std::size_t slots = 0;
    for (const auto& rank : timeline(schedule, {})) slots += rank.size();
    EXPECT_EQ(count(svg, "<title>"), slots) << name;
    EXPECT_EQ(count(svg, "<rect"), slots + 1 + 3) << name;
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
    EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
    EXPECT_NE(svg.find("bubble "), std::string::npos);
  }
}

TEST(Timeline, SlotsDoNotOverlap) {
  const Schedule schedule = interleaved(3, 6, 2);
  const Durations durations{1.0, 1.5, 0.5};
  double end = 0, work = 0;
  for (const auto& rank : timeline(schedule, durations)) {
    double now = 0;
    for (const Slot& slot : rank) {
      EXPECT_GE(slot.begin, now - 1e-9);
      work += slot.end - slot.begin;
      now = slot.end;
    }
    end = std::max(end, now);
  }
  EXPECT_NEAR(end, time(schedule, durations).step, 1e-9);
  EXPECT_NEAR(1 - work / (3 * end), time(schedule, durations).bubble, 1e-9);
}

}  // namespace
}  // namespace tessera::schedule
