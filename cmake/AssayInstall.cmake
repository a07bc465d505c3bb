# cmake --install: the program, the public headers, what kernels of plug-ins include, suites and fixtures, and
# a package: find_package(assay) gives assay::plugin and assay_add_simt_plugin(NAME SOURCE.cu) (docs/adding.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(assay_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/assay)
install(TARGETS assay RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/assay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/gpu/simt/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay/simt FILES_MATCHING PATTERN "*.h")
# Kernels include "gpu/lib/launch.h", in this tree and outside alike.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/gpu/lib DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay/kernel/gpu
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/conformance/suites DESTINATION ${CMAKE_INSTALL_DATADIR}/assay)
if(EXISTS ${PROJECT_SOURCE_DIR}/fixtures)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/fixtures DESTINATION ${CMAKE_INSTALL_DATADIR}/assay)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/assayConfig.cmake.in ${PROJECT_BINARY_DIR}/assayConfig.cmake
  INSTALL_DESTINATION ${assay_cmake_dir} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_BINDIR CMAKE_INSTALL_DATADIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/assayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/assayConfig.cmake ${PROJECT_BINARY_DIR}/assayConfigVersion.cmake
  DESTINATION ${assay_cmake_dir})
