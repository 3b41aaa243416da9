# C++ standard, flags, compiler cache and output folders.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# [Note: optimization] Compiling a source that uses torch at -O3 spends three quarters of the time
# optimizing, although such a source only calls kernels: -O1 compiles 1.7 times as fast. The planning
# library compiles twice as fast as at -O2; its simulations take the same time and its searches 6%
# longer. Libraries with compute loops set a higher level with tessera_optimize(). -g1 gives line
# numbers in backtraces at little cost in build time.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
# For libraries whose results must not depend on the machine: see [Note: portable math].
set(TESSERA_EXACT -ffp-contract=off)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # the sanitizer builds, with assertions

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# WebAssembly has its own protection of memory and stack.
if(EMSCRIPTEN)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
  add_compile_options(-fwasm-exceptions)
  add_link_options(-fwasm-exceptions)
  set(TESSERA_WARNINGS -Wall -Wextra)
  set(TESSERA_UNITY_BATCH 10)
  return()
endif()

# One position-independent mode for libraries and programs, so that they can share a
# precompiled header (GCC rejects one built with another mode).
add_compile_options(-fPIC)
# An overwritten return address, or a copy past the end of a buffer of known size, aborts the program.
# The cost is one check per kernel call of hundreds of microseconds, too little to measure. FORTIFY
# needs optimization, and interferes with the sanitizers, which find more.
add_compile_options(-fstack-protector-strong)
if(NOT TESSERA_SANITIZE)
  add_compile_options($<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
                      $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
# Bind all symbols at startup and make the relocation tables read-only afterwards.
add_link_options(-Wl,--as-needed -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
                 $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)

# Installed programs find libraries relative to themselves, so the prefix can be moved. Programs that
# link torch also get its folder: see tessera_executable.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

if(TESSERA_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TESSERA_FUZZERS: the compiler is ${CMAKE_CXX_COMPILER_ID}; must be clang with libFuzzer (Debian: clang-14 libclang-rt-14-dev)")
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

# ccache. It needs the sloppiness to cache objects that use a precompiled header; the base folder lets
# clones in different folders share results.
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
set(TESSERA_UNITY_BATCH ${batch} CACHE STRING "With TESSERA_UNITY: number of sources compiled as one")

# Makes GCC collect garbage less often, which saves a tenth of the time for some hundred MB of memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("SHELL:--param ggc-min-heapsize=1048576")
endif()

# Warnings for the code of this tree, applied per target: see tessera_library and tessera_executable.
set(TESSERA_WARNINGS -Wall -Wextra -Wpedantic -Werror=switch)  # a switch over an enum is exhaustive
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TESSERA_WARNINGS -Wno-restrict)  # GCC 12 has false positives in std::string (PR 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # GCC 13 has false positives in std::copy of torch's sizes.
  list(APPEND TESSERA_WARNINGS -Wno-array-bounds -Wno-stringop-overflow)
endif()
if(TESSERA_SANITIZE)
  list(APPEND TESSERA_WARNINGS -Wno-maybe-uninitialized)  # false positives of GCC 12 in std::regex
endif()
if(TESSERA_UNITY)
  list(APPEND TESSERA_WARNINGS -Wno-subobject-linkage)  # meant for headers; here sources are included
endif()
if(TESSERA_WERROR)
  list(APPEND TESSERA_WARNINGS -Werror)
endif()
