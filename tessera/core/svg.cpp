#include "tessera/core/svg.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/table.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

// Values that are not finite must not produce an invalid file.
std::string svg_number(double value) {
  return std::isfinite(value) ? fixed(std::clamp(value, -1e6, 1e6), 1) : "0.0";
}

std::string with_tip(std::string_view tip, std::string_view element) {
  if (tip.empty()) return "/>\n";
  return str("><title>", svg_escaped(tip), "</title></", element, ">\n");
}

}  // namespace

std::string svg_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

Svg::Svg(double width, double height, std::string_view title) {
  const std::string w = fixed(width, 0), h = fixed(height, 0);
  body_ =
      str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", w, " ", h,
          "\" font-family=\"sans-serif\" font-size=\"14\">\n<rect width=\"", w, "\" height=\"", h,
          "\" fill=\"white\"/>\n<text x=\"20\" y=\"26\" "
          "font-weight=\"bold\">",
          svg_escaped(title), "</text>\n");
}

void Svg::text(double x, double y, std::string_view text, Anchor anchor, const char* color) {
  const char* const where = anchor == Anchor::start    ? ""
                            : anchor == Anchor::middle ? " text-anchor=\"middle\""
                                                       : " text-anchor=\"end\"";
  body_ += str("<text x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" fill=\"", color, "\"",
               where, ">", svg_escaped(text), "</text>\n");
}

void Svg::box(double x, double y, double width, double height, const char* color,
              std::string_view tip) {
  if (!(width > 0) || !(height > 0)) return;
  body_ +=
      str("<rect x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" width=\"", svg_number(width),
          "\" height=\"", svg_number(height), "\" fill=\"", color, "\"", with_tip(tip, "rect"));
}

void Svg::line(double x1, double y1, double x2, double y2, const char* color, const char* dash) {
  body_ += str("<line x1=\"", svg_number(x1), "\" y1=\"", svg_number(y1), "\" x2=\"",
               svg_number(x2), "\" y2=\"", svg_number(y2), "\" stroke=\"", color, "\"",
               *dash != 0 ? str(" stroke-dasharray=\"", dash, "\"") : "", "/>\n");
}

void Svg::dot(double x, double y, const char* color, std::string_view tip) {
  body_ += str("<circle cx=\"", svg_number(x), "\" cy=\"", svg_number(y), "\" r=\"3\" fill=\"",
               color, "\"", with_tip(tip, "circle"));
}

double Svg::legend(double x, double y, const char* color, std::string_view what) {
  box(x, y - 12, 14, 14, color);
  text(x + 20, y, what);
  return x + 44 + 7.5 * static_cast<double>(columns_of(what));
}

}  // namespace tessera
