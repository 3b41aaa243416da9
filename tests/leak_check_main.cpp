// main() of the tests under AddressSanitizer. On aarch64 a leak check takes 4 s for any program and
// runs at the exit of every process, so tests that start many processes would take minutes. The
// preset disables it at exit, and this main() runs it once for the test program.
#include <gtest/gtest.h>
#include <sanitizer/lsan_interface.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  // Not when tests are only listed, as at build time.
  if (!testing::GTEST_FLAG(list_tests)) __lsan_do_leak_check();
  return status;
}
