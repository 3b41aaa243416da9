# cmake --install: find_package(tessera) for others, from wherever the prefix is moved to.
#   find_package(tessera)                        tessera::tessera, needs LibTorch
#   find_package(tessera COMPONENTS planning)    tessera::planning, no torch anywhere
# Two components for cpack (cmake/TesseraPackage.cmake): planner, the programs that need no torch, and
# training, all the rest.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME training)
set(TESSERA_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

# The headers are those that the doors lead to when it is installed.
set(doors tessera/planning.h)
if(TESSERA_TORCH)
  list(APPEND doors tessera/tessera.h)
endif()
install(CODE "set(TESSERA_SOURCE \"${PROJECT_SOURCE_DIR}\")
set(TESSERA_DOORS \"${doors}\")
set(TESSERA_INCLUDE \"${CMAKE_INSTALL_INCLUDEDIR}\")" COMPONENT training)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake" COMPONENT training)
install(FILES "${PROJECT_BINARY_DIR}/generated/tessera/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tessera")
foreach(component planner training)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
          DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ${component})
endforeach()

# One file of targets per component, so that loading one never asks for the needs of another.
install(TARGETS tessera_planning EXPORT tessera-planning
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-planning NAMESPACE tessera:: FILE tesseraPlanningTargets.cmake
        DESTINATION "${TESSERA_CMAKE_DIR}")
install(TARGETS tessera_crypto EXPORT tessera-crypto
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-crypto NAMESPACE tessera:: FILE tesseraCryptoTargets.cmake
        DESTINATION "${TESSERA_CMAKE_DIR}")
install(TARGETS tessera_fabric EXPORT tessera-fabric
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-fabric NAMESPACE tessera:: FILE tesseraFabricTargets.cmake
        DESTINATION "${TESSERA_CMAKE_DIR}")
install(TARGETS tessera_kernels EXPORT tessera-kernels
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-kernels NAMESPACE tessera:: FILE tesseraKernelsTargets.cmake
        DESTINATION "${TESSERA_CMAKE_DIR}")
install(TARGETS tessera_checkpoint EXPORT tessera-checkpoint
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-checkpoint NAMESPACE tessera:: FILE tesseraCheckpointTargets.cmake
        DESTINATION "${TESSERA_CMAKE_DIR}")
if(TESSERA_TORCH)
  install(TARGETS tessera tessera_process tessera_data tessera_huggingface EXPORT tessera-torch ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT tessera-torch NAMESPACE tessera:: FILE tesseraTorchTargets.cmake
          DESTINATION "${TESSERA_CMAKE_DIR}")
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
          DESTINATION "${TESSERA_CMAKE_DIR}")
endif()

# The programs, where the cli room has declared them. They are linked with the RUNPATH that they are
# installed with: one that CMake has to change later ends with an empty entry, which the loader reads
# as the current folder.
foreach(program tessera_cli tessera_dashboard_cli tessera_torch_cli)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
                                                INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()
foreach(program tessera_cli tessera_dashboard_cli)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT planner)
  endif()
endforeach()
if(TARGET tessera_torch_cli)
  install(TARGETS tessera_torch_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

# What the program says of itself: completion, manual pages and one page. Not where another machine's
# program cannot be run.
find_program(TESSERA_PYTHON NAMES python3)
if(TARGET tessera_cli AND TESSERA_PYTHON AND NOT CMAKE_CROSSCOMPILING)
  install(CODE "set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
foreach(page \"man;${CMAKE_INSTALL_MANDIR}/man1\" \"markdown;${CMAKE_INSTALL_DOCDIR}/cli.md\")
  list(GET page 0 kind)
  list(GET page 1 place)
  if(NOT IS_ABSOLUTE \"\${place}\")
    set(place \"\${prefix}/\${place}\")
  endif()
  execute_process(COMMAND \"${TESSERA_PYTHON}\" \"${PROJECT_SOURCE_DIR}/scripts/cli_reference.py\"
                          \"\${kind}\" \"$<TARGET_FILE:tessera_cli>\" \"\${place}\"
                  ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set(place \"\${prefix}/${CMAKE_INSTALL_DATADIR}/bash-completion/completions\")
file(MAKE_DIRECTORY \"\${place}\")
execute_process(COMMAND \"$<TARGET_FILE:tessera_cli>\" completion bash
                OUTPUT_FILE \"\${place}/tessera\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT planner)
endif()

# Header-only packages that the torch-free rooms may link.
set(TESSERA_PLANNING_DEPENDENCIES "")
get_target_property(planning_links tessera_planning LINK_LIBRARIES)
foreach(package nlohmann_json tomlplusplus)
  if(planning_links MATCHES "(^|;)${package}::")  # not those for building alone
    string(APPEND TESSERA_PLANNING_DEPENDENCIES "find_dependency(${package})\n")
  endif()
endforeach()

# tessera_describe_shared(<name> <package> <library>…): sets TESSERA_SHARED_<name> to the arguments of
# _tessera_shared() in tesseraConfig.cmake: the Debian package of the shared libraries, and the names by
# which programs load them. <package> serves where dpkg does not know them.
function(tessera_describe_shared name package)
  set(sonames "")
  foreach(library ${ARGN})
    get_filename_component(file "${library}" REALPATH)
    execute_process(COMMAND "${CMAKE_READELF}" -d "${file}" OUTPUT_VARIABLE dynamic ERROR_QUIET)
    get_filename_component(soname "${library}" NAME)
    if(dynamic MATCHES "SONAME[^[]*\\[([^]]+)\\]")
      set(soname "${CMAKE_MATCH_1}")
    endif()
    list(APPEND sonames "${soname}")
    get_filename_component(file "${file}" NAME)
    execute_process(COMMAND dpkg-query -S "*/${file}" OUTPUT_VARIABLE owner ERROR_QUIET)
    if(owner MATCHES "^([^:, ]+)[:,]")
      set(package "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  list(JOIN sonames " " sonames)
  set(TESSERA_SHARED_${name} "${name} ${package} ${sonames}" PARENT_SCOPE)
endfunction()
set(mpi_libraries ${MPI_CXX_LIBRARIES})
list(FILTER mpi_libraries EXCLUDE REGEX "mpi_cxx")  # we use the C interface only
tessera_describe_shared(CRYPTO libssl3 ${OPENSSL_CRYPTO_LIBRARY})
tessera_describe_shared(MPI libopenmpi3 ${mpi_libraries})
tessera_describe_shared(HWLOC libhwloc15 ${HWLOC_LINK_LIBRARIES})
tessera_describe_shared(PCRE2 libpcre2-8-0 ${PCRE2_LINK_LIBRARIES})
tessera_describe_shared(ZLIB zlib1g ${ZLIB_LINK_LIBRARIES})
tessera_describe_shared(ZSTD libzstd1 ${ZSTD_LINK_LIBRARIES})

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/generated/tesseraConfig.cmake"
  INSTALL_DESTINATION "${TESSERA_CMAKE_DIR}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/tesseraConfigVersion.cmake"
                                 COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/tesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/generated/tesseraConfigVersion.cmake"
        DESTINATION "${TESSERA_CMAKE_DIR}")
