/* threads.h: a loop shared out over threads. */
#ifndef ASSAY_CONFORMANCE_THREADS_H
#define ASSAY_CONFORMANCE_THREADS_H

#include <stdint.h>

/* So many at most for loops of the calling thread; 1, as it is at first: none but itself. */
void threads_use(int32_t count);
int32_t threads_used(void);

/* [begin, end): a part of [0, count), each index in one part. Parts of `grain` at least; loops inside are not shared
 * out. What a part computes may not depend on the others. */
typedef void (*threads_body)(void *context, int64_t begin, int64_t end);
void threads_for(int64_t count, int64_t grain, threads_body body, void *context);

#endif
