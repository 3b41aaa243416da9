#include "tessera/dashboard/module.h"

#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"

const char* tessera_answer(const char* method, const char* path, const char* body) {
  using namespace tessera;
  static const dashboard::Knowledge known = [] {
    dashboard::Knowledge made;
    made.search_progress = [](std::int64_t done, std::int64_t total) {
      tessera_progress(static_cast<double>(done), static_cast<double>(total));
    };
    return made;
  }();
  static std::string text;
  const dashboard::Answer answer = dashboard::calculator_answer(known, method, path, body);
  text = str(answer.status, " ", answer.body);
  return text.c_str();
}
