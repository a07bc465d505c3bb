# cpack: a Debian package of what cmake --install installs.
#   cpack -G DEB --config build/cpu/CPackConfig.cmake -B build/cpu/package
# cpack packs what is built and builds nothing itself. A release names its maintainer (docs/releasing.md).
set(ASSAY_MAINTAINER "The assay authors <assay@localhost.invalid>" CACHE STRING "Maintainer of packages: name <address>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME assay)
set(CPACK_PACKAGE_VENDOR "The assay authors")
set(CPACK_PACKAGE_CONTACT ${ASSAY_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "conformance suite for LLM inference kernels on NVIDIA Hopper")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, pkg-config")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"assay says whether a kernel computes what its operator defines, on ragged
batches with paged KV caches. If not, it shows the first wrong element and
the one line that reproduces the failure.
.
The kernels are judged against references in f64. Without a GPU the same CUDA
kernels run on the CPU. The package has the runner, the suites and fixtures,
and the headers to build kernels of one's own as plug-ins.")

# dpkg-shlibdeps names the libraries that the program is linked with, in the versions of this machine. Without it the
# packages of Debian 12 are named.
find_program(ASSAY_SHLIBDEPS dpkg-shlibdeps)
find_program(ASSAY_FILE file)
if(ASSAY_SHLIBDEPS AND ASSAY_FILE)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS
    "libc6, libgcc-s1, libstdc++6, libgomp1, libyaml-0-2, libboost-context1.74.0, libopenblas0 | libopenblas.so.0")
endif()

# What Debian wants of a package beyond the installed files: copyright, changelogs, compressed man pages.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/AssayDebian.cmake)
set(CPACK_ASSAY_SOURCE_DIR ${PROJECT_SOURCE_DIR})
include(CPack)
