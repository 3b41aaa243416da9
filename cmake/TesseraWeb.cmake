# The page of `tessera dashboard`: the target tessera_web builds TESSERA_WEB_FILES in TESSERA_WEB_DIR
# from web/. Without Node.js the files exist too, and index.html states what is missing: see
# scripts/web.sh.
include_guard(GLOBAL)

set(TESSERA_WEB_DIR "${PROJECT_BINARY_DIR}/web")
set(TESSERA_WEB_FILES index.html page.js others.js page.css icon.svg inter.woff2)
list(TRANSFORM TESSERA_WEB_FILES PREPEND "${TESSERA_WEB_DIR}/" OUTPUT_VARIABLE TESSERA_WEB_OUTPUTS)

file(GLOB_RECURSE tessera_web_sources CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/web/src/*" "${PROJECT_SOURCE_DIR}/web/public/*")
foreach(name index.html package.json package-lock.json vite.config.js tsconfig.json)
  list(APPEND tessera_web_sources "${PROJECT_SOURCE_DIR}/web/${name}")
endforeach()
add_custom_command(
  OUTPUT ${TESSERA_WEB_OUTPUTS}
  COMMAND "${PROJECT_SOURCE_DIR}/scripts/web.sh" "${TESSERA_WEB_DIR}"
  DEPENDS ${tessera_web_sources} "${PROJECT_SOURCE_DIR}/scripts/web.sh"
  COMMENT "Building the page"
  VERBATIM)
add_custom_target(tessera_web DEPENDS ${TESSERA_WEB_OUTPUTS})
