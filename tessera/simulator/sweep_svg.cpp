// Plot of a sweep: throughput on the left, efficiency per GPU on the right.

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/simulator/sweep.h"

namespace tessera::simulator {
namespace {

constexpr double kWidth = 330, kHeight = 220, kTop = 64, kLeft = 80, kSecond = 500;
constexpr const char* kSimulated = colours::kSimulated;
constexpr const char* kLaw = colours::kLaw;
constexpr const char* kIdeal = "#999999";

std::string number(double value) { return fixed(value, 1); }

std::string text_at(double x, double y, const std::string& text, const char* more = "") {
  return str("<text x=\"", number(x), "\" y=\"", number(y), "\"", more, ">", svg_escaped(text),
             "</text>\n");
}

std::string rule(double x1, double y1, double x2, double y2) {
  return str("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"",
             number(y2), "\" stroke=\"#ddd\"/>\n");
}

// One of the two plots. x is log2 of the GPUs, y is the result of `height`, from 0 to 1.
struct Plot {
  double left = 0;
  const std::vector<SweepRow>* rows = nullptr;
  double low = 0, high = 1;  // log2 of the GPUs

  double x(double gpus) const { return left + kWidth * (std::log2(gpus) - low) / (high - low); }
  static double y(double share) { return kTop + kHeight * (1 - share); }

  std::string line(const char* colour, const char* dash,
                   const std::function<double(const SweepRow&)>& height) const {
    std::string points;
    for (const SweepRow& row : *rows) {
      points += str(number(x(row.gpus)), ",", number(y(height(row))), " ");
    }
    return str("<polyline fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"",
               *dash ? str(" stroke-dasharray=\"", dash, "\"") : "", " points=\"", points,
               "\"/>\n");
  }
  std::string dots(const std::function<double(const SweepRow&)>& height) const {
    std::string text;
    for (const SweepRow& row : *rows) {
      text += str("<circle cx=\"", number(x(row.gpus)), "\" cy=\"", number(y(height(row))),
                  "\" r=\"3\" fill=\"", kSimulated, "\"/>\n");
    }
    return text;
  }
  std::string x_axis() const {
    std::string text = rule(left, y(0), left + kWidth, y(0));
    const std::size_t every = rows->size() > 7 ? (rows->size() + 6) / 7 : 1;
    for (std::size_t i = 0; i < rows->size(); i += every) {
      const int gpus = (*rows)[i].gpus;
      text += rule(x(gpus), y(0), x(gpus), y(1));
      text += text_at(x(gpus), y(0) + 18, format_grouped(gpus), " text-anchor=\"middle\"");
    }
    return text + text_at(left + kWidth / 2, y(0) + 38, "GPUs", " text-anchor=\"middle\"");
  }
};

std::string legend(double x, const char* colour, const char* dash, const std::string& what) {
  return str("<line x1=\"", number(x), "\" y1=\"336\" x2=\"", number(x + 26),
             "\" y2=\"336\" stroke=\"", colour, "\" stroke-width=\"2\"",
             *dash ? str(" stroke-dasharray=\"", dash, "\"") : "", "/>\n",
             text_at(x + 32, 341, what));
}

}  // namespace

std::string sweep_svg(const SweepRange& range, const std::vector<SweepRow>& all, double law_cost,
                      const std::string& title) {
  std::vector<SweepRow> rows;
  for (const SweepRow& row : all) {
    if (row.refused.empty()) rows.push_back(row);
  }
  std::string svg =
      str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 356\" "
          "font-family=\"sans-serif\" font-size=\"14\">\n<rect width=\"860\" height=\"356\" "
          "fill=\"white\"/>\n",
          text_at(20, 26, title, " font-weight=\"bold\""));
  if (rows.empty()) return svg + "</svg>\n";

  const SweepRow& first = rows.front();
  const auto ideal = [&](const SweepRow& row) {
    return first.tokens_per_s * row.gpus / first.gpus;
  };
  Plot plot{kLeft, &rows, std::log2(first.gpus), std::log2(rows.back().gpus)};
  if (plot.high <= plot.low) plot.high = plot.low + 1;

  // Throughput, on logarithmic axes with whole powers of ten.
  double least = first.tokens_per_s, most = first.tokens_per_s;
  for (const SweepRow& row : rows) {
    least = std::min(least, row.tokens_per_s);
    most = std::max({most, row.tokens_per_s, ideal(row)});
  }
  const double bottom = std::floor(std::log10(least));
  const double top = std::max(bottom + 1, std::ceil(std::log10(most)));
  const auto share = [&](double tokens) { return (std::log10(tokens) - bottom) / (top - bottom); };
  svg += text_at(kLeft, kTop - 12, "tokens/s");
  for (double power = bottom; power <= top; ++power) {
    const double y = Plot::y((power - bottom) / (top - bottom));
    svg += rule(kLeft, y, kLeft + kWidth, y);
    svg += text_at(kLeft - 8, y + 5, format_count(std::llround(std::pow(10, power))),
                   " text-anchor=\"end\"");
  }
  svg += plot.x_axis();
  svg += plot.line(kIdeal, "2 3", [&](const SweepRow& row) { return share(ideal(row)); });
  svg += plot.line(kLaw, "6 4", [&](const SweepRow& row) { return share(ideal(row) * row.law); });
  const auto throughput = [&](const SweepRow& row) { return share(row.tokens_per_s); };
  svg += plot.line(kSimulated, "", throughput) + plot.dots(throughput);

  // Efficiency, from 0 to 100%, or to the maximum if scaling is superlinear.
  double best = 1;
  for (const SweepRow& row : rows) best = std::max(best, std::ceil(row.efficiency * 5) / 5);
  plot.left = kSecond;
  svg += text_at(kSecond, kTop - 12, "efficiency per GPU");
  for (int i = 0; i <= 5; ++i) {
    const double y = Plot::y(i / 5.0);
    svg += rule(kSecond, y, kSecond + kWidth, y);
    svg +=
        text_at(kSecond - 8, y + 5, str(std::lround(best * 20 * i), "%"), " text-anchor=\"end\"");
  }
  svg += plot.x_axis();
  svg += plot.line(kIdeal, "2 3", [&](const SweepRow&) { return 1 / best; });
  svg += plot.line(kLaw, "6 4", [&](const SweepRow& row) { return row.law / best; });
  const auto efficiency = [&](const SweepRow& row) { return row.efficiency / best; };
  svg += plot.line(kSimulated, "", efficiency) + plot.dots(efficiency);

  svg += legend(kLeft, kSimulated, "", "simulated");
  svg += legend(kLeft + 130, kLaw, "6 4", str("1/(1 + ", law_cost, " · log2 ", range.axis, ")"));
  svg += legend(kLeft + 360, kIdeal, "2 3", "linear scaling");
  return svg + "</svg>\n";
}

}  // namespace tessera::simulator
