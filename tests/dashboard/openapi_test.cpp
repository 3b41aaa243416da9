// The OpenAPI description matches the server: every documented example is answered as described.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/dashboard/client.h"

namespace tessera::dashboard {
namespace {

using nlohmann::json;

TEST(OpenApi, EveryDocumentedExampleIsAnsweredWithTheDocumentedFields) {
  const Served served;
  const json description = json::parse(get(served.port(), "/openapi.json").body);
  EXPECT_EQ(description["openapi"], "3.0.3");
  int answered = 0;
  for (const auto& [path, methods] : description["paths"].items()) {
    // Runs are not in this server, and event streams do not end.
    const bool runs = path.find('{') != std::string::npos || path.ends_with("/events");
    if (runs || path == "/api/sync") continue;
    for (const auto& [method, operation] : methods.items()) {
      const bool asks = method == "post";
      const Reply reply =
          asks ? post(served.port(), path,
                      operation["requestBody"]["content"]["application/json"]["example"].dump())
               : get(served.port(), path);
      EXPECT_EQ(reply.status, 200) << path << "\n" << reply.body;
      const json body = json::parse(reply.body, nullptr, false);
      const json schema = operation["responses"]["200"]["content"]["application/json"]["schema"];
      EXPECT_EQ(body.is_array(), schema["type"] == "array") << path;
      if (schema.contains("properties")) {
        for (const auto& [field, ignored] : schema["properties"].items()) {
          EXPECT_TRUE(body.contains(field)) << path << ": " << field;
        }
      }
      ++answered;
    }
  }
  EXPECT_GE(answered, 12);
}

TEST(OpenApi, AcceptsExactlyTheDocumentedKeys) {
  const Served served;
  const json description = json::parse(get(served.port(), "/openapi.json").body);
  for (const char* path : {"/api/schedule", "/api/collective"}) {
    const json content =
        description["paths"][path]["post"]["requestBody"]["content"]["application/json"];
    for (const auto& [key, schema] : content["schema"]["properties"].items()) {
      json body = content["example"];
      const std::string type = schema["type"];
      body[key] = type == "array"    ? json::array({schema["items"]["enum"][0]})
                  : type == "string" ? schema["enum"][0]
                                     : schema["maximum"];
      if (key == "micros" || key == "chunks") body[key] = 2;
      EXPECT_EQ(post(served.port(), path, body.dump()).status, 200) << path << " " << body;
      if (!schema.contains("maximum")) continue;
      body[key] = schema["maximum"].get<double>() * 2 + 1;
      EXPECT_EQ(post(served.port(), path, body.dump()).status, 400) << path << " " << body;
    }
    json body = content["example"];
    body["nothing_of_the_kind"] = 1;
    EXPECT_EQ(post(served.port(), path, body.dump()).status, 400);
  }
}

}  // namespace
}  // namespace tessera::dashboard
