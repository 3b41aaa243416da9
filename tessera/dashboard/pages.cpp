#include "tessera/dashboard/pages.h"

#include <zlib.h>

#include <filesystem>
#include <vector>

#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/embedded.h"

namespace tessera::dashboard {

namespace {

constexpr std::int64_t kMaxPage = std::int64_t{16} << 20;

std::string type_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  const std::string ending = dot == std::string::npos ? "" : path.substr(dot + 1);
  if (ending == "html") return "text/html; charset=utf-8";
  if (ending == "js" || ending == "mjs") return "text/javascript; charset=utf-8";
  if (ending == "css") return "text/css; charset=utf-8";
  if (ending == "svg") return "image/svg+xml";
  if (ending == "png") return "image/png";
  if (ending == "ico") return "image/x-icon";
  if (ending == "woff2") return "font/woff2";
  if (ending == "json" || ending == "webmanifest") return "application/json";
  return "application/octet-stream";
}

std::string etag_of(std::string_view bytes) {
  return str("\"", to_hex(sha256(bytes)).substr(0, 20), "\"");
}

// For the few clients that do not accept gzip. The input is trusted: it is embedded in the program.
std::string gunzip(const std::string& bytes) {
  z_stream stream{};
  if (::inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw Error("zlib initialization failed");
  std::string out;
  std::vector<char> part(1 << 16);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = static_cast<uInt>(part.size());
    state = ::inflate(&stream, Z_NO_FLUSH);
    out.append(part.data(), part.size() - stream.avail_out);
  }
  ::inflateEnd(&stream);
  if (state != Z_STREAM_END) throw Error("a page embedded in the program is corrupt");
  return out;
}

}  // namespace

const Pages& embedded_pages() {
  static const Pages pages = [] {
    Pages all;
    for (std::size_t i = 0; i < kEmbeddedCount; ++i) {
      const EmbeddedFile& file = kEmbeddedFiles[i];
      Page& page = all[file.path];
      page.type = type_of(file.path);
      page.gzipped.assign(reinterpret_cast<const char*>(file.bytes), file.size);
      page.etag = etag_of(page.gzipped);
    }
    return all;
  }();
  return pages;
}

Pages pages_of_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  Pages all;
  std::error_code problem;
  for (auto entry = fs::recursive_directory_iterator(folder, problem);
       !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (!entry->is_regular_file()) continue;
    Page& page = all["/" + fs::relative(entry->path(), folder).generic_string()];
    page.type = type_of(entry->path().string());
    page.plain = read_small_file(entry->path().string(), kMaxPage, "a file of the page");
    page.etag = etag_of(page.plain);
  }
  if (problem) {
    throw UsageError(Flag("pages"), str("cannot read ", quote(folder), ": ", problem.message()));
  }
  return all;
}

Answer page_answer(const Pages& pages, const Request& request) {
  auto found = pages.find(request.path);
  if (found == pages.end() && request.path.find('.') == std::string::npos &&
      request.path.rfind("/api", 0) != 0) {
    found = pages.find("/index.html");
  }
  if (found == pages.end()) {
    if (pages.empty()) {
      return refusal(404,
                     "this program was built without the page. Install Node (Debian: nodejs npm) "
                     "and build again; the API is at /openapi.json");
    }
    return refusal(404, "not found");
  }
  const Page& page = found->second;
  Answer answer;
  answer.type = page.type;
  answer.headers["ETag"] = page.etag;
  answer.headers["Vary"] = "Accept-Encoding";
  answer.headers["Cache-Control"] =
      "no-cache";  // files keep their names when their content changes
  if (request.header("if-none-match") == page.etag) {
    answer.status = 304;
    return answer;
  }
  if (page.gzipped.empty()) {
    answer.body = page.plain;
  } else if (request.header("accept-encoding").find("gzip") != std::string::npos) {
    answer.headers["Content-Encoding"] = "gzip";
    answer.body = page.gzipped;
  } else {
    answer.body = gunzip(page.gzipped);
  }
  return answer;
}

}  // namespace tessera::dashboard
