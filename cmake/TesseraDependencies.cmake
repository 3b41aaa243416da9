# Everything found outside the tree. Rooms read TESSERA_HAVE_MPI, TESSERA_HAVE_HWLOC and
# TESSERA_HAVE_CUDA to choose between a source and its stand-in.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus QUIET)
# Google Highway, for the kernels: headers only, nothing of it is linked.
find_path(TESSERA_HIGHWAY hwy/highway.h DOC "The folder that has hwy/highway.h")
if(NOT TESSERA_HIGHWAY)
  message(FATAL_ERROR "Highway 1.0.3 or newer is needed: no hwy/highway.h was found. Install it "
                      "(Debian: libhwy-dev), or name its folder with -DTESSERA_HIGHWAY=folder; its "
                      "headers are enough.")
endif()
message(STATUS "Highway: ${TESSERA_HIGHWAY}")

# libcrypto, for the handshake between ranks and for hashes.
find_package(OpenSSL 3.0 QUIET)
if(NOT OPENSSL_FOUND)
  message(FATAL_ERROR "libcrypto of OpenSSL 3.0 or newer is needed and was not found. Install it "
                      "(Debian: libssl-dev), or name its folder with -DOPENSSL_ROOT_DIR=folder.")
endif()
set(TESSERA_HAVE_CRYPTO TRUE)
message(STATUS "libcrypto: ${OPENSSL_VERSION}")

set(TESSERA_HAVE_MPI FALSE)
if(TESSERA_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # we use the C interface only
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(TESSERA_HAVE_MPI TRUE)
    message(STATUS "MPI: ${MPI_CXX_VERSION} (${MPI_CXX_COMPILER})")
  else()
    message(STATUS "MPI: not found, so no mpi backend (Debian: libopenmpi-dev openmpi-bin)")
  endif()
else()
  message(STATUS "MPI: switched off by TESSERA_MPI=OFF, so no mpi backend")
endif()

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

# For tokenizers and their input. Without PCRE2 only bytes are tokens; without the others compressed
# files are refused. Without zlib there is no `tessera dashboard`.
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
  message(STATUS "LibTorch: switched off by TESSERA_TORCH=OFF, torch-free targets only")
endif()

# {fmt}, for text: headers only, nothing of it is linked, and no header of ours includes it. LibTorch
# has one among its own headers, which serves where none is installed.
find_path(TESSERA_FMT fmt/format.h DOC "The folder that has fmt/format.h")
if(TESSERA_FMT)
  message(STATUS "fmt: ${TESSERA_FMT}")
elseif(LibTorch_FOUND AND EXISTS "${LibTorch_ROOT}/include/fmt/format.h")
  set(TESSERA_FMT "${LibTorch_ROOT}/include")
  message(STATUS "fmt: none installed (Debian: libfmt-dev), so LibTorch's own in ${TESSERA_FMT}")
else()
  message(FATAL_ERROR "fmt 9 or newer is needed: no fmt/format.h was found. Install it (Debian: "
                      "libfmt-dev), or name its folder with -DTESSERA_FMT=folder; its headers are "
                      "enough.")
endif()

if(TESSERA_TESTS)
  find_package(GTest REQUIRED)
endif()
