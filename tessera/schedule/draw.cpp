#include "tessera/schedule/draw.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "tessera/core/svg.h"
#include "tessera/core/text.h"

namespace tessera::schedule {
namespace {

char letter(Kind kind) {
  switch (kind) {
    case Kind::forward: return 'F';
    case Kind::backward: return 'B';
    case Kind::backward_input: return 'I';
    case Kind::backward_weight: return 'W';
    default: return '?';
  }
}

std::string label(const Schedule& schedule, const Action& action) {
  std::string text = str(letter(action.kind), action.micro);
  if (schedule.chunks > 26) return str(text, "/", action.chunk);
  if (schedule.chunks > 1) text += static_cast<char>('a' + action.chunk);
  return text;
}

// Returns the text of a cell. If the label with its chunk letter does not fit (`whole` is false),
// odd chunks are lowercase. A number that does not fit is left out: part of it would be wrong.
std::string cell_text(const Schedule& schedule, const Action& action, bool whole,
                      std::size_t width) {
  std::string text = label(schedule, action);
  if (!whole) {
    text = str(letter(action.kind), action.micro);
    if (action.chunk % 2 == 1) text[0] = static_cast<char>(std::tolower(text[0]));
  }
  if (text.size() > width) text.resize(std::min<std::size_t>(width, 1));
  text.resize(width, ' ');
  return text;
}

std::string caption(const Schedule& schedule, const Durations& durations) {
  const Timing timing = time(schedule, durations);
  const std::vector<int> held = validate(schedule).in_flight;
  std::vector<std::string> counts;
  for (const int count : held) counts.push_back(str(count));
  std::string text =
      str(schedule.name, ": ", schedule.ranks, " ranks, ", schedule.micros, " micro-batches");
  if (schedule.chunks > 1) text += str(", ", schedule.chunks, " chunks a rank");
  text += str("; step ", timing.step, ", bubble ", fixed(100 * timing.bubble, 1),
              "%; activations held, by rank: ", join(counts, " "));
  return text;
}

const char* color(Kind kind) {
  switch (kind) {
    case Kind::forward: return colors::kForward;
    case Kind::backward: return colors::kBackward;
    case Kind::backward_input: return colors::kBackward;
    case Kind::backward_weight: return colors::kWeight;
    default: return colors::kRest;
  }
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Durations& durations, int columns) {
  const auto slots = timeline(schedule, durations);
  std::size_t longest = 1;
  double shortest = 0, step = 0;
  for (const auto& rank : slots) {
    for (const Slot& slot : rank) {
      longest = std::max(longest, label(schedule, slot.action).size());
      const double length = slot.end - slot.begin;
      if (length > 0 && (shortest == 0 || length < shortest)) shortest = length;
      step = std::max(step, slot.end);
    }
  }
  const std::string margin = "rank ";
  const std::size_t digits = str(schedule.ranks - 1).size();
  // Equal passes have equal width, as long as there is a column for the shortest.
  std::size_t cell = longest;
  const auto scale_of = [&](std::size_t wide) {
    return shortest > 0 ? static_cast<double>(wide) / shortest : 1;
  };
  double scale = scale_of(cell);
  if (columns > 0 && step > 0) {
    const double room =
        std::max<double>(1, columns - static_cast<double>(margin.size() + digits) - 2);
    while (cell > 1 && scale_of(cell) * step > room) --cell;
    scale = std::min(scale_of(cell), room / step);
  }
  const auto column = [&](double t) { return static_cast<std::size_t>(std::lround(t * scale)); };
  std::string text;
  for (int r = 0; r < schedule.ranks; ++r) {
    std::string line(column(step), '.');
    for (const Slot& slot : slots[static_cast<std::size_t>(r)]) {
      const std::size_t begin = column(slot.begin), width = column(slot.end) - begin;
      line.replace(begin, width, cell_text(schedule, slot.action, cell == longest, width));
    }
    const std::string name = str(r);
    text += margin + std::string(digits - name.size(), ' ') + name + " |" + line + "\n";
  }
  return text + caption(schedule, durations) + "\n";
}

std::string draw_svg(const Schedule& schedule, const Durations& durations) {
  const auto slots = timeline(schedule, durations);
  double step = 0, shortest = 0;
  for (const auto& rank : slots) {
    for (const Slot& slot : rank) {
      step = std::max(step, slot.end);
      const double length = slot.end - slot.begin;
      if (length > 0 && (shortest == 0 || length < shortest)) shortest = length;
    }
  }
  // Wide enough for the labels of the shortest slots, up to a total width.
  const double slot_width =
      12.0 + 8.0 * static_cast<double>(str(schedule.micros).size()) + (schedule.chunks > 1 ? 6 : 0);
  const double scale =
      shortest > 0 ? std::min(slot_width / shortest, 16000 / std::max(step, 1e-9)) : 1;
  constexpr double kLeft = 64, kTop = 8, kRow = 28, kBar = 22;
  const double width = kLeft + step * scale + 8;
  const double height = kTop + kRow * schedule.ranks + 28;
  std::string svg = str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", fixed(width, 0),
                        "\" height=\"", fixed(height, 0), "\" viewBox=\"0 0 ", fixed(width, 0), " ",
                        fixed(height, 0), "\" font-family=\"sans-serif\" font-size=\"11\">\n");
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  for (int r = 0; r < schedule.ranks; ++r) {
    const double y = kTop + kRow * r;
    svg += str("<text x=\"8\" y=\"", fixed(y + 15, 1), "\">rank ", r, "</text>\n");
    svg += str("<rect x=\"", fixed(kLeft, 1), "\" y=\"", fixed(y, 1), "\" width=\"",
               fixed(step * scale, 1), "\" height=\"", fixed(kBar, 1), "\" fill=\"#eeeeee\"/>\n");
    for (const Slot& slot : slots[static_cast<std::size_t>(r)]) {
      const double x = kLeft + slot.begin * scale, w = (slot.end - slot.begin) * scale;
      // Later chunks are paler.
      const double opacity = 1 - 0.45 * slot.action.chunk / std::max(1, schedule.chunks);
      const std::string text = label(schedule, slot.action);
      svg += str("<rect x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" width=\"", fixed(w, 1),
                 "\" height=\"", fixed(kBar, 1), "\" fill=\"", color(slot.action.kind),
                 "\" fill-opacity=\"", fixed(opacity, 2), "\" stroke=\"#ffffff\"><title>",
                 name(slot.action.kind), " of micro-batch ", slot.action.micro, ", stage ",
                 schedule.stage(r, slot.action.chunk), "</title></rect>\n");
      if (w < 7.0 * static_cast<double>(text.size())) continue;
      svg += str("<text x=\"", fixed(x + w / 2, 1), "\" y=\"", fixed(y + 15, 1),
                 "\" text-anchor=\"middle\">", text, "</text>\n");
    }
  }
  svg += str("<text x=\"8\" y=\"", fixed(height - 10, 1), "\">", caption(schedule, durations),
             "</text>\n</svg>\n");
  return svg;
}

}  // namespace tessera::schedule
