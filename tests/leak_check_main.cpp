// main() of the tests under AddressSanitizer. On aarch64 a leak check takes 4 s whatever the
// program, and happens at the exit of every process, so tests that start many would take minutes.
// The preset switches it off at exit; here it is made once, for the test program itself.
#include <gtest/gtest.h>
#include <sanitizer/lsan_interface.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  // Listing tests, as at build time, allocates nothing worth checking.
  if (!testing::GTEST_FLAG(list_tests)) __lsan_do_leak_check();
  return status;
}
