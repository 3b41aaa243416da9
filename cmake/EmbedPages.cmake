# tessera_embedded_pages(<variable>): sets <variable> to the path of a source with the gzipped files of
# the page, which TesseraWeb.cmake builds.
function(tessera_embedded_pages variable)
  include(TesseraWeb)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/embedded_pages.cpp")
  set(script "${PROJECT_SOURCE_DIR}/cmake/embed_pages.py")
  find_program(TESSERA_PYTHON python3)
  add_custom_command(
    OUTPUT "${source}"
    COMMAND "${TESSERA_PYTHON}" "${script}" "${TESSERA_WEB_DIR}" "${source}" ${TESSERA_WEB_FILES}
    COMMENT "Embedding the page" DEPENDS "${script}" ${TESSERA_WEB_OUTPUTS} VERBATIM)
  set(${variable} "${source}" PARENT_SCOPE)
endfunction()
