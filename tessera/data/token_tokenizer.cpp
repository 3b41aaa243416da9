#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/token_files.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

std::unique_ptr<Tokenizer> tokenizer_of(const TokenData& data) {
  const auto* const files = dynamic_cast<const TokenFiles*>(&data);
  if (files == nullptr || !files->manifest()) return nullptr;
  auto tokenizer =
      files->manifest()->tokenizer == "bytes" ? byte_tokenizer() : load_tokenizer(data.path());
  if (tokenizer->fingerprint() != data.fingerprint()) {
    throw DataError(str("the tokenizer in ", quote(data.path()), " has the fingerprint ",
                        tokenizer->fingerprint(), ", expected ", data.fingerprint(),
                        ": the tokens were made with other tokenizer files"));
  }
  return tokenizer;
}

}  // namespace tessera::data
