# Flags every part shares. No fast-math anywhere; contraction off so that a*b+c rounds twice, as written.
add_library(assay_strict INTERFACE)
target_compile_options(assay_strict INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes -Werror=implicit-function-declaration>)

if(ASSAY_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>)
endif()

# ASSAY_SANITIZE: address (or ON; with UBSan), memory, thread. thread is for the kernels: they alone are
# instrumented (assay_kernel_flags), and the program is linked with TSan's runtime, whose fibers clang 14 has. gcc may
# compile them, in half of clang's time. Its own runtime takes minutes for what clang's takes seconds, so clang links.
# ASSAY_KERNEL_FLAGS, ASSAY_C_FLAGS: further flags of the kernels on a CPU, and of C, after those of the build type.
set(ASSAY_KERNEL_FLAGS "" CACHE STRING "further flags of the kernels on a CPU")
set(ASSAY_C_FLAGS "" CACHE STRING "further flags of what is written in C")
target_compile_options(assay_strict INTERFACE "$<$<COMPILE_LANGUAGE:C>:${ASSAY_C_FLAGS}>")
add_library(assay_kernel_flags INTERFACE)
target_compile_options(assay_kernel_flags INTERFACE ${ASSAY_KERNEL_FLAGS})
if(ASSAY_SANITIZE STREQUAL "memory" AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_ID STREQUAL "Clang"))
  message(FATAL_ERROR "ASSAY_SANITIZE=memory: found ${CMAKE_CXX_COMPILER_ID}, allowed: clang (preset msan)")
endif()
if(ASSAY_SANITIZE STREQUAL "thread")
  target_compile_options(assay_kernel_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    find_program(ASSAY_CLANG_LINK clang++ REQUIRED)
    set(CMAKE_CXX_LINK_EXECUTABLE "${ASSAY_CLANG_LINK} <FLAGS> <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
  endif()
elseif(ASSAY_SANITIZE STREQUAL "memory")
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=memory> $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=memory)
elseif(ASSAY_SANITIZE)
  set(ASSAY_SANITIZE address)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=address,undefined>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=undefined>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=address,undefined)
  # GCC 12.2 with UBSan: jump threading drops a load that is not conditional (gpu/lib/prefill_wgmma_load.cuh, keys: block
  # 0 instead of the table's). GCC 11, clang 14 and GCC 12 without jump threading are right.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12 AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fno-thread-jumps>)
  endif()
endif()
