# tessera_embedded_pages(<variable>): the path of a source that holds the files of the page, gzipped:
# those that TesseraWeb.cmake makes.
function(tessera_embedded_pages variable)
  include(TesseraWeb)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/embedded_pages.cpp")
  set(script "${PROJECT_SOURCE_DIR}/cmake/embed_pages.py")
  find_program(TESSERA_PYTHON python3)
  add_custom_command(
    OUTPUT "${source}"
    COMMAND "${TESSERA_PYTHON}" "${script}" "${TESSERA_WEB_DIR}" "${source}" ${TESSERA_WEB_FILES}
    COMMENT "Putting the page into the program" DEPENDS "${script}" ${TESSERA_WEB_OUTPUTS} VERBATIM)
  set(${variable} "${source}" PARENT_SCOPE)
endfunction()
