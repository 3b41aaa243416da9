#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// File of the page, as it is sent.
struct Page {
  std::string type;
  std::string gzipped;
  std::string plain;  // used if `gzipped` is empty
  std::string etag;
};
using Pages = std::map<std::string, Page>;  // by path: "/index.html", "/page.js"

// Returns the pages in the program; empty if it was built without them.
const Pages& embedded_pages();
// Reads the pages of a folder, for development of the page. Throws UsageError.
Pages pages_of_folder(const std::string& folder);

// Answers a request for a page. Its path is only a key: no file of that name is opened. "/" and
// paths without a dot give index.html, since the page has its own routes.
Answer page_answer(const Pages& pages, const Request& request);

}  // namespace tessera::dashboard
