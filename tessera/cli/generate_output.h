// Output of `tessera generate` to stdout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/models/generate.h"

namespace tessera::cli {

// Text being generated. Printed as it is generated if it is the first unfinished one, otherwise
// later.
struct Answer {
  std::string prompt;
  std::vector<std::int64_t> ids;  // of the prompt
  std::vector<std::int64_t> written;
  models::TextStream stream;
  std::string shown, waiting;
  const char* ended = "";
};

// Returns the text that the last token adds. It depends on the previous token: some tokens start
// with a space unless they begin a text.
std::string text_of(const data::Tokenizer& tokenizer, const Answer& answer);

// Prints texts in order: as they are generated, or as JSON when they are done.
class GenerateOutput {
 public:
  GenerateOutput(std::vector<Answer>& answers, bool json) : answers_(answers), json_(json) {}

  // Appends to text `i`, or handles its end. Returns false if the reader of stdout is gone.
  bool more(std::size_t i, const std::string& text);
  // Prints what may be printed now. Returns false if the reader of stdout is gone.
  bool flush();

 private:
  std::vector<Answer>& answers_;
  const bool json_;
  std::size_t next_ = 0;  // first unfinished text
  bool begun_ = false;    // its prompt has been printed
};

}  // namespace tessera::cli
