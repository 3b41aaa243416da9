#pragma once

#include <memory>
#include <string>

#include "tessera/dashboard/api.h"
#include "tessera/dashboard/guard.h"
#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

struct SiteOptions {
  Knowledge known;
  GuardOptions guard;
  std::string pages;  // a folder with the page, for who works on it; empty: the one in the program
};

// All that is answered.
Site make_site(SiteOptions options);

}  // namespace tessera::dashboard
