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
  std::string pages;  // a folder with the page, for who works on it; empty: the one in the program
  int most_listeners = 24;  // each has a connection of the server for itself
  int most_heavy = 2;       // long calculations at once
};

// All that is answered.
Site make_site(SiteOptions options);

}  // namespace tessera::dashboard
