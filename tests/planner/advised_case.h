#pragma once

#include <sstream>
#include <string>

#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"
#include "tests/planner/built_in.h"

// Questions as flags, and the flags of their advice put over them.
namespace tessera::planner {

// "--zero 1 --no-keep-params" over what was asked.
inline Settings with_flags(Settings settings, const std::string& flags) {
  std::istringstream words(flags);
  std::string flag;
  for (std::string word; words >> word;) {
    if (word.rfind("--no-", 0) == 0) {
      settings.set(word.substr(5), "false");
      flag.clear();
    } else if (word.rfind("--", 0) == 0) {
      flag = word.substr(2);
      settings.set(flag, "true");  // unless a value follows
    } else {
      settings.set(flag, word);
    }
  }
  return settings;
}

struct AdvisedCase {
  Settings settings;
  std::string words;
};

inline Plan plan_of(const AdvisedCase& one) { return make_plan(one.settings.question(built_in())); }
inline Plan followed(const AdvisedCase& one, const Advice& advice) {
  return plan_numbers(settle(with_flags(one.settings, advice.flags).question(built_in())));
}

}  // namespace tessera::planner
