/* threads.h: a loop divided among threads. */
#ifndef ASSAY_CONFORMANCE_TEXT_THREADS_H
#define ASSAY_CONFORMANCE_TEXT_THREADS_H

#include <stdint.h>

/* Sets the most threads that loops of the calling thread may use (at most 64). The default is 1: the calling thread
 * alone. */
void threads_use(int32_t count);
/* Returns that number. */
int32_t threads_used(void);

/* Does the part [begin, end) of a loop over [0, count). Each index is in one part; loops inside a part are not divided.
 * A part's result may not depend on the others. */
typedef void (*threads_body)(void *context, int64_t begin, int64_t end);
/* Divides the loop into parts of at least `grain` indices and returns when all are done. */
void threads_for(int64_t count, int64_t grain, threads_body body, void *context);

#endif
