#pragma once

namespace tessera::testing {

// True under a sanitizer, where tests over a range cover less of it because they run much slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tessera::testing
