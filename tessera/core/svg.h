#pragma once

#include <string>
#include <string_view>

// Pictures as text: a few shapes, numbers with one digit after the point whatever the locale, text
// escaped. The same calls give the same bytes.
namespace tessera {

// [Note: colours] What stands for what in every picture: here, in docs and on the page, whose
// web/src/palette.css has the same names (tests/web compares them). Told apart by people who see
// fewer colours, too; after Paul Tol's schemes.
namespace colours {
inline constexpr const char* kParams = "#4477aa";
inline constexpr const char* kGrads = "#ccbb44";
inline constexpr const char* kOptimizer = "#aa3377";
inline constexpr const char* kActivations = "#228833";
inline constexpr const char* kRest = "#bbbbbb";     // buffers and temporaries
inline constexpr const char* kForward = "#66ccee";  // passes, and what is sent in them
inline constexpr const char* kBackward = "#ee6677";
inline constexpr const char* kWeight = "#f7c0c7";  // backward's second half: gradients of weights
inline constexpr const char* kStep = "#999999";    // the optimizer's
inline constexpr const char* kDp = "#dd8822";      // axes
inline constexpr const char* kTp = "#11998e";
inline constexpr const char* kPp = "#8a75d1";
inline constexpr const char* kSimulated = "#4477aa";
inline constexpr const char* kLaw = "#aa3377";
inline constexpr const char* kTime = "#4477aa";
inline constexpr const char* kLimit = "#cc3311";
inline constexpr const char* kRule = "#dddddd";
}  // namespace colours

// &, <, > and quotes as XML wants them; what no XML may hold becomes a question mark.
std::string svg_escaped(std::string_view text);

class Svg {
 public:
  // On white, with a bold title.
  Svg(double width, double height, std::string_view title);

  enum class Anchor : unsigned char { start, middle, end };
  void text(double x, double y, std::string_view text, Anchor anchor = Anchor::start,
            const char* colour = "#222222");
  // Widths and heights below nothing are nothing. `tip` is shown where a pointer rests.
  void box(double x, double y, double width, double height, const char* colour,
           std::string_view tip = {});
  void line(double x1, double y1, double x2, double y2, const char* colour, const char* dash = "");
  void dot(double x, double y, const char* colour, std::string_view tip = {});
  // A coloured square and what it stands for; returns where the next one may begin.
  double legend(double x, double y, const char* colour, std::string_view what);

  std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace tessera
