# Runs at install time: installs TESSERA_PUBLIC_HEADERS, and the headers of TESSERA_SOURCE that they
# include, to TESSERA_INCLUDE under the prefix. All other headers are private.
cmake_minimum_required(VERSION 3.25)

function(tessera_collect_headers header list)
  if("${header}" IN_LIST ${list} OR NOT EXISTS "${TESSERA_SOURCE}/${header}")
    return()  # version.h is generated
  endif()
  list(APPEND ${list} "${header}")
  file(STRINGS "${TESSERA_SOURCE}/${header}" lines REGEX "^#include \"tessera/")
  foreach(line ${lines})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" next "${line}")
    tessera_collect_headers("${next}" ${list})
  endforeach()
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()

set(headers "")
foreach(header ${TESSERA_PUBLIC_HEADERS})
  tessera_collect_headers("${header}" headers)
endforeach()
foreach(header ${headers})
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${TESSERA_SOURCE}/${header}"
       DESTINATION "${CMAKE_INSTALL_PREFIX}/${TESSERA_INCLUDE}/${folder}")
endforeach()
