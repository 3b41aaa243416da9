# Language, flags, compiler cache and output folders.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# [Note: optimization] Three quarters of the time to compile a source that uses torch at -O3 are spent
# optimizing, and such a source only calls kernels: -O1 compiles 1.7 times as fast. The
# planning library compiles twice as fast as at -O2; its simulations take the same time and its
# searches 6% longer. Libraries with loops of their own ask for more with tessera_optimize(). -g1: line
# numbers in backtraces at little cost in build time.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # the sanitizers' build, with assertions

# One position-independent mode for libraries and programs, so that they can share a
# precompiled header (GCC refuses one that was built with another mode).
add_compile_options(-fPIC)
# An overwritten return address, or a copy past the end of a buffer whose size is known, ends the
# program. Kernels pay one check in a call of hundreds of microseconds, which cannot be measured.
# FORTIFY needs an optimizing compiler, and gets in the way of the sanitizers, which find more.
add_compile_options(-fstack-protector-strong)
if(NOT TESSERA_SANITIZE)
  add_compile_options($<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
                      $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
# All symbols are bound at start, and the tables that they are called through are read-only then.
add_link_options(-Wl,--as-needed -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
                 $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# Installed programs find libraries beside them, wherever the prefix is moved to. Those that link
# torch get its folder too: see tessera_executable.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

if(TESSERA_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TESSERA_FUZZERS: got ${CMAKE_CXX_COMPILER_ID}, wanted clang, which has libFuzzer (Debian: clang-14 libclang-rt-14-dev)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# ccache. The sloppiness is what it needs to cache objects that use a precompiled header; the base
# folder lets clones in different places share results.
find_program(TESSERA_CCACHE ccache)
mark_as_advanced(TESSERA_CCACHE)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros"
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${TESSERA_CCACHE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# Each unity source instantiates the templates of torch, CLI11 and JSON again: 30 sources as one take
# 53 s of CPU, in three parts 77 s. Many cores need more parts.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
if(cores LESS_EQUAL 4)
  set(batch 30)
else()
  set(batch 10)
endif()
set(TESSERA_UNITY_BATCH ${batch} CACHE STRING "With TESSERA_UNITY: sources that are compiled as one")

# GCC collects garbage less often, which saves a tenth of the time for some hundred MB of memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("SHELL:--param ggc-min-heapsize=1048576")
endif()

# Warnings for first-party code, applied per target: see tessera_library and its siblings.
set(TESSERA_WARNINGS -Wall -Wextra -Wpedantic -Werror=switch)  # a switch over an enum is exhaustive
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TESSERA_WARNINGS -Wno-restrict)  # GCC 12 cries wolf inside std::string (PR 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # And GCC 13 inside std::copy of torch's sizes.
  list(APPEND TESSERA_WARNINGS -Wno-array-bounds -Wno-stringop-overflow)
endif()
if(TESSERA_SANITIZE)
  list(APPEND TESSERA_WARNINGS -Wno-maybe-uninitialized)  # GCC 12 inside std::regex
endif()
if(TESSERA_UNITY)
  list(APPEND TESSERA_WARNINGS -Wno-subobject-linkage)  # meant for headers; here sources are included
endif()
if(TESSERA_WERROR)
  list(APPEND TESSERA_WARNINGS -Werror)
endif()
