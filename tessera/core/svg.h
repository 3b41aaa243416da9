#pragma once

#include <string>
#include <string_view>

// SVG images: a few shapes, locale-independent numbers with one decimal, escaped text. The same
// calls give the same bytes.
namespace tessera {

// [Note: colors] Meaning of the colors in all images: here, in docs and on the page, where
// web/src/palette.css has the same names (tests/web compares them). The colors are safe for color
// blindness, based on Paul Tol's schemes.
namespace colors {
inline constexpr const char* kParams = "#4477aa";
inline constexpr const char* kGrads = "#ccbb44";
inline constexpr const char* kOptimizer = "#aa3377";
inline constexpr const char* kActivations = "#228833";
inline constexpr const char* kRest = "#bbbbbb";     // buffers and temporaries
inline constexpr const char* kForward = "#66ccee";  // passes and their communication
inline constexpr const char* kBackward = "#ee6677";
inline constexpr const char* kWeight = "#f7c0c7";  // weight gradients, the second half of backward
inline constexpr const char* kStep = "#999999";    // optimizer step
inline constexpr const char* kDp = "#dd8822";      // axes
inline constexpr const char* kTp = "#11998e";
inline constexpr const char* kPp = "#8a75d1";
inline constexpr const char* kSimulated = "#4477aa";
inline constexpr const char* kLaw = "#aa3377";
inline constexpr const char* kTime = "#4477aa";
inline constexpr const char* kLimit = "#cc3311";
inline constexpr const char* kRule = "#dddddd";
}  // namespace colors

// Escapes &, <, > and quotes for XML. Characters that XML does not allow become question marks.
std::string svg_escaped(std::string_view text);

class Svg {
 public:
  // White background, bold title.
  Svg(double width, double height, std::string_view title);

  enum class Anchor : unsigned char { start, middle, end };
  void text(double x, double y, std::string_view text, Anchor anchor = Anchor::start,
            const char* color = "#222222");
  // Draws nothing if the width or height is not positive. `tip` is the tooltip.
  void box(double x, double y, double width, double height, const char* color,
           std::string_view tip = {});
  void line(double x1, double y1, double x2, double y2, const char* color, const char* dash = "");
  void dot(double x, double y, const char* color, std::string_view tip = {});
  // Draws a colored square and its meaning. Returns the x coordinate for the next one.
  double legend(double x, double y, const char* color, std::string_view what);

  std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace tessera
