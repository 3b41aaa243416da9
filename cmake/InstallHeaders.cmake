# Runs when the project is installed: TESSERA_DOORS, and the headers of TESSERA_SOURCE that they lead
# to, go to TESSERA_INCLUDE under the prefix. All others are the library's own affair.
cmake_minimum_required(VERSION 3.25)

function(tessera_collect_headers header list)
  if("${header}" IN_LIST ${list} OR NOT EXISTS "${TESSERA_SOURCE}/${header}")
    return()  # version.h is made, not kept
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
foreach(door ${TESSERA_DOORS})
  tessera_collect_headers("${door}" headers)
endforeach()
foreach(header ${headers})
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${TESSERA_SOURCE}/${header}"
       DESTINATION "${CMAKE_INSTALL_PREFIX}/${TESSERA_INCLUDE}/${folder}")
endforeach()
