# Finds LibTorch without its CMake package, which rejects a CUDA build of torch on a machine without a
# CUDA toolkit. Tessera needs only headers and shared libraries.
#
# Searches, in this order,
#   TORCH_DIR (CMake variable, then environment): a LibTorch folder, or a Python
#     site-packages/torch folder, or a virtual environment that contains one
#   LibTorch_HINTS: a list of the same kind, set by the caller
# and defines
#   LibTorch::LibTorch       imported target: headers, ABI, libraries
#   LibTorch_FOUND, LibTorch_VERSION ("2.13.0"), LibTorch_FULL_VERSION ("2.13.0+cpu"),
#   LibTorch_ROOT, LibTorch_LIBRARY_DIR, LibTorch_CUDA (TRUE if the CUDA kernels are
#   linked), LibTorch_CUDA_NOTE (the reason)
# Nothing is cached: a new TORCH_DIR takes effect at the next configure.
#
# Supported versions: from LibTorch_MIN_VERSION up to but excluding LibTorch_END_VERSION.
set(LibTorch_MIN_VERSION 2.11)
set(LibTorch_END_VERSION 2.14)
set(_libtorch_supported "LibTorch 2.11, 2.12 or 2.13")

# Sets `out` to the folder with include/ and lib/ in or below `dir`, or to "".
function(_libtorch_normalize dir out)
  file(GLOB in_venv "${dir}/lib/python3*/site-packages/torch")
  foreach(candidate "${dir}" ${in_venv} "${dir}/torch")
    if(EXISTS "${candidate}/lib/libtorch_cpu.so" AND
       EXISTS "${candidate}/include/torch/csrc/api/include/torch/torch.h")
      get_filename_component(candidate "${candidate}" REALPATH)
      set(${out} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# The version is in version.py (Python packages) or build-version (LibTorch archives), and always in a
# header whose location varies. The first two include the variant ("+cpu", "+cu130").
function(_libtorch_read_version root out)
  set(version "")
  if(EXISTS "${root}/version.py")
    file(STRINGS "${root}/version.py" line REGEX "^__version__" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+\\.[0-9]+[^'\"]*" version "${line}")
  elseif(EXISTS "${root}/build-version")
    file(STRINGS "${root}/build-version" version LIMIT_COUNT 1)
  endif()
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h
                 torch/version.h)
    if(version STREQUAL "" AND EXISTS "${root}/include/${header}")
      set(parts "")
      foreach(part MAJOR MINOR PATCH)
        file(STRINGS "${root}/include/${header}" line REGEX "define TORCH_VERSION_${part} +[0-9]")
        if(line MATCHES "([0-9]+)")
          list(APPEND parts "${CMAKE_MATCH_1}")
        endif()
      endforeach()
      list(JOIN parts "." version)
    endif()
  endforeach()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Sets `out` to the list of dependencies of `library` that the loader cannot find.
function(_libtorch_missing_dependencies library out)
  find_program(_libtorch_ldd ldd)
  mark_as_advanced(_libtorch_ldd)
  set(missing "")
  if(_libtorch_ldd)
    execute_process(COMMAND "${_libtorch_ldd}" "${library}" OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCHALL "[^\n\t ]+ => not found" lines "${text}")
    foreach(line ${lines})
      string(REPLACE " => not found" "" name "${line}")
      list(APPEND missing "${name}")
    endforeach()
    list(REMOVE_DUPLICATES missing)
  endif()
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# 1. The folder.
set(LibTorch_ROOT "")
set(_libtorch_problem "")
if(DEFINED TORCH_DIR)
  set(_libtorch_given "${TORCH_DIR}")
else()
  set(_libtorch_given "$ENV{TORCH_DIR}")
endif()
if(NOT _libtorch_given STREQUAL "")
  _libtorch_normalize("${_libtorch_given}" LibTorch_ROOT)
  if(LibTorch_ROOT STREQUAL "")
    set(_libtorch_problem
        "TORCH_DIR is \"${_libtorch_given}\", which has no lib/libtorch_cpu.so with headers in include/. It must be a LibTorch folder or a Python site-packages/torch folder of ${_libtorch_supported}.")
  endif()
else()
  foreach(_libtorch_hint ${LibTorch_HINTS})
    if(LibTorch_ROOT STREQUAL "")
      _libtorch_normalize("${_libtorch_hint}" LibTorch_ROOT)
    endif()
  endforeach()
  if(LibTorch_ROOT STREQUAL "")
    set(_libtorch_problem
        "no LibTorch found. ${_libtorch_supported} is required. Set TORCH_DIR to a LibTorch folder or a Python site-packages/torch folder.")
  endif()
endif()

# 2. The version.
if(_libtorch_problem STREQUAL "")
  _libtorch_read_version("${LibTorch_ROOT}" LibTorch_FULL_VERSION)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+(\\.[0-9]+)?" LibTorch_VERSION "${LibTorch_FULL_VERSION}")
  if(LibTorch_VERSION STREQUAL "")
    set(_libtorch_problem
        "cannot determine the version of the LibTorch in ${LibTorch_ROOT} (no version.py, build-version or version.h). ${_libtorch_supported} is required.")
  elseif(LibTorch_VERSION VERSION_LESS LibTorch_MIN_VERSION OR
         NOT LibTorch_VERSION VERSION_LESS LibTorch_END_VERSION)
    set(_libtorch_problem
        "found LibTorch ${LibTorch_FULL_VERSION} in ${LibTorch_ROOT}, but ${_libtorch_supported} is required. Set TORCH_DIR to one of these.")
  endif()
endif()

# 3. Dependencies.
if(_libtorch_problem STREQUAL "")
  set(LibTorch_LIBRARY_DIR "${LibTorch_ROOT}/lib")
  _libtorch_missing_dependencies("${LibTorch_LIBRARY_DIR}/libtorch_cpu.so" _libtorch_missing)
  if(_libtorch_missing)
    list(JOIN _libtorch_missing ", " _libtorch_missing)
    set(_libtorch_problem
        "the LibTorch ${LibTorch_FULL_VERSION} in ${LibTorch_ROOT} cannot be loaded: libtorch_cpu.so needs ${_libtorch_missing}. Install its dependencies (for a Python package: pip install torch without --no-deps).")
  endif()
endif()

# 4. The torch libraries load the shared libstdc++.so. A program with a second, static copy has two
#    instances of its global state (locales, exceptions, once-flags) and crashes in unexpected places.
if(_libtorch_problem STREQUAL "" AND CMAKE_CXX_COMPILER_LOADED)
  set(_libtorch_probe "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/libtorch-probe")
  file(WRITE "${_libtorch_probe}.cpp" "#include <iostream>\nint main() { std::cout << 1; }\n")
  try_compile(_libtorch_links "${_libtorch_probe}" "${_libtorch_probe}.cpp"
              LINK_LIBRARIES ${CMAKE_EXE_LINKER_FLAGS} COPY_FILE "${_libtorch_probe}.out")
  if(_libtorch_links)
    file(STRINGS "${_libtorch_probe}.out" _libtorch_shared REGEX "libstdc\\+\\+\\.so" LIMIT_COUNT 1)
    if(NOT _libtorch_shared)
      set(_libtorch_problem
          "${CMAKE_CXX_COMPILER} links programs without the shared libstdc++.so.6, which LibTorch uses (a compiler or flags with -static-libstdc++, or another standard library). Two C++ runtimes in one program crash it. Use g++ or clang++ with the shared libstdc++, and no -static or -static-libstdc++ in CMAKE_CXX_FLAGS or CMAKE_EXE_LINKER_FLAGS.")
    endif()
  endif()
endif()

# 5. CUDA kernels register themselves when libtorch_cuda.so is loaded; no symbol of it is referenced.
#    A CUDA build whose CUDA libraries are missing is used as a CPU build.
set(LibTorch_CUDA FALSE)
if(_libtorch_problem STREQUAL "")
  if(NOT EXISTS "${LibTorch_LIBRARY_DIR}/libtorch_cuda.so")
    set(LibTorch_CUDA_NOTE "CPU build of torch")
  else()
    _libtorch_missing_dependencies("${LibTorch_LIBRARY_DIR}/libtorch_cuda.so" _libtorch_missing)
    if(_libtorch_missing)
      list(JOIN _libtorch_missing ", " _libtorch_missing)
      set(LibTorch_CUDA_NOTE "CUDA build of torch used as a CPU build: ${_libtorch_missing} not found")
    else()
      set(LibTorch_CUDA TRUE)
      set(LibTorch_CUDA_NOTE "CUDA build of torch, kernels linked")
    endif()
  endif()
endif()

include(FindPackageHandleStandardArgs)
if(NOT _libtorch_problem STREQUAL "")
  set(LibTorch_ROOT "")
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_problem}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # The mangling of std::string symbols in libc10.so, a small library, shows the ABI.
  file(STRINGS "${LibTorch_LIBRARY_DIR}/libc10.so" _libtorch_abi REGEX "__cxx11" LIMIT_COUNT 1)
  if(_libtorch_abi)
    set(_libtorch_abi 1)
  else()
    set(_libtorch_abi 0)
  endif()

  set(_libtorch_link "")
  foreach(_libtorch_part c10 torch_cpu)
    add_library(LibTorch::${_libtorch_part} SHARED IMPORTED)
    set_target_properties(LibTorch::${_libtorch_part} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_LIBRARY_DIR}/lib${_libtorch_part}.so"
      IMPORTED_SONAME "lib${_libtorch_part}.so")
    list(APPEND _libtorch_link LibTorch::${_libtorch_part})
  endforeach()
  if(LibTorch_CUDA)
    # One item, because CMake removes repeated flags from a list.
    list(APPEND _libtorch_link
         "-Wl,--push-state,--no-as-needed,\"${LibTorch_LIBRARY_DIR}/libc10_cuda.so\",\"${LibTorch_LIBRARY_DIR}/libtorch_cuda.so\",--pop-state")
  endif()

  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
      "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${_libtorch_abi}"
    INTERFACE_LINK_LIBRARIES "${_libtorch_link}"
    # The loader resolves the dependencies of the torch libraries; the linker need not find them.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
