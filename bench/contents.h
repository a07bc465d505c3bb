/* contents.h: what the sets of a case hold, made once for all its variants. Private to the bench. */
#ifndef ASSAY_BENCH_CONTENTS_H
#define ASSAY_BENCH_CONTENTS_H

#include "conformance/trial/trial.h"
#include "sandwich.h"

/* One of the contents that the sets take turns in. The device has two images of it: `first`, as t.first, and `there`,
 * as img, with other poison and other dead bytes. The second image is timed. Both have [arena][guard][workspace]
 * [guard], the latter three poison. golden: what a launch leaves of `there`. */
typedef struct bench_content {
  assay_case one; /* another seed; lists of its own */
  trial t;        /* under the contract of the variant in turn */
  image img;
  unsigned char *first, *there, *golden;
} bench_content;

typedef struct bench_contents {
  const assay_device *device; /* NULL: nothing is here */
  int64_t bytes;              /* size of an image on the device, with room for the workspace */
  bench_content content[BENCH_CONTENTS];
  unsigned char *host; /* [bytes]: what comes back */
  char of[CASE_MAX_LINE];
} bench_contents;

/* Contents of the case for the variant: those that are here, if they are of this case, else new ones. NULL: the verdict
 * is set (UNSUPPORTED: by the variant, or no other seed has the same layout). `workspace`: what the variant asks for.
 */
bench_contents *contents_for(const assay_case *one, const assay_variant *variant, const assay_device *device,
                             int64_t *workspace, case_result *result);
/* Memory of a lost device is lost with it. */
void contents_release(bool device_lost);

/* Memory of the device, also where it cannot copy or compare by itself; all waits. */
assay_status contents_copy(const assay_device *device, void *to, const void *from, int64_t bytes, assay_error *error);
assay_status contents_compare(const assay_device *device, const unsigned char *a, const unsigned char *b,
                              const assay_piece *piece, int32_t count, int32_t *differ, assay_error *error);

#endif
