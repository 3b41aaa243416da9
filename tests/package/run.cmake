# Package test: installs, moves the prefix (an installed package must not depend on its location), then
# configures, builds and runs a separate project in ways that must work, and in ways that must fail with
# a helpful message. torch_dir is empty in a build without torch.
cmake_minimum_required(VERSION 3.25)
# all: ON compiles every example against the package.
set(work "${build}/package-test-${all}")
get_filename_component(originals "${consumer}/../../../examples" REALPATH)
file(REMOVE_RECURSE "${work}")

# A copy of the examples with one edited as a user might: other widths, more steps.
set(examples "${work}/examples")
file(COPY "${originals}" DESTINATION "${work}")
file(READ "${originals}/first_step.cpp" text)
foreach(edit "Linear(2, 64)|Linear(2, 48)" "Linear(64, 64)|Linear(48, 48)" "Linear(64, 1)|Linear(48, 1)"
             "step <= 400|step <= 1000")
  string(REPLACE "|" ";" edit "${edit}")
  list(GET edit 0 from)
  list(GET edit 1 to)
  string(FIND "${text}" "${from}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "first_step.cpp has no \"${from}\" to edit")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
endforeach()
file(WRITE "${examples}/first_step.cpp" "${text}")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " line)
    message(FATAL_ERROR "${line}\nended with ${status}:\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

# configure(<folder> <arguments…>): sets status and text.
function(configure folder)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=TORCH_DIR
      "${CMAKE_COMMAND}" -G "${generator}" -S "${consumer}" -B "${work}/${folder}"
      "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}"
      "-Dtessera_ROOT=${work}/moved" "-DEXAMPLES=${examples}" ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(status "${status}" PARENT_SCOPE)
  set(text "${text}" PARENT_SCOPE)
endfunction()

function(must_configure folder)
  configure(${folder} ${ARGN})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${folder} does not configure:\n${text}")
  endif()
endfunction()

function(must_fail folder words)
  configure(${folder} ${ARGN})
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if(status EQUAL 0 OR NOT text MATCHES "${words}")
    message(FATAL_ERROR "${folder}: configuring must fail with \"${words}\". The status is ${status}:\n${text}")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${build}" --prefix "${work}/installed")
file(RENAME "${work}/installed" "${work}/moved")
run("${python}" "${consumer}/../binaries_test.py" "${work}/moved/bin")

# No installed file may name the source tree.
file(GLOB configs "${work}/moved/lib*/cmake/tessera/*.cmake" "${work}/moved/lib/*/cmake/tessera/*.cmake")
if(NOT configs)
  message(FATAL_ERROR "no CMake package was installed")
endif()
get_filename_component(tree "${consumer}/../../.." REALPATH)
foreach(config ${configs})
  file(READ "${config}" text)
  string(FIND "${text}" "${tree}/" place)
  if(NOT place EQUAL -1)
    message(FATAL_ERROR "${config} names the source tree ${tree}")
  endif()
endforeach()

# The public headers and those they include are installed, and no private ones.
file(GLOB_RECURSE headers RELATIVE "${work}/moved/include" "${work}/moved/include/*.h")
list(LENGTH headers count)
if(NOT "tessera/planning.h" IN_LIST headers OR count GREATER 43 OR headers MATCHES "_impl\\.h")
  message(FATAL_ERROR "the ${count} installed headers must be the public headers and those they include, but are ${headers}")
endif()

# 1. Planning only: torch is neither searched for nor on the compile line.
must_configure(planning -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
file(READ "${work}/planning/compile_commands.json" text)
if(text MATCHES "[Tt]orch")
  message(FATAL_ERROR "the compile line of a planning program names torch:\n${text}")
endif()
run("${CMAKE_COMMAND}" --build "${work}/planning")
run("${work}/planning/planning")
message(STATUS "planning printed: ${text}")
run("${work}/planning/use_the_planner")
if(NOT text MATCHES "best of [0-9]+: dp")
  message(FATAL_ERROR "use_the_planner printed: ${text}")
endif()

must_fail(unknown "no component \"optimism\"" -DCOMPONENT=optimism)
if(NOT torch_dir)
  must_fail(absent "no component \"tessera\"" -DCOMPONENT=tessera)
  return()
endif()

# 2. The installed programs in the moved prefix, without LD_LIBRARY_PATH.
foreach(arguments "--version" "doctor" "explain sync --ranks 2 --width 8 --layers 1 --rounds 1"
                  "run -n 2 -- true" "train --ranks 2 --steps 1 --micro-batch 1")
  separate_arguments(arguments UNIX_COMMAND "${arguments}")
  run("${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH "${work}/moved/bin/tessera" ${arguments})
endforeach()

# 3. With torch.
must_fail(static "without the shared libstdc" -DCOMPONENT=tessera "-DTORCH_DIR=${torch_dir}"
            "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++")
must_fail(lost "no LibTorch found.*Set TORCH_DIR" -DCOMPONENT=tessera)
must_fail(elsewhere "TORCH_DIR is \"/nowhere\"" -DCOMPONENT=tessera -DTORCH_DIR=/nowhere)
# The shared libraries that it was built with are required, and the message names their package. Their
# development files are not required.
file(GLOB_RECURSE config "${work}/moved/*/tesseraConfig.cmake")
file(READ "${config}" text)
if(text MATCHES "if\\(\"(TRUE|1)\"\\)\n *_tessera_shared")
  must_fail(bare "\\.so.* was not found.*Debian: [a-z]" -DCOMPONENT=tessera "-DTORCH_DIR=${torch_dir}"
              -DCMAKE_FIND_ROOT_PATH=/nowhere -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY)
endif()
must_configure(torch -DCOMPONENT=tessera "-DTORCH_DIR=${torch_dir}" "-DALL_EXAMPLES=${all}"
               -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON)
run("${CMAKE_COMMAND}" --build "${work}/torch")
run("${work}/torch/training")
message(STATUS "training printed: ${text}")
# tests/examples checks the output of all examples, so a few are enough here.
run("${python}" "${consumer}/../newcomer.py" "${work}/moved/bin/tessera" "${work}/torch/first_step"
    "${work}/torch/save_and_load")
message(STATUS "the newcomer: ${text}")
file(REMOVE_RECURSE "${work}")
