/* start.c: keeps OpenBLAS to one thread from its own start on.
 *
 * Its start-up code begins a thread for each core, and memory for each, before main() could say that one is enough.
 * Where memory or processes are limited it never ends. The threads also have to be stopped at each fork. Only the
 * environment can tell it, and it cannot be made longer before the C library has begun. One entry is therefore lent to
 * it until main() begins. */
#include "start.h"

#include <stddef.h>
#include <string.h>

static char one_thread[] = "OPENBLAS_NUM_THREADS=1";
static char **lent_place, *lent;

/* Tells whether no library reads the variable as it starts. */
static int may_be_lent(const char *entry) {
  static const char *const read[] = {"OPENBLAS", "GOTO", "OMP_", "GOMP_", "GFORTRAN", "MALLOC",
                                     "GLIBC",    "LD_",  "ASAN", "LSAN",  "TSAN",     "MSAN",
                                     "UBSAN",    "GCOV", "LLVM", "CUDA",  "NV",       "LOCPATH"};
  for (size_t i = 0; i < sizeof read / sizeof read[0]; ++i)
    if (strncmp(entry, read[i], strlen(read[i])) == 0) return 0;
  return 1;
}

static void before_libraries(int count, char **words, char **environment) {
  (void)count, (void)words;
  char **place = NULL;
  for (char **at = environment; *at != NULL; ++at) {
    if (strncmp(*at, one_thread, strlen("OPENBLAS_NUM_THREADS=")) == 0) return; /* somebody has chosen */
    if (may_be_lent(*at)) place = at;
  }
  if (place == NULL) return;
  lent_place = place;
  lent = *place;
  *place = one_thread;
}

/* Sanitizers have to begin before any code of the program. */
#if defined(__has_feature)
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !HAS_FEATURE(address_sanitizer) &&              \
    !HAS_FEATURE(thread_sanitizer) && !HAS_FEATURE(memory_sanitizer)
__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **, char **) = before_libraries;
#else
__attribute__((used)) static void (*const not_called)(int, char **, char **) = before_libraries;
#endif

void start_restore(void) {
  if (lent_place != NULL) *lent_place = lent;
  lent_place = NULL;
}
