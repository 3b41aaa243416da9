#include "tessera/simulator/agreement.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/step_play.h"
#include "tessera/planner/step_time.h"

namespace tessera::simulator {

const Agreement::Effect& Agreement::largest() const {
  return *std::max_element(effects.begin(), effects.end(), [](const Effect& a, const Effect& b) {
    return std::abs(a.seconds) < std::abs(b.seconds);
  });
}

Agreement agreement_of(const Scenario& s, const Result& result) {
  const planner::Places places = s.places();
  const double few = planner::play_step(s, places).end;
  const double all = planner::play_whole_step(s, places).end;
  const double alone = s.pp() > 1 ? simulate(s, {.shared_links = false}).step : result.step;
  Agreement agreement;
  agreement.planned = planner::step_time(s).step();
  agreement.simulated = result.step;
  agreement.effects[0] = {"messages and collectives share links", result.step - alone};
  agreement.effects[1] = {"a long step was extrapolated from its first micro-batches", all - few};
  // The rest: hops that stay on a node for some replicas only.
  agreement.effects[2] = {"replicas are placed on the nodes in different ways",
                          alone - agreement.planned - (all - few)};
  return agreement;
}

std::string reason(const Agreement& agreement) {
  const Agreement::Effect& effect = agreement.largest();
  return str(format_time(std::abs(effect.seconds)), effect.seconds > 0 ? " more" : " less",
             " in the simulation: ", effect.name);
}

}  // namespace tessera::simulator
