# Finds the dependencies. Modules read TESSERA_HAVE_HWLOC and TESSERA_HAVE_CUDA to
# choose between a source and its stub.
if(EMSCRIPTEN)
  include(TesseraWasm)
  return()
endif()
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus QUIET)
# Google Highway, for the kernels. Headers only.
find_path(TESSERA_HIGHWAY hwy/highway.h DOC "Folder that contains hwy/highway.h")
if(NOT TESSERA_HIGHWAY)
  message(FATAL_ERROR "Highway 1.0.3 or newer is required: hwy/highway.h was not found. Install "
                      "it (Debian: libhwy-dev), or set -DTESSERA_HIGHWAY to the folder with its "
                      "headers.")
endif()
message(STATUS "Highway: ${TESSERA_HIGHWAY}")

# libcrypto, for the handshake between ranks and for hashes.
find_package(OpenSSL 3.0 QUIET)
if(NOT OPENSSL_FOUND)
  message(FATAL_ERROR "libcrypto of OpenSSL 3.0 or newer is required and was not found. Install "
                      "it (Debian: libssl-dev), or set -DOPENSSL_ROOT_DIR to its folder.")
endif()
set(TESSERA_HAVE_CRYPTO TRUE)
message(STATUS "libcrypto: ${OPENSSL_VERSION}")

set(TESSERA_HAVE_HWLOC FALSE)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
  if(HWLOC_FOUND)
    set(TESSERA_HAVE_HWLOC TRUE)
  endif()
endif()
if(TESSERA_HAVE_HWLOC)
  message(STATUS "hwloc: ${HWLOC_VERSION}")
else()
  message(STATUS "hwloc: not found (Debian: libhwloc-dev pkg-config)")
endif()

# For tokenizers and their input. Without PCRE2 only the byte tokenizer works; without zlib or zstd
# their compressed files are rejected. Without zlib there is no `tessera dashboard`.
foreach(library "PCRE2 libpcre2-8 libpcre2-dev" "ZLIB zlib zlib1g-dev" "ZSTD libzstd libzstd-dev")
  separate_arguments(names UNIX_COMMAND "${library}")
  list(GET names 0 name)
  list(GET names 1 module)
  list(GET names 2 package)
  set(TESSERA_HAVE_${name} FALSE)
  if(PkgConfig_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
    set(TESSERA_HAVE_${name} ${${name}_FOUND})
  endif()
  if(TESSERA_HAVE_${name})
    message(STATUS "${module}: ${${name}_VERSION}")
  else()
    message(STATUS "${module}: not found (Debian: ${package} pkg-config)")
  endif()
endforeach()

set(TESSERA_HAVE_CUDA FALSE)
if(TESSERA_TORCH)
  set(TORCH_DIR "$ENV{TORCH_DIR}" CACHE PATH "LibTorch, or site-packages/torch; empty: .venv")
  set(LibTorch_HINTS "${PROJECT_SOURCE_DIR}/.venv")
  find_package(LibTorch REQUIRED)
  set(TESSERA_HAVE_CUDA ${LibTorch_CUDA})
  message(STATUS "LibTorch: ${LibTorch_FULL_VERSION} in ${LibTorch_ROOT} (${LibTorch_CUDA_NOTE})")
else()
  message(STATUS "LibTorch: disabled by TESSERA_TORCH=OFF, torch-free targets only")
endif()

# {fmt}, for text. Headers only, and no header of this tree includes it. If none is installed, the copy
# among LibTorch's headers is used.
find_path(TESSERA_FMT fmt/format.h DOC "Folder that contains fmt/format.h")
if(TESSERA_FMT)
  message(STATUS "fmt: ${TESSERA_FMT}")
elseif(LibTorch_FOUND AND EXISTS "${LibTorch_ROOT}/include/fmt/format.h")
  set(TESSERA_FMT "${LibTorch_ROOT}/include")
  message(STATUS "fmt: not installed (Debian: libfmt-dev), using LibTorch's copy in ${TESSERA_FMT}")
else()
  message(FATAL_ERROR "fmt 9 or newer is required: fmt/format.h was not found. Install it "
                      "(Debian: libfmt-dev), or set -DTESSERA_FMT to the folder with its headers.")
endif()

if(TESSERA_TESTS)
  find_package(GTest REQUIRED)
endif()
