#pragma once

namespace tessera::testing {

// A sanitizer makes everything many times as dear: tests that go over a range then take less of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tessera::testing
