// Texts of `tessera generate` on their way to stdout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/models/generate.h"

namespace tessera::cli {

// A text on its way: shown as it comes if it is the first that is not done, else later.
struct Answer {
  std::string prompt;
  std::vector<std::int64_t> ids;  // of the prompt
  std::vector<std::int64_t> written;
  models::TextStream stream;
  std::string shown, waiting;
  const char* ended = "";
};

// What the last token adds. It depends on the one before: some begin with a space, but for those
// that begin a text.
std::string text_of(const data::Tokenizer& tokenizer, const Answer& answer);

// Shows texts in their order, as they come or, as JSON, when they are done.
class GenerateOutput {
 public:
  GenerateOutput(std::vector<Answer>& answers, bool json) : answers_(answers), json_(json) {}

  // More of a text, or its end. False where nobody reads any more.
  bool more(std::size_t i, const std::string& text);
  // What may be shown by now; likewise.
  bool flush();

 private:
  std::vector<Answer>& answers_;
  const bool json_;
  std::size_t next_ = 0;  // the first that is not done
  bool begun_ = false;    // its prompt has been shown
};

}  // namespace tessera::cli
