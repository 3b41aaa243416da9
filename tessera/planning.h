// Plans and simulates training without LibTorch: find_package(tessera COMPONENTS planning). All
// functions are thread-safe: results depend on the arguments only.
#pragma once

#include "tessera/core/axes.h"
#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/units.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/search.h"
#include "tessera/schedule/schedule.h"
#include "tessera/simulator/simulate.h"
#include "tessera/version.h"
