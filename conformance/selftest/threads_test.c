/* threads_test.c: every index in one part, whatever the number of threads. */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/text/threads.h"

enum { MOST = 1000 };

static void count(void *context, int64_t begin, int64_t end) {
  int *times = context;
  for (int64_t i = begin; i < end; ++i)
    ++times[i];
}

Test(threads, each_index_once) {
  for (int32_t threads = 0; threads < 70; threads += 3)
    for (int64_t n = 0; n < MOST; n += 37)
      for (int64_t grain = 1; grain < 300; grain *= 7) {
        static int times[MOST];
        memset(times, 0, sizeof times);
        threads_use(threads);
        threads_for(n, grain, count, times);
        for (int64_t i = 0; i < MOST; ++i)
          cr_assert_eq(times[i], i < n, "%d threads, %lld of %lld", (int)threads, (long long)i, (long long)n);
      }
}
