#include "tests/checkpoint/hostile.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/text.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

void spit(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

Json read_json(const std::string& folder) { return Json::parse("{" + manifest_body(folder)); }

void write_json(const std::string& folder, const Json& json) {
  write_manifest(folder, sealed(json.dump().substr(1) + "\n"));
}

// Changes the JSON of the manifest.
Hostile edited(const std::string& name, bool refused, std::function<void(Json&)> change) {
  return {name, refused, [change = std::move(change)](const std::string& folder) {
            Json json = read_json(folder);
            change(json);
            write_json(folder, json);
          }};
}

std::string first_shard(const std::string& folder) {
  return folder + "/" + read_json(folder).at("files").at(0).at("name").get<std::string>();
}

// Changes the header of the first shard, padded to its old length, and its checksum.
Hostile other_header(const std::string& name, std::function<std::string(std::string)> change) {
  return {name, true, [change = std::move(change)](const std::string& folder) {
            const std::string path = first_shard(folder);
            std::string bytes = read_all(path);
            std::uint64_t length = 0;
            std::memcpy(&length, bytes.data(), 8);
            std::string header = bytes.substr(8, length);
            header.resize(header.find_last_not_of(' ') + 1);
            header = change(header);
            header.resize(std::max<std::size_t>(header.size(), length), ' ');
            length = header.size();
            std::string begin(8, '\0');
            std::memcpy(begin.data(), &length, 8);
            Json json = read_json(folder);
            Json& file = json["files"][0];
            bytes = begin + header + bytes.substr(file["header_bytes"].get<std::size_t>());
            spit(path, bytes);
            file["bytes"] = bytes.size();
            file["header_bytes"] = 8 + header.size();
            file["header_crc32c"] = to_hex({crc32c(begin + header)});
            write_json(folder, json);
          }};
}

void add_numbers(std::vector<Hostile>& all) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 53;
  const std::vector<Json> values = {-1,  kLarge + 1, kLarge << 9, INT64_MAX,     UINT64_MAX,
                                    1.5, 1e300,      "7",         Json(nullptr), Json::array()};
  for (const char* const place :
       {"/version", "/step", "/samples", "/mesh/dp", "/mesh/tp", "/stage", "/block_bytes",
        "/params/0/shape/0", "/params/0/cuts/0/dim", "/params/1/cuts/0/segments/0/0",
        "/params/1/cuts/0/segments/0/1", "/files/0/bytes", "/files/0/header_bytes",
        "/files/0/tensors/0/elements/0/0", "/files/0/tensors/0/elements/0/1"}) {
    for (const Json& value : values) {
      all.push_back(edited(str(place, " = ", value.dump()), true,
                           [=](Json& json) { json[Pointer(place)] = value; }));
    }
  }
}

void add_kinds(std::vector<Hostile>& all) {
  const std::vector<Json> values = {nullptr, Json::array(), Json::object(), "x", true};
  for (const char* const place : {"/format",
                                  "/seed",
                                  "/layout",
                                  "/mesh",
                                  "/model",
                                  "/extra",
                                  "/params",
                                  "/params/0",
                                  "/params/0/name",
                                  "/params/0/shape",
                                  "/params/0/cuts",
                                  "/params/0/cuts/0",
                                  "/params/0/cuts/0/axis",
                                  "/params/0/cuts/0/dim",
                                  "/params/1/cuts/0/segments",
                                  "/params/1/cuts/0/segments/0",
                                  "/files",
                                  "/files/0",
                                  "/files/0/name",
                                  "/files/0/header_crc32c",
                                  "/files/0/tensors",
                                  "/files/0/tensors/0",
                                  "/files/0/tensors/0/name",
                                  "/files/0/tensors/0/param",
                                  "/files/0/tensors/0/state",
                                  "/files/0/tensors/0/dtype",
                                  "/files/0/tensors/0/elements",
                                  "/files/0/tensors/0/crc32c"}) {
    for (const Json& value : values) {
      all.push_back(edited(str(place, " = ", value.dump()), false,
                           [=](Json& json) { json[Pointer(place)] = value; }));
    }
    const Pointer pointer(place);
    all.push_back(edited(str("without ", place), false, [pointer](Json& json) {
      Json& parent = json[pointer.parent_pointer()];
      if (parent.is_null()) return;  // a model that has none
      if (parent.is_array()) {
        parent.erase(std::stoul(pointer.back()));
      } else {
        parent.erase(pointer.back());
      }
    }));
  }
}

void add_cuts(std::vector<Hostile>& all) {
  const auto add = [&](const std::string& name, std::function<void(Json&)> change) {
    all.push_back(edited(name, true, std::move(change)));
  };
  const auto cut = [](const char* axis, int dim) { return Json{{"axis", axis}, {"dim", dim}}; };
  for (const std::string axis :
       {"xp", "dp", "dp_replicate", "dp_shard", "TP", "tp ", "", "\x1b[31m"}) {
    add("a cut along " + Json(axis).dump(),
        [=](Json& json) { json["params"][0]["cuts"][0]["axis"] = axis; });
  }
  add("two cuts of one dim", [=](Json& json) {
    json["params"][0]["cuts"] = {cut("tp", 0), cut("pp", 0)};
  });
  add("two cuts along one axis", [=](Json& json) {
    json["params"][0]["cuts"] = {cut("tp", 0), cut("tp", 1)};
  });
  add("a cut of a dim that is not there",
      [=](Json& json) { json["params"][0]["cuts"] = {cut("tp", 2)}; });
  add("a cut behind the last dim", [=](Json& json) {
    Json& param = json["params"][8];  // in the small model a scalar without dims
    param["cuts"] = {cut("tp", static_cast<int>(param["shape"].size()))};
  });
  add("segments that are too short", [](Json& json) {
    json["params"][1]["cuts"][0]["segments"] = {{16, 8}, {8, 2}};
  });
  add("segments whose sum would overflow", [](Json& json) {
    Json& segments = json["params"][1]["cuts"][0]["segments"] = Json::array();
    for (int i = 0; i < 2048; ++i) segments.push_back({std::int64_t{1} << 53, 1});
  });
  add("a mesh with an axis that is not known", [](Json& json) { json["mesh"]["xp"] = 2; });
  add("a mesh with more replicas than data-parallel ranks",
      [](Json& json) { json["mesh"]["dp_replicate"] = 6; });
  for (const Json& dim : std::vector<Json>{-1, 2, 1.5, "0", Json(nullptr)}) {
    add("a cut as in version 1 of dim " + dim.dump(), [=](Json& json) {
      json["version"] = 1;
      json["params"][0]["tp_dim"] = dim;
    });
  }
  add("segments as in version 1 that are too long", [](Json& json) {
    json["version"] = 1;
    json["params"][0]["tp_dim"] = 0;
    json["params"][0]["segments"] = {{48, 1}, {1, 1}};
  });
  // The format allows cuts along axes of the mesh that no model is cut along today.
  all.push_back(edited("a cut along pp", false,
                       [=](Json& json) { json["params"][0]["cuts"].push_back(cut("pp", 1)); }));
}

void add_manifests(std::vector<Hostile>& all) {
  const auto text = [&](const std::string& name, std::function<std::string(std::string)> change) {
    all.push_back({name, true, [change = std::move(change)](const std::string& folder) {
                     write_manifest(folder, sealed(change(manifest_body(folder))));
                   }});
  };
  text("the step twice", [](std::string body) { return "\"step\": 7,\n" + body; });
  text("the checksum twice", [](std::string body) { return "\"crc32c\": \"\",\n" + body; });
  text("a parameter's name twice", [](std::string body) {
    const std::size_t at = body.find("{\"name\":");
    return body.insert(at + 1, "\"name\":\"x\",");
  });
  text("nested deeply", [](std::string) {
    return "\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  });
  text("a hundred thousand empty objects", [](std::string) {
    std::string list = "{}";
    for (int i = 0; i < 100000; ++i) list += ",{}";
    return "\"params\": [" + list + "]}";
  });
  text("nothing but spaces", [](std::string) { return std::string(1 << 20, ' '); });
  text("cut in the middle", [](std::string body) { return body.substr(0, body.size() / 2); });
  for (const auto& [name, content] : {std::pair<const char*, std::string>{"empty", ""},
                                      {"a line", "{\"crc32c\": \"00000000\",\n"},
                                      {"zeros", std::string(1000, '\0')}}) {
    all.push_back({str("a manifest of ", name), true,
                   [content = content](const std::string& f) { write_manifest(f, content); }});
  }
  all.push_back(
      {"a manifest with four gigabytes of nothing", true,
       [](const std::string& folder) { fs::resize_file(folder + "/manifest.json", 4'000'000'000); },
       true});
  const auto field = [&](const std::string& name, const char* place, const Json& value) {
    all.push_back(edited(name, true, [=](Json& json) { json[Pointer(place)] = value; }));
  };
  for (const std::string name :
       {"../x", "/etc/passwd", ".hidden", "manifest.json", "a\nb", "a\\b"}) {
    field(str("a file called ", Json(name).dump()), "/files/0/name", name);
  }
  field("more elements than fit", "/params/0/shape", Json::array({1 << 30, 1 << 30, 1 << 30}));
  field("a mesh of more ranks than fit", "/mesh", {{"dp", 1 << 20}, {"tp", 1 << 20}, {"pp", 2}});
  all.push_back(edited("the same file twice", true,
                       [](Json& json) { json["files"].push_back(json["files"][0]); }));
  all.push_back(edited("the same parameter twice", true,
                       [](Json& json) { json["params"].push_back(json["params"][0]); }));
  all.push_back(edited("the same tensor twice", true, [](Json& json) {
    Json& tensors = json["files"][0]["tensors"];
    tensors.push_back(tensors[0]);
  }));
  // Memory would be allocated for each run.
  all.push_back(edited("2^40 runs of a file that is too short", true, [](Json& json) {
    json["params"][0]["shape"] = Json::array({std::int64_t{1} << 41});
    Json& file = json["files"][0];
    file["bytes"] = std::int64_t{1} << 46;
    Json& tensor = file["tensors"][0];
    tensor["param"] = json["params"][0]["name"];
    tensor["elements"] = Json::array({Json::array({0, 1, std::int64_t{1} << 40, 2})});
  }));
  all.push_back(edited("another key", false, [](Json& json) { json["more"] = {1, 2, 3}; }));
  // An axis that is missing in a manifest has one rank: older programs had fewer axes.
  all.push_back(edited("a mesh with one axis", false, [](Json& json) {
    json["mesh"] = {{"dp", 2}};
  }));
}

void add_files(std::vector<Hostile>& all) {
  const auto add = [&](const std::string& name, std::function<void(const std::string&)> spoil) {
    all.push_back({name, true, std::move(spoil)});
  };
  add("a shard by a link that leaves the folder", [](const std::string& folder) {
    const std::string path = first_shard(folder);
    fs::rename(path, folder + "-elsewhere");
    fs::create_symlink(folder + "-elsewhere", path);
  });
  add("a shard by a link inside the folder", [](const std::string& folder) {
    const std::string path = first_shard(folder);
    fs::rename(path, folder + "/other");
    fs::create_symlink("other", path);
  });
  add("a manifest by a link", [](const std::string& folder) {
    fs::rename(folder + "/manifest.json", folder + "-manifest");
    fs::create_symlink(folder + "-manifest", folder + "/manifest.json");
  });
  add("a link to a terminal", [](const std::string& folder) {
    fs::remove(first_shard(folder));
    fs::create_symlink("/dev/tty", first_shard(folder));
  });
  for (const bool manifest : {true, false}) {
    const auto path = [manifest](const std::string& folder) {
      return manifest ? folder + "/manifest.json" : first_shard(folder);
    };
    const std::string which = manifest ? "the manifest" : "a shard";
    add(which + " is a pipe", [path](const std::string& folder) {
      const std::string at = path(folder);
      fs::remove(at);
      if (::mkfifo(at.c_str(), 0600) != 0) throw std::runtime_error("no pipe");
    });
    add(which + " is a folder", [path](const std::string& folder) {
      const std::string at = path(folder);
      fs::remove(at);
      fs::create_directory(at);
    });
    add(which + " is missing", [path](const std::string& folder) { fs::remove(path(folder)); });
  }
  add("a shard cut short", [](const std::string& folder) {
    const std::string path = first_shard(folder);
    fs::resize_file(path, fs::file_size(path) - 1);
  });
  add("a shard with more at its end", [](const std::string& folder) {
    const std::string path = first_shard(folder);
    fs::resize_file(path, fs::file_size(path) + 1);
  });
  add("a shard of nothing", [](const std::string& f) { fs::resize_file(first_shard(f), 0); });
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 8}) {
    add(str("a header of ", length, " bytes"), [length](const std::string& folder) {
      std::string bytes = read_all(first_shard(folder));
      std::memcpy(bytes.data(), &length, 8);
      spit(first_shard(folder), bytes);
    });
  }
  all.push_back(other_header("a header that is not JSON", [](std::string) { return "{\"a\""; }));
  all.push_back(other_header("a header with a key twice", [](std::string header) {
    return "{\"__metadata__\":{}," + header.substr(1);
  }));
  all.push_back(other_header("a header with offsets outside", [](std::string header) {
    const std::string before = "\"data_offsets\":[";
    return header.replace(header.find(before), before.size(), before + "9");
  }));
  all.push_back(other_header("a header without its tensors", [](std::string) { return "{}"; }));
  all.push_back(other_header("a header nested deeply", [](std::string) {
    return "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  }));
}

}  // namespace

std::string sealed(const std::string& body) {
  return str(kChecksumBefore, to_hex({crc32c(body)}), kChecksumAfter, body);
}

std::string manifest_body(const std::string& folder) {
  return read_all(folder + "/manifest.json")
      .substr(kChecksumBefore.size() + kChecksumDigits + kChecksumAfter.size());
}

void write_manifest(const std::string& folder, const std::string& text) {
  spit(folder + "/manifest.json", text);
}

std::vector<Hostile> hostile_checkpoints() {
  std::vector<Hostile> all;
  add_numbers(all);
  add_kinds(all);
  add_cuts(all);
  add_manifests(all);
  add_files(all);
  return all;
}

}  // namespace tessera::checkpoint
