#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// [Note: who may ask] A page of another site can make a browser send requests here, and by a name
// that changes its address (DNS rebinding) read the answers too. So a request must name this host
// as we are called, may come from no other origin, and a body must be JSON, which forms cannot
// send. Where a token is wanted, it comes once in the address (/?token=…), and then as a cookie; or
// as "Authorization: Bearer …".
struct GuardOptions {
  std::vector<std::string> hosts;  // names by which we are called, besides loopback's
  bool any_number = false;         // any address in numbers: where we listen at all of ours
  std::string token;               // empty: none is wanted
};

// Nothing, or why not.
std::optional<Answer> refuse_stranger(const GuardOptions& options, const Request& head);
// Refuses a POST whose body is not JSON.
std::optional<Answer> refuse_other_type(const Request& head);

// "localhost:8080" as "localhost", "[::1]:80" as "::1"; "" for anything that is not a name or an
// address with an optional port in digits.
std::string host_of(std::string_view header);
bool is_loopback(std::string_view address);  // in numbers

}  // namespace tessera::dashboard
