# Run by cpack on the installed files before packing: removes paths of the build machine, and adds the
# files that Debian's policy requires.
file(GLOB_RECURSE programs "${CPACK_TEMPORARY_DIRECTORY}/tessera*")
list(FILTER programs INCLUDE REGEX "/bin/tessera[a-z-]*$")
foreach(program ${programs})
  set(runpath "$ORIGIN/../lib")
  if(program MATCHES "/tessera-torch$")
    string(APPEND runpath ":$ORIGIN/../lib/tessera/torch/lib")
  endif()
  file(RPATH_SET FILE "${program}" NEW_RPATH "${runpath}")
endforeach()
file(GLOB_RECURSE libraries "${CPACK_TEMPORARY_DIRECTORY}/*.a")
if(libraries)
  execute_process(COMMAND strip --strip-debug --enable-deterministic-archives ${libraries}
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

file(STRINGS "${CPACK_TESSERA_CHANGELOG}" heading REGEX "^## ${CPACK_PACKAGE_VERSION} \\(" LIMIT_COUNT 1)
if(NOT heading MATCHES "\\(([0-9]+-[0-9]+-[0-9]+)\\)")
  message(FATAL_ERROR "CHANGELOG.md: the heading is \"${heading}\"; must be \"## ${CPACK_PACKAGE_VERSION} (YYYY-MM-DD)\"")
endif()
execute_process(COMMAND date -u -R -d "${CMAKE_MATCH_1}" OUTPUT_VARIABLE date
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER "${component}" upper)
  set(name "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  set(share "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share")
  if(NOT name STREQUAL "tessera")  # the documentation folder is named after the package
    file(RENAME "${share}/doc/tessera" "${share}/doc/${name}")
  endif()
  set(docs "${share}/doc/${name}")
  file(READ "${docs}/LICENSE" license)
  file(WRITE "${docs}/copyright" "All files of Tessera:\n\n${license}")
  file(REMOVE "${docs}/LICENSE")
  file(WRITE "${docs}/changelog" "${name} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * See CHANGELOG.md for the changes in this version.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB manuals "${share}/man/man1/*.1")
  execute_process(COMMAND gzip -9nf "${docs}/changelog" ${manuals} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
