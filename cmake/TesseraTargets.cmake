# Functions with which modules, examples, tests and benchmarks declare their targets.

include(GNUInstallDirs)
configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in"
               "${PROJECT_BINARY_DIR}/generated/tessera/version.h" @ONLY)

# tessera_library(<target> <name>): adds a static library with the alias tessera::<name>.
function(tessera_library target name)
  add_library(${target} STATIC)
  add_library(tessera::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${TESSERA_WARNINGS})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_UNITY}
                        UNITY_BUILD_BATCH_SIZE ${TESSERA_UNITY_BATCH})
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endfunction()

# tessera_optimize(<target> <level>): compiles a library with compute loops at -O2 or -O3 in the release
# build. See [Note: optimization] in TesseraCompiler.cmake.
function(tessera_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

# tessera_link_shared(<target> <name>…): links those of CRYPTO, HWLOC, PCRE2, ZLIB and ZSTD that
# were found. The installed package links tessera::<name> instead, which tesseraConfig.cmake defines from
# the shared library alone, so that its users need no development files.
function(tessera_link_shared target)
  foreach(name ${ARGN})
    if(TESSERA_HAVE_${name})
      set(built PkgConfig::${name})
      if(name STREQUAL "CRYPTO")
        set(built OpenSSL::Crypto)
      endif()
      target_link_libraries(${target} PRIVATE "$<BUILD_INTERFACE:${built}>"
                                              "$<INSTALL_INTERFACE:tessera::${name}>")
    endif()
  endforeach()
endfunction()

# Gives a library without sources an empty one, because CMake requires a source.
function(tessera_require_sources target)
  if(TARGET ${target})
    get_target_property(sources ${target} SOURCES)
    if(NOT sources)
      file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/empty.cpp" CONTENT "")
      target_sources(${target} PRIVATE "${PROJECT_BINARY_DIR}/generated/empty.cpp")
    endif()
  endif()
endfunction()

# tessera_toml_source(<target> <source> <stub>): adds a source that includes toml++, or its stub if
# toml++ is missing. Sets include folders and macros for that source only: set for a whole library, they
# would make the precompiled torch header unusable.
function(tessera_toml_source target source stub)
  if(NOT TARGET tomlplusplus::tomlplusplus)
    target_sources(${target} PRIVATE ${stub})
    return()
  endif()
  target_sources(${target} PRIVATE ${source})
  get_target_property(includes tomlplusplus::tomlplusplus INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM includes REPLACE "/$" "")
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  set_source_files_properties(
    ${source} TARGET_DIRECTORY ${target}
    PROPERTIES INCLUDE_DIRECTORIES "${includes}" COMPILE_DEFINITIONS TOML_HEADER_ONLY=1)
endfunction()

# tessera_highway(<target> <source>…): declares sources of this folder that include Highway, one per
# instruction set: see [Note: sets] in tessera/core/simd.h. Only they get its include folder.
function(tessera_highway target)
  set(includes "${TESSERA_HIGHWAY}")
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  set_source_files_properties(
    ${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON INCLUDE_DIRECTORIES "${includes}")
  if(TESSERA_SANITIZE MATCHES "undefined")  # compiles twelve times as slowly with it
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target}
                 APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
endfunction()

# tessera_fmt(<target> <source>…): declares sources of this folder that include {fmt}. They must not see
# torch's headers, which may contain another version of it.
function(tessera_fmt target)
  set(includes "${TESSERA_FMT}")
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  list(TRANSFORM includes PREPEND "-isystem")
  set_source_files_properties(
    ${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${includes}"
               COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
endfunction()

# tessera_by_name(<group> <target>…): leaves programs out of the default build. The target <group> builds
# them, and so does each name.
function(tessera_by_name group)
  foreach(target ${ARGN})
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
      add_dependencies(${group} ${target})
    endif()
  endforeach()
endfunction()

# Sets `out` to TRUE if the libraries include torch.
function(tessera_links_torch out)
  set(${out} FALSE PARENT_SCOPE)
  foreach(library ${ARGN})
    if(library MATCHES "^(tessera|tessera::tessera|LibTorch::LibTorch)$")
      set(${out} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# tessera_executable(NAME <target> [OUTPUT <file name>] SOURCES … LINK …)
# Adds a program in build/bin. One that links torch reuses the library's precompiled header, and is
# omitted if TESSERA_TORCH is off.
function(tessera_executable)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;OUTPUT;FOLDER" "SOURCES;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR "tessera_executable: NAME and SOURCES are required, OUTPUT, FOLDER and LINK are optional. The arguments are ${ARGV}")
  endif()
  tessera_links_torch(torch ${arg_LINK})
  if(torch AND NOT TESSERA_TORCH)
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  set_target_properties(${arg_NAME} PROPERTIES UNITY_BUILD ${TESSERA_UNITY}
                        UNITY_BUILD_BATCH_SIZE ${TESSERA_UNITY_BATCH})
  target_compile_options(${arg_NAME} PRIVATE ${TESSERA_WARNINGS})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LINK})
  target_include_directories(${arg_NAME} PRIVATE
    "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  if(torch)
    target_precompile_headers(${arg_NAME} REUSE_FROM tessera)
    # Listed explicitly: INSTALL_RPATH_USE_LINK_PATH omits folders in the source tree, such as .venv. The
    # first entry is the location for packages (cmake/TesseraPackage.cmake).
    set_property(TARGET ${arg_NAME} APPEND PROPERTY INSTALL_RPATH
                 "$ORIGIN/../lib/tessera/torch/lib" "${LibTorch_LIBRARY_DIR}")
  endif()
  if(arg_OUTPUT)
    set_target_properties(${arg_NAME} PROPERTIES OUTPUT_NAME ${arg_OUTPUT})
  endif()
  if(arg_FOLDER)
    set_target_properties(${arg_NAME} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${arg_FOLDER}")
  endif()
endfunction()

# tessera_test(NAME <target> SOURCES … [LINK …] [TIMEOUT seconds] [PROCESSORS n] [COST seconds]
#              [LABELS …] [GPU filter] [WHOLE] [THREADS | UNSANITIZED] [TOML …] [COMBINATIONS filter]
#              [ONE_THREAD])
# Adds a GoogleTest program in build/tests, registered with ctest case by case, or as one test with WHOLE
# (for programs that start slowly or spawn processes). THREADS: its threads share memory; only these
# tests run under ThreadSanitizer. UNSANITIZED: not run under sanitizers, because it starts a program
# whose code other tests run under AddressSanitizer.
# PROCESSORS: 2 for tests whose ranks busy-wait or whose deadlines are short. Other tests run beside
# a second one.
# COST: approximate duration. ctest starts long tests first, and has no measured times in a fresh clone.
# GPU: --gtest_filter of the cases that need a GPU; "*" for all. They are one test with the label gpu,
# named <name>.gpu if the program has others too. `make test-gpu` builds and runs the tests with this label.
# Without a CUDA build of LibTorch, programs with "*" are built by `make programs` only, and their tests
# are skipped.
# COMBINATIONS: --gtest_filter of the cases that use tests/combinations.h. A second test, labeled soak, runs
# them with all combinations.
# ONE_THREAD: torch computes with one thread. For programs whose ranks are threads: each rank would start
# as many threads as there are cores.
# TOML: sources whose tests need toml++. Without toml++, a skipped test reports them.
function(tessera_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "WHOLE;THREADS;UNSANITIZED;ONE_THREAD"
                        "NAME;TIMEOUT;PROCESSORS;COST;GPU;COMBINATIONS"
                        "SOURCES;LINK;LABELS;TOML")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tessera_test: unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(TARGET tomlplusplus::tomlplusplus)
    list(APPEND arg_SOURCES ${arg_TOML})
  elseif(arg_TOML)
    list(JOIN arg_TOML ", " without)
    set(without "skipped: built without toml++, which ${without} of ${arg_NAME} needs")
    add_test(NAME ${arg_NAME}.toml COMMAND "${CMAKE_COMMAND}" -E echo "${without}")
    set_tests_properties(${arg_NAME}.toml PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
    if(NOT arg_SOURCES)
      return()
    endif()
  endif()
  tessera_executable(NAME ${arg_NAME} FOLDER tests SOURCES ${arg_SOURCES}
                     LINK ${arg_LINK} ${TESSERA_TEST_MAIN} GTest::gtest)
  if(NOT TARGET ${arg_NAME})
    return()
  endif()
  tessera_links_torch(torch ${arg_LINK})
  if(TARGET tessera_test_headers AND NOT torch)
    target_precompile_headers(${arg_NAME} REUSE_FROM tessera_test_headers)
  endif()
  if(TESSERA_SANITIZE AND (arg_UNSANITIZED OR "soak" IN_LIST arg_LABELS OR
                           (TESSERA_SANITIZE MATCHES "thread" AND NOT arg_THREADS)))
    set_target_properties(${arg_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  if("soak" IN_LIST arg_LABELS)  # only `make soak` builds them
    tessera_by_name(soak_programs ${arg_NAME})
    set(arg_WHOLE TRUE)
  endif()
  if(TESSERA_SANITIZE MATCHES "address")  # the library is under test, not the test program
    target_compile_options(${arg_NAME} PRIVATE -O0 -fno-sanitize=undefined)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # One test per program under a sanitizer: see tests/leak_check_main.cpp.
  if(TESSERA_SANITIZE)
    set(arg_WHOLE TRUE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_PROCESSORS)
    list(APPEND properties PROCESSORS ${arg_PROCESSORS})
  endif()
  if(arg_COST)
    list(APPEND properties COST ${arg_COST})
  endif()
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  set(environment "TESSERA_ALL_COMBINATIONS=0")
  if(arg_ONE_THREAD)
    set(environment "OMP_NUM_THREADS=1")
    list(APPEND properties ENVIRONMENT "${environment}")
  endif()
  if(arg_COMBINATIONS AND NOT TESSERA_SANITIZE)
    add_test(NAME ${arg_NAME}.combinations COMMAND ${arg_NAME} "--gtest_filter=${arg_COMBINATIONS}")
    set_tests_properties(${arg_NAME}.combinations PROPERTIES LABELS soak TIMEOUT 7200
                         ENVIRONMENT "${environment};TESSERA_ALL_COMBINATIONS=1")
  endif()
  unset(others)  # filter of the cases that need no GPU
  if(arg_GPU)
    add_dependencies(gpu_programs ${arg_NAME})
    if(arg_GPU STREQUAL "*" AND NOT TESSERA_HAVE_CUDA)
      tessera_by_name(gpu_programs ${arg_NAME})
      add_test(NAME ${arg_NAME} COMMAND "${CMAKE_COMMAND}" -E echo
               "skipped: needs a GPU and a CUDA build of LibTorch, and this LibTorch is for CPUs")
      set_tests_properties(${arg_NAME} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
      return()
    endif()
    set(gpu_test ${arg_NAME})
    if(NOT arg_GPU STREQUAL "*")
      string(APPEND gpu_test .gpu)
      set(others "--gtest_filter=-${arg_GPU}")
    endif()
    add_test(NAME ${gpu_test} COMMAND ${arg_NAME} "--gtest_filter=${arg_GPU}")
    set_tests_properties(${gpu_test} PROPERTIES ${properties} LABELS gpu)
    if(NOT DEFINED others)
      return()
    endif()
  endif()
  if(arg_WHOLE)
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} ${others})
    set_tests_properties(${arg_NAME} PROPERTIES ${properties})
  else()
    include(GoogleTest)
    gtest_discover_tests(${arg_NAME} TEST_PREFIX "${arg_NAME}." DISCOVERY_TIMEOUT 60
                         TEST_FILTER "-${arg_GPU}" PROPERTIES ${properties})
  endif()
endfunction()

# tessera_fuzzer(NAME <kind>_fuzzer TARGET <function of a string_view> HEADER … SOURCES … LINK …)
# Adds a libFuzzer program in build/tests if TESSERA_FUZZERS is on. Its seeds are in
# tests/data/fuzz/<kind>.
function(tessera_fuzzer)
  if(NOT TESSERA_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TARGET;HEADER" "SOURCES;LINK")
  tessera_executable(NAME ${arg_NAME} FOLDER tests
                     SOURCES "${PROJECT_SOURCE_DIR}/tests/fuzz_entry.cpp" ${arg_SOURCES}
                     LINK ${arg_LINK} -fsanitize=fuzzer)
  target_compile_definitions(${arg_NAME} PRIVATE TESSERA_FUZZ_TARGET=${arg_TARGET}
                                                 TESSERA_FUZZ_HEADER="${arg_HEADER}")
  add_dependencies(fuzzers ${arg_NAME})
endfunction()
