#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// A file of the page, as it travels.
struct Page {
  std::string type;
  std::string gzipped;  // or, if that is empty,
  std::string plain;
  std::string etag;
};
using Pages = std::map<std::string, Page>;  // by path: "/index.html", "/page.js"

// Those in the program; empty where it was built without them.
const Pages& embedded_pages();
// Those of a folder, as it is now: for who works on the page. Throws UsageError.
Pages pages_of_folder(const std::string& folder);

// A request only names a key: no path of it is opened. "/" and whatever has no dot is index.html,
// where the page has its own routes.
Answer page_answer(const Pages& pages, const Request& request);

}  // namespace tessera::dashboard
