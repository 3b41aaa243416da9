# The functions with which rooms, examples, tests and benchmarks declare what they build.

include(GNUInstallDirs)
configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in"
               "${PROJECT_BINARY_DIR}/generated/tessera/version.h" @ONLY)

# tessera_library(<target> <name>): a static library, also known as tessera::<name>.
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

# tessera_optimize(<target> <level>): compiles a library with loops of its own at -O2 or -O3 in the
# release build. See [Note: optimization] in TesseraCompiler.cmake.
function(tessera_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

# tessera_link_shared(<target> <name>…): links those of CRYPTO, MPI, HWLOC, PCRE2, ZLIB and ZSTD that
# were found. A project that uses the installed package gets tessera::<name> in their place, which
# tesseraConfig.cmake makes of the shared library alone: it needs no development files of these.
function(tessera_link_shared target)
  foreach(name ${ARGN})
    if(TESSERA_HAVE_${name})
      set(built PkgConfig::${name})
      if(name STREQUAL "MPI")
        set(built MPI::MPI_CXX)
      elseif(name STREQUAL "CRYPTO")
        set(built OpenSSL::Crypto)
      endif()
      target_link_libraries(${target} PRIVATE "$<BUILD_INTERFACE:${built}>"
                                              "$<INSTALL_INTERFACE:tessera::${name}>")
    endif()
  endforeach()
endfunction()

# A library none of whose rooms exist yet gets an empty source, since CMake wants one.
function(tessera_require_sources target)
  if(TARGET ${target})
    get_target_property(sources ${target} SOURCES)
    if(NOT sources)
      file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/empty.cpp" CONTENT "")
      target_sources(${target} PRIVATE "${PROJECT_BINARY_DIR}/generated/empty.cpp")
    endif()
  endif()
endfunction()

# tessera_toml_source(<target> <source> <stand-in>): a source that includes toml++, or its stand-in
# where there is none. Its include folders and macros are for that source alone: for a whole library
# they would make the precompiled torch header useless.
function(tessera_toml_source target source stand_in)
  if(NOT TARGET tomlplusplus::tomlplusplus)
    target_sources(${target} PRIVATE ${stand_in})
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

# tessera_highway(<target> <source>…): sources of this folder that include Highway, one for each
# instruction set: see [Note: sets] in tessera/core/simd.h. Its include folder is for these alone.
function(tessera_highway target)
  set(includes "${TESSERA_HIGHWAY}")
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  set_source_files_properties(
    ${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON INCLUDE_DIRECTORIES "${includes}")
  if(TESSERA_SANITIZE MATCHES "undefined")  # takes twelve times as long to compile with it
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target}
                 APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
endfunction()

# tessera_fmt(<target> <source>…): sources of this folder that include {fmt}. The version that is
# among torch's headers may be another, so no source that sees those may be among them.
function(tessera_fmt target)
  set(includes "${TESSERA_FMT}")
  list(REMOVE_ITEM includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  list(TRANSFORM includes PREPEND "-isystem")
  set_source_files_properties(
    ${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${includes}"
               COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
endfunction()

# Does a list of libraries to link reach torch?
function(tessera_links_torch out)
  set(${out} FALSE PARENT_SCOPE)
  foreach(library ${ARGN})
    if(library MATCHES "^(tessera|tessera::tessera|LibTorch::LibTorch)$")
      set(${out} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# tessera_executable(NAME <target> [OUTPUT <file name>] SOURCES … LINK …)
# A program in build/bin. One that links torch shares the library's precompiled header, and is left
# out where torch is switched off.
function(tessera_executable)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;OUTPUT;FOLDER" "SOURCES;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR "tessera_executable: wants NAME and SOURCES, and maybe OUTPUT and LINK; got ${ARGV}")
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
    # Said by name: INSTALL_RPATH_USE_LINK_PATH leaves out what lies in the source tree, as .venv does.
    # First where a package looks for it (cmake/TesseraPackage.cmake).
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
#              [LABELS …] [WHOLE] [THREADS | UNSANITIZED] [TOML …])
# A GoogleTest program in build/tests, registered with ctest case by case, or as one test with WHOLE
# (for programs whose start is dear, and for those that spawn processes of their own). THREADS: its
# threads share memory, so that ThreadSanitizer can find something in it; it gets no others.
# UNSANITIZED: it starts a program all of whose code other tests run under AddressSanitizer.
# COST: approximate duration. ctest starts long tests first; in a fresh clone it knows no others.
# TOML: more sources, whose tests need toml++; where it is missing, a test that is skipped says so.
function(tessera_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "WHOLE;THREADS;UNSANITIZED" "NAME;TIMEOUT;PROCESSORS;COST" "SOURCES;LINK;LABELS;TOML")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tessera_test: does not know ${arg_UNPARSED_ARGUMENTS}")
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
  if(TESSERA_SANITIZE AND (arg_UNSANITIZED OR "soak" IN_LIST arg_LABELS OR
                           (TESSERA_SANITIZE MATCHES "thread" AND NOT arg_THREADS)))
    set_target_properties(${arg_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  if(TESSERA_SANITIZE MATCHES "address")  # it is the library that is looked at
    target_compile_options(${arg_NAME} PRIVATE -O0 -fno-sanitize=undefined)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # Under a sanitizer, as one test too: see tests/leak_check_main.cpp.
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
  if(arg_WHOLE)
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
    set_tests_properties(${arg_NAME} PROPERTIES ${properties})
  else()
    include(GoogleTest)
    gtest_discover_tests(${arg_NAME} TEST_PREFIX "${arg_NAME}." DISCOVERY_TIMEOUT 60
                         PROPERTIES ${properties})
  endif()
endfunction()

# tessera_fuzzer(NAME <kind>_fuzzer TARGET <function of a string_view> HEADER … SOURCES … LINK …)
# A libFuzzer program in build/tests, with TESSERA_FUZZERS. Its seeds are in tests/data/fuzz/<kind>.
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
