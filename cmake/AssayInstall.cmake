# cmake --install: the program, the public headers, the headers that kernels of plug-ins include, suites, fixtures, bench
# tables, documents, man pages and completions. Two ways to build a plug-in come with it (docs/adding.md):
#   find_package(assay)   gives assay::plugin and assay_add_simt_plugin(NAME SOURCE.cu)
#   pkg-config assay      gives the include folders; the variable simt_cflags has the flags of the CPU
# conformance/CMakeLists.txt installs man pages and completions, which target assay_pages has the runner write.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(assay_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/assay)
install(TARGETS assay RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/assay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/gpu/simt/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay/simt FILES_MATCHING PATTERN "*.h")
# Kernels include "gpu/lib/launch.h", in this tree and outside alike.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/gpu/lib DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay/kernel/gpu
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/conformance/suites ${PROJECT_SOURCE_DIR}/conformance/binds
  ${PROJECT_SOURCE_DIR}/conformance/lists DESTINATION ${CMAKE_INSTALL_DATADIR}/assay)
if(EXISTS ${PROJECT_SOURCE_DIR}/fixtures)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/fixtures DESTINATION ${CMAKE_INSTALL_DATADIR}/assay)
endif()
# What `assay bench` reads: tables, the tokens that scenarios must yield, peers.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/tables ${PROJECT_SOURCE_DIR}/bench/short ${PROJECT_SOURCE_DIR}/bench/density
  ${PROJECT_SOURCE_DIR}/bench/baselines ${PROJECT_SOURCE_DIR}/bench/peers DESTINATION ${CMAKE_INSTALL_DATADIR}/assay/bench
  FILES_MATCHING PATTERN "*.yaml" PATTERN "*.jsonl" PATTERN "*.md" PATTERN "*.py")
install(FILES ${PROJECT_SOURCE_DIR}/bench/expected.jsonl DESTINATION ${CMAKE_INSTALL_DATADIR}/assay/bench)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/README.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The archive of the log is for developers.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN "registers.tsv" PATTERN "archive" EXCLUDE)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/assayConfig.cmake.in ${PROJECT_BINARY_DIR}/assayConfig.cmake
  INSTALL_DESTINATION ${assay_cmake_dir} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_BINDIR CMAKE_INSTALL_DATADIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/assayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/assayConfig.cmake ${PROJECT_BINARY_DIR}/assayConfigVersion.cmake
  DESTINATION ${assay_cmake_dir})

# The headers are the same for every architecture, and the file finds its prefix by its own place.
file(RELATIVE_PATH assay_up_to_prefix /${CMAKE_INSTALL_DATADIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" assay_up_to_prefix "${assay_up_to_prefix}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/assay.pc.in ${PROJECT_BINARY_DIR}/assay.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/assay.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
