/* execute.h: cases in worker processes with a deadline; one that crashes, hangs or faults is replaced. On cuda several
 * cases are under way in one process, so that they share the device; what was under way in a process that ended is run
 * again, each case in a process of its own, and that result counts. */
#ifndef ASSAY_CONFORMANCE_EXECUTE_H
#define ASSAY_CONFORMANCE_EXECUTE_H

#include "judge.h"

typedef struct execute_options {
  int32_t workers;   /* cases under way at once; 0: one per core */
  double deadline_s; /* per case */
  bool in_process;   /* no worker: for debuggers and profilers */
  int32_t threads;   /* of these, in one process; 0: 8 on cuda, else 1 (simt can do no more) */
} execute_options;

/* Called in the order of the cases, as soon as all earlier ones are done. Not PASS-only. */
typedef void (*execute_done)(void *context, int64_t index, const assay_case *one, const case_result *result);

/* Every case has its variant and device filled, and stays as it is until this returns. Fails if workers cannot be
 * made, or on SIGINT or SIGTERM; cases without a result are then not delivered. */
assay_status execute_cases(const assay_case *cases, int64_t count, const execute_options *options, execute_done done,
                           void *context, assay_error *error);

/* Cases that are made while others run. next() gives case `index` (0, 1, 2, ...), which stays as it is until done()
 * was called for it; or says that it needs results that are still under way; or that there are no more. It may
 * be asked again after it said that it waits, never after the end. At most EXECUTE_WINDOW cases are between the two. */
enum { EXECUTE_WINDOW = 1024 };
typedef enum execute_more { EXECUTE_CASE, EXECUTE_WAIT, EXECUTE_END } execute_more;
typedef execute_more (*execute_next)(void *context, int64_t index, const assay_case **one);

/* As execute_cases. `device`: where they all run. */
assay_status execute_stream(execute_next next, const char *device, const execute_options *options, execute_done done,
                            void *context, assay_error *error);

/* Opens the device in a process of its own and asks it who it is, so that this process never opens one and its
 * workers can. ASSAY_ERR_NO_DEVICE: no such device here. */
assay_status execute_probe(const assay_device *device, assay_device_info *info, assay_error *error);

#endif
