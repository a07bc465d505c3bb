# Run by cpack between the installation into its staging folder and the package (CPACK_PRE_BUILD_SCRIPTS): adds the files
# that Debian's policy asks for. cmake --install is not affected.
set(usr ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
set(doc ${usr}/share/doc/assay)
if(NOT EXISTS ${doc})
  message(FATAL_ERROR "AssayDebian.cmake: no ${doc}")
endif()
find_program(GZIP gzip REQUIRED)

# compress(FILE): in place, without a time stamp.
function(compress file)
  execute_process(COMMAND ${GZIP} -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

configure_file(${CPACK_ASSAY_SOURCE_DIR}/cmake/debian/copyright ${doc}/copyright COPYONLY)
# The copyright file names the licence, whose text every Debian system has.
file(REMOVE ${doc}/LICENSE)

file(RENAME ${doc}/CHANGELOG.md ${doc}/changelog)
compress(${doc}/changelog)

string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog.Debian
"assay (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Package of version ${CPACK_PACKAGE_VERSION}; changelog.gz says what changed.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
compress(${doc}/changelog.Debian)

file(GLOB pages ${usr}/share/man/man1/*.1)
foreach(page IN LISTS pages)
  compress(${page})
endforeach()

# Debian's zsh reads the completions of packages from another folder than those of a site.
if(EXISTS ${usr}/share/zsh/site-functions)
  file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)
endif()

# The first: tok512.bin of fixtures/models is a tokenizer whose first bytes look like a font's.
file(WRITE ${usr}/share/lintian/overrides/assay
"assay: truetype-font-wrong-filename *
assay: initial-upload-closes-no-bugs *
")
