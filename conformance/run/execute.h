/* execute.h: runs cases in worker processes with a deadline. A worker that crashes, hangs or faults is replaced. On
 * cuda several cases are under way in one process, so that they share the device. If such a process ends, its cases are
 * run again, each in a process of its own, and those results count. */
#ifndef ASSAY_CONFORMANCE_RUN_EXECUTE_H
#define ASSAY_CONFORMANCE_RUN_EXECUTE_H

#include "conformance/judge/judge.h"

typedef struct execute_options {
  int32_t workers;   /* cases under way at once; 0: one per core */
  double deadline_s; /* per case */
  bool in_process;   /* no worker: for debuggers and profilers */
  int32_t threads;   /* threads of these workers in one process; 0: 8 on cuda, else 1 (simt can do no more) */
} execute_options;

/* Receives each result, whatever its verdict, in the order of the cases, as soon as all earlier ones are done. */
typedef void (*execute_done)(void *context, int64_t index, const assay_case *one, const case_result *result);

/* Runs the cases. Each must have its variant and device filled, and must stay as it is until this returns. Fails if
 * workers cannot be made, or on SIGINT or SIGTERM. Cases without a result are then not delivered. */
assay_status execute_cases(const assay_case *cases, int64_t count, const execute_options *options, execute_done done,
                           void *context, assay_error *error);

/* Cases that are made while others run. next() gives case `index` (0, 1, 2, ...), which must stay as it is until done()
 * was called for it. Or it says that it needs results that are still under way, or that there are no more cases. After
 * it said that it waits it may be asked again, but never after the end. At most EXECUTE_WINDOW cases are given and not
 * done. */
enum { EXECUTE_WINDOW = 4096 };
typedef enum execute_more { EXECUTE_CASE, EXECUTE_WAIT, EXECUTE_END } execute_more;
typedef execute_more (*execute_next)(void *context, int64_t index, const assay_case **one);

/* Runs a stream of cases as execute_cases does. All run on `device`. */
assay_status execute_stream(execute_next next, const char *device, const execute_options *options, execute_done done,
                            void *context, assay_error *error);

/* Returns the number of the signal that interrupted the last of these calls; 0 if none did. */
int execute_interrupted(void);

/* Opens the device in a process of its own and asks it who it is. This process thus never opens a device, and
 * its workers can. ASSAY_ERR_NO_DEVICE: no such device here. */
assay_status execute_probe(const assay_device *device, assay_device_info *info, assay_error *error);

#endif
