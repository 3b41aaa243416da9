#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// [Note: who may ask] A page of another site can make a browser send requests here, and with DNS
// rebinding (a name that changes its address) also read the answers. So the Host of a request must
// be a name of this server, the Origin must be its own, and a body must be JSON, which forms cannot
// send. A token, if set, is sent once in the address (/?token=…) and then as a cookie, or as
// "Authorization: Bearer …".
struct GuardOptions {
  std::vector<std::string> hosts;  // accepted Host names besides loopback
  bool any_number = false;         // accept any numeric Host: the server listens on all addresses
  std::string token;               // empty: not required
};

// Returns the refusal of a request, or nullopt if it is allowed.
std::optional<Answer> refuse_stranger(const GuardOptions& options, const Request& head);
// Refuses a POST whose body is not JSON.
std::optional<Answer> refuse_other_type(const Request& head);

// Returns the host of a Host header: "localhost:8080" gives "localhost", "[::1]:80" gives "::1". ""
// for anything that is not a name or an address with an optional port in digits.
std::string host_of(std::string_view header);
bool is_loopback(std::string_view address);  // numeric

}  // namespace tessera::dashboard
