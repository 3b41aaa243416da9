#include "tessera/data/windows.h"

namespace tessera::data {

Decode decoder_of(const TokenData&) { return nullptr; }

}  // namespace tessera::data
