#include "tessera/core/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <limits>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

// Without libcrypto's exit handler: it frees what threads that outlive main() may still use.
void start_libcrypto() {
  static const int started = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  if (started != 1) throw Error("libcrypto cannot be initialized. Check OPENSSL_CONF.");
}

void must_succeed(bool success, const char* what) {
  if (!success) throw Error(std::string("libcrypto failed: ") + what);
}

}  // namespace

Sha256::Sha256() {
  start_libcrypto();
  context_.reset(EVP_MD_CTX_new());
  must_succeed(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
               "EVP_DigestInit_ex");
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

void Sha256::add(const void* data, std::size_t bytes) {
  must_succeed(EVP_DigestUpdate(context_.get(), data, bytes) == 1, "EVP_DigestUpdate");
}

Digest Sha256::finish() {
  Digest digest;
  must_succeed(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1,
               "EVP_DigestFinal_ex");
  return digest;
}

Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  start_libcrypto();
  if (key.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw UsageError("The key of an HMAC must be shorter than 2 GiB.");
  }
  Digest digest;
  must_succeed(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                    nullptr) != nullptr,
               "HMAC");
  return digest;
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(std::size_t bytes) {
  start_libcrypto();
  std::string result(bytes, '\0');
  must_succeed(
      bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()) &&
          RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(bytes)) == 1,
      "RAND_bytes");
  return result;
}

std::string to_hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace tessera
