# cmake --install: find_package(tessera) for others, from wherever the prefix is moved to.
#   find_package(tessera)                        tessera::tessera, needs LibTorch
#   find_package(tessera COMPONENTS planning)    tessera::planning, no torch anywhere
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TESSERA_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

# Two doors, and the headers that they lead to; all others are the library's own affair.
function(tessera_collect_headers header list)
  if("${header}" IN_LIST ${list} OR NOT EXISTS "${PROJECT_SOURCE_DIR}/${header}")
    return()  # version.h is made, not kept
  endif()
  list(APPEND ${list} "${header}")
  file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"tessera/")
  foreach(line ${lines})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" next "${line}")
    tessera_collect_headers("${next}" ${list})
  endforeach()
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()
set(public_headers "")
tessera_collect_headers(tessera/planning.h public_headers)
if(TESSERA_TORCH)
  tessera_collect_headers(tessera/tessera.h public_headers)
endif()
foreach(header ${public_headers})
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/${header}"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/generated/tessera/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tessera")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# One file of targets per component, so that loading one never asks for the needs of another.
install(TARGETS tessera_planning EXPORT tessera-planning
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tessera-planning NAMESPACE tessera:: FILE tesseraPlanningTargets.cmake
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
  install(TARGETS tessera tessera_process EXPORT tessera-torch ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT tessera-torch NAMESPACE tessera:: FILE tesseraTorchTargets.cmake
          DESTINATION "${TESSERA_CMAKE_DIR}")
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
          DESTINATION "${TESSERA_CMAKE_DIR}")
endif()

# The programs, where the cli room has declared them.
foreach(program tessera_cli tessera_torch_cli)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endforeach()

# Header-only packages that the torch-free rooms may link.
set(TESSERA_PLANNING_DEPENDENCIES "")
get_target_property(planning_links tessera_planning LINK_LIBRARIES)
foreach(package nlohmann_json tomlplusplus)
  if(planning_links MATCHES "(^|;)${package}::")  # not those for building alone
    string(APPEND TESSERA_PLANNING_DEPENDENCIES "find_dependency(${package})\n")
  endif()
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/generated/tesseraConfig.cmake"
  INSTALL_DESTINATION "${TESSERA_CMAKE_DIR}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/tesseraConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/tesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/generated/tesseraConfigVersion.cmake"
        DESTINATION "${TESSERA_CMAKE_DIR}")
