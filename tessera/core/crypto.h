#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of libcrypto

namespace tessera {

using Digest = std::array<std::uint8_t, 32>;

// Incremental SHA-256 (FIPS 180-4), computed by libcrypto.
class Sha256 {
 public:
  Sha256();
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  // Returns the digest of everything added. Nothing may be added afterwards.
  Digest finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Digest sha256(std::string_view text);

// HMAC-SHA256 (RFC 2104).
Digest hmac_sha256(std::string_view key, std::string_view text);

// Compares in constant time, so that timing does not reveal the position of the first difference.
bool equal_in_constant_time(const Digest& a, const Digest& b);

// Returns `bytes` unpredictable bytes of libcrypto's generator, which the kernel seeds. A forked
// child gets others than its parent.
std::string random_bytes(std::size_t bytes);

std::string to_hex(const Digest& digest);

}  // namespace tessera
