#pragma once

#include <memory>
#include <string>

#include "tessera/dashboard/api.h"
#include "tessera/dashboard/guard.h"
#include "tessera/dashboard/http.h"
#include "tessera/dashboard/runs.h"

namespace tessera::dashboard {

struct SiteOptions {
  Knowledge known;
  GuardOptions guard;
  std::shared_ptr<RunStore> runs;
  std::string pages;        // folder with the page, for development; empty: the embedded page
  int most_listeners = 24;  // event streams; each holds a connection and a thread
  int most_heavy = 2;       // concurrent long calculations
};

// Returns the handlers of the dashboard.
Site make_site(SiteOptions options);

}  // namespace tessera::dashboard
