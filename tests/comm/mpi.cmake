# Tests of the backends mpi and two-level: programs that mpirun starts.
if(NOT TESSERA_HAVE_MPI)
  return()
endif()

set(mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)

# tessera_mpi_test(NAME <test> PROGRAM <target> RANKS n [TIMEOUT seconds] [ARGS …])
function(tessera_mpi_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PROGRAM;RANKS;TIMEOUT" "ARGS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 240)
  endif()
  add_test(NAME ${arg_NAME}
           COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS}
                   $<TARGET_FILE:${arg_PROGRAM}> ${arg_ARGS})
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS 2
                       ENVIRONMENT "${mpi_environment}")
endfunction()

tessera_executable(NAME mpi_test FOLDER tests SOURCES mpi_test.cpp LINK tessera_fabric GTest::gtest)
foreach(ranks 1 2 3 4)
  tessera_mpi_test(NAME mpi_test.${ranks} PROGRAM mpi_test RANKS ${ranks})
endforeach()
