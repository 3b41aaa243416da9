# cpack: two Debian packages and a tarball (scripts/package.sh, docs/install.md).
#   tessera-planner   plan, simulate, explain, dashboard, data, checkpoint, run: needs no torch
#   tessera           the trainer, the library and its headers; requires tessera-planner. Debian has no
#                     LibTorch, so it is expected in ../lib/tessera/torch, a link that the user creates
set(TESSERA_PACKAGE_CONTACT "Tessera maintainers <tessera@localhost>"
    CACHE STRING "Maintainer of the Debian packages")
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR "The Tessera authors")
set(CPACK_PACKAGE_CONTACT "${TESSERA_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training for LibTorch")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME
    "tessera-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_COMPONENTS_ALL planner)
if(TESSERA_TORCH)
  list(APPEND CPACK_COMPONENTS_ALL training)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PLANNER_PACKAGE_NAME tessera-planner)
set(CPACK_DEBIAN_TRAINING_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_TRAINING_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TRAINING_PACKAGE_DEPENDS "tessera-planner (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_PLANNER_DESCRIPTION "Planner, simulator and dashboard.
Predicts memory, traffic and time of data, tensor and pipeline parallel
training with ZeRO, explains the formulas, and serves calculators.
Needs no LibTorch; the trainer and the library are in the package tessera.")
set(CPACK_COMPONENT_TRAINING_DESCRIPTION "Trainer and C++ library.
Data, tensor and pipeline parallelism with ZeRO on any LibTorch module: the
static library, its headers and CMake package, and the trainer.
LibTorch is not in Debian. This package was built with ${LibTorch_VERSION} and needs
the same minor version in /usr/lib/tessera/torch, which may be a link.")
# LibTorch is not in any package. This lets dpkg-shlibdeps find it without a warning.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${LibTorch_LIBRARY_DIR}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TESSERA_TORCH_MINOR "${LibTorch_VERSION}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/postinst.in" "${PROJECT_BINARY_DIR}/package/postinst"
               @ONLY FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
               WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_TRAINING_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/package/postinst")

set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)  # of the tarball
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/PackageGenerator.cmake")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/PackageFinish.cmake")
set(CPACK_TESSERA_CHANGELOG "${PROJECT_SOURCE_DIR}/CHANGELOG.md")
include(CPack)
