# Compiles the kernels in tessera/kernels/cuda with nvcc. It is called directly to make object files:
# CMake's CUDA language needs a complete toolkit and would make it a requirement for every build.
#   TESSERA_NVCC                 path of nvcc, or OFF; empty: search for it
#   TESSERA_CUDA_ARCHITECTURES   80, 90, …: machine code for each, and PTX of the last; empty: the
#                                GPUs of this machine, or 80 if it has none. Newer GPUs compile
#                                the PTX when a program first runs on them. Packages have several:
#                                scripts/package.sh
# Defines TESSERA_CUDA_KERNELS (TRUE if they can be compiled), TESSERA_CUDA_CODE (the architectures;
# empty without kernels), TESSERA_CUDART (the static runtime), TESSERA_CUDA_INCLUDE, and
# tessera_cuda_sources.
set(TESSERA_NVCC "" CACHE STRING "nvcc for the CUDA kernels; empty: search for it; OFF: no CUDA kernels")
set(TESSERA_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures to compile kernels for; empty: this machine's")
set(architectures "${TESSERA_CUDA_ARCHITECTURES}")
if(architectures STREQUAL "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE architectures RESULT_VARIABLE status ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" architectures "${architectures}")
  string(REPLACE "." "" architectures "${architectures}")
  list(REMOVE_DUPLICATES architectures)
  if(NOT status EQUAL 0 OR architectures STREQUAL "")
    set(architectures 80)
  endif()
endif()
set(TESSERA_CUDA_KERNELS FALSE)

# Sets `problem` to "" if `nvcc` can compile the kernels, otherwise to the reason.
function(tessera_try_nvcc nvcc problem)
  set(${problem} "" PARENT_SCOPE)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" text "${text}")
  set(version "${CMAKE_MATCH_1}")
  if(version STREQUAL "" OR version VERSION_LESS 12.0)
    set(${problem} "the version of ${nvcc} is \"${version}\"; must be 12.0 or newer" PARENT_SCOPE)
    return()
  endif()

  set(probe "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/nvcc-probe")
  file(WRITE "${probe}.cu" "#include <cuda_bf16.h>\n#include <string>\n"
                           "__global__ void fill(__nv_bfloat16* x) { *x = __float2bfloat16(1); }\n"
                           "void call(__nv_bfloat16* x) { fill<<<1, 1>>>(x); }\n")
  set(command "${nvcc}" ${TESSERA_NVCC_FLAGS})
  file(TIMESTAMP "${nvcc}" made)
  set(key "${command} ${version} ${made} ${CMAKE_CXX_COMPILER_VERSION}")
  if(NOT TESSERA_NVCC_PROBED STREQUAL "${key}")
    execute_process(COMMAND ${command} -c "${probe}.cu" -o "${probe}.o"
                    RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT status EQUAL 0)
      string(STRIP "${text}" text)
      string(REGEX REPLACE "[\n\r].*" "" text "${text}")
      set(${problem} "${nvcc} does not compile: ${text}" PARENT_SCOPE)
      return()
    endif()
    set(TESSERA_NVCC_PROBED "${key}" CACHE INTERNAL "nvcc that has compiled a test kernel")
  endif()

  # The toolkit that nvcc belongs to. nvcc may be a link or a script.
  execute_process(COMMAND ${command} --dryrun -c "${probe}.cu" -o "${probe}.o"
                  OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX MATCH "TOP=([^\n]+)" text "${text}")
  string(STRIP "${CMAKE_MATCH_1}" top)
  get_filename_component(top "${top}" REALPATH)
  file(GLOB targets "${top}/targets/*")
  unset(cudart)
  find_file(cudart NAMES libcudart_static.a NO_CACHE NO_DEFAULT_PATH PATHS "${top}" ${targets}
            PATH_SUFFIXES lib64 lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  unset(include)
  find_path(include NAMES cuda_runtime_api.h NO_CACHE NO_DEFAULT_PATH PATHS "${top}" ${targets}
            PATH_SUFFIXES include)
  if(NOT cudart OR NOT include)
    set(${problem} "${nvcc}: no libcudart_static.a or cuda_runtime_api.h in ${top}" PARENT_SCOPE)
    return()
  endif()
  set(TESSERA_NVCC_PROGRAM "${nvcc}" PARENT_SCOPE)
  set(TESSERA_NVCC_VERSION "${version}" PARENT_SCOPE)
  set(TESSERA_CUDART "${cudart}" PARENT_SCOPE)
  set(TESSERA_CUDA_INCLUDE "${include}" PARENT_SCOPE)
endfunction()

set(TESSERA_NVCC_FLAGS -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}")
foreach(architecture ${architectures})
  list(APPEND TESSERA_NVCC_FLAGS -gencode "arch=compute_${architecture},code=sm_${architecture}")
endforeach()
list(GET architectures -1 last)
list(APPEND TESSERA_NVCC_FLAGS -gencode "arch=compute_${last},code=compute_${last}")

set(note "")
if(TESSERA_SANITIZE)
  set(note "disabled under sanitizers, which do not support code from nvcc")
elseif(TESSERA_NVCC STREQUAL "OFF")
  set(note "disabled by TESSERA_NVCC=OFF")
else()
  file(GLOB venv_bins "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/bin")
  set(nvcc "${TESSERA_NVCC}")
  if(nvcc STREQUAL "")
    unset(nvcc)
    find_program(nvcc nvcc NO_CACHE PATHS ENV PATH NO_DEFAULT_PATH)
    find_program(nvcc nvcc NO_CACHE PATHS /usr/local/cuda/bin ${venv_bins} NO_DEFAULT_PATH)
  endif()
  if(NOT nvcc)
    set(note "disabled: nvcc was not found (scripts/setup.sh nvcc installs it into .venv; or set -DTESSERA_NVCC=path)")
  else()
    tessera_try_nvcc("${nvcc}" problem)
    if(NOT problem STREQUAL "" AND NOT "${TESSERA_NVCC}${TESSERA_CUDA_ARCHITECTURES}" STREQUAL "")
      message(FATAL_ERROR "TESSERA_NVCC, TESSERA_CUDA_ARCHITECTURES: ${problem}")
    elseif(NOT problem STREQUAL "")
      set(note "disabled: ${problem}")
    else()
      set(TESSERA_CUDA_KERNELS TRUE)
      list(JOIN architectures ", " note)
      set(note "nvcc ${TESSERA_NVCC_VERSION} (${nvcc}) for ${note}")
    endif()
  endif()
endif()
message(STATUS "CUDA kernels: ${note}")
set(code "")
if(TESSERA_CUDA_KERNELS)
  set(code "${architectures}")
endif()
set(TESSERA_CUDA_CODE "${code}" CACHE INTERNAL "GPU architectures that the kernels have code for")

# tessera_cuda_sources(<target> <stub> <source>…): adds sources of this folder, .cu for nvcc and .cpp
# for the C++ compiler; or the stub if there is no nvcc. Links the CUDA runtime statically, so that
# programs also start on machines without a GPU.
function(tessera_cuda_sources target stub)
  if(NOT TESSERA_CUDA_KERNELS)
    target_sources(${target} PRIVATE ${stub})
    return()
  endif()
  set(flags ${TESSERA_NVCC_FLAGS} -O3 -lineinfo --threads 3
            -Xcompiler -fPIC,-Wall,-Wextra "-I${PROJECT_SOURCE_DIR}")
  if(TESSERA_WERROR)
    list(APPEND flags -Werror all-warnings)
  endif()
  foreach(source ${ARGN})
    if(NOT source MATCHES "\\.cu$")
      target_sources(${target} PRIVATE ${source})
      continue()
    endif()
    set(name "${source}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    set(source "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${TESSERA_NVCC_PROGRAM}" ${flags}
              $<$<CONFIG:Release>:-DNDEBUG> -MD -MF "${object}.d" -c "${source}" -o "${object}"
      COMMENT "Compiling ${name} with nvcc" DEPENDS "${source}" DEPFILE "${object}.d" VERBATIM COMMAND_EXPAND_LISTS)
    target_sources(${target} PRIVATE "${object}")
  endforeach()
  # The runtime is installed next to the library, so that the prefix can be moved.
  target_link_libraries(
    ${target} PUBLIC "$<BUILD_INTERFACE:${TESSERA_CUDART}>"
                     "$<INSTALL_INTERFACE:$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/libcudart_static.a>"
                     ${CMAKE_DL_LIBS} rt pthread)
  install(FILES "${TESSERA_CUDART}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT training)
endfunction()
