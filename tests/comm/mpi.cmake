# Tests of the backends mpi and two-level: programs that mpirun starts.
if(NOT TESSERA_HAVE_MPI)
  return()
endif()

set(mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
                    MPIRUN=${MPIEXEC_EXECUTABLE})
set(mpi_here "${CMAKE_CURRENT_LIST_DIR}")
set(mpi_launch ${MPIEXEC_EXECUTABLE} --oversubscribe ${MPIEXEC_NUMPROC_FLAG})

# mpi_add_test(<name> <timeout in seconds> <command> …)
function(mpi_add_test name timeout)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} PROCESSORS 2 SKIP_RETURN_CODE 77
                       LABELS mpi ENVIRONMENT "${mpi_environment}")
endfunction()

foreach(program mpi_test mpi_hierarchical_test mpi_failure)
  tessera_executable(NAME ${program} FOLDER tests SOURCES ${mpi_here}/${program}.cpp
                     LINK tessera_fabric GTest::gtest)
endforeach()

foreach(ranks 1 2 3 4)
  mpi_add_test(mpi_test.${ranks} 240 ${mpi_launch} ${ranks} $<TARGET_FILE:mpi_test>)
endforeach()

# Hosts that are only pretended, as ranks and ranks per host.
foreach(layout "2;1" "2;2" "3;1" "4;2")
  list(GET layout 0 ranks)
  list(GET layout 1 per_host)
  mpi_add_test(mpi_hierarchical_test.${ranks}by${per_host} 240 ${mpi_launch} ${ranks}
               $<TARGET_FILE:mpi_hierarchical_test> --per-host ${per_host})
endforeach()

# Hosts that are network namespaces, joined by a link that counts.
mpi_add_test(mpi_two_hosts_test 240 ${mpi_here}/two_hosts.sh 2 --
             $<TARGET_FILE:mpi_hierarchical_test> --link "{link}")

# What the others must say when rank 1 goes wrong.
set(mpi_named "PeerError names 1")
set(mpi_failure ${mpi_here}/mpi_failure.sh $<TARGET_FILE:mpi_failure>)
foreach(backend mpi two-level)
  foreach(way kill exit stop throw leave)
    mpi_add_test(mpi_failure.${backend}.${way} 90 ${mpi_failure} ${backend} ${way} ${mpi_named})
  endforeach()
endforeach()
mpi_add_test(mpi_failure.mpi.message 90 ${mpi_failure} mpi message "UsageError.*7 × i64.*1 × f32")
mpi_add_test(mpi_failure.two_hosts.kill 90 ${mpi_failure} two-level kill ${mpi_named}
             ${mpi_here}/two_hosts.sh 2 --)
