#pragma once

#include <sstream>
#include <string>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"
#include "tests/planner/built_in.h"

// RunConfig as flags, with the flags of advice applied on top.
namespace tessera::planner {

// Applies flags such as "--zero 1 --no-keep-params" to the settings.
inline RunConfig with_flags(RunConfig settings, const std::string& flags) {
  std::istringstream words(flags);
  std::string flag;
  for (std::string word; words >> word;) {
    if (word.starts_with("--no-")) {
      settings.set(word.substr(5), "false");
    } else if (!word.starts_with("--")) {
      settings.set(flag, word);
    } else {
      flag = word.substr(2);
      if (find_field(Command::plan, flag).is_flag()) settings.set(flag, "true");
    }
  }
  return settings;
}

struct AdvisedCase {
  RunConfig settings = RunConfig::for_plan();
  std::string words;
};

inline Plan plan_of(const AdvisedCase& one) { return make_plan(look_up(one.settings, built_in())); }
inline Plan followed(const AdvisedCase& one, const Advice& advice) {
  return plan_numbers(resolve(look_up(with_flags(one.settings, advice.flags), built_in())));
}

}  // namespace tessera::planner
