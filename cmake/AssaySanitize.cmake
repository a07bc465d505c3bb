# Label sanitize: the suites' corners under sanitizers, each in a build of its own below build/ (ci/sanitize.sh);
# skipped where clang is missing. asan and tsan (few types, a part of the edge cases) and races (one of twelve barriers)
# are for every change. The rest, and the _all forms with every type, case and barrier, is nightly.
foreach(kind asan tsan races asan_all tsan_all races_all sample msan uninit)
  add_test(NAME sanitize.${kind} COMMAND ${PROJECT_SOURCE_DIR}/ci/sanitize.sh ${kind} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(labels sanitize)
  if(NOT kind MATCHES "^(asan|tsan|races)$")
    list(APPEND labels nightly)
  endif()
  set_tests_properties(sanitize.${kind} PROPERTIES LABELS "${labels}" TIMEOUT 1800 SKIP_RETURN_CODE 77 RESOURCE_LOCK sanitize COST 1000)
endforeach()
# Builds nothing.
add_test(NAME house.races_list COMMAND ${PROJECT_SOURCE_DIR}/ci/sanitize.sh races_list WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(house.races_list PROPERTIES LABELS house TIMEOUT 60)
