/* device.h: memory and order on the device a variant runs on. Two implementations: cuda, simt. */
#ifndef ASSAY_DEVICE_H
#define ASSAY_DEVICE_H

#include "status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* So much is unmapped before and behind guarded memory, at least. */
#define ASSAY_UNMAPPED_BYTES ((int64_t)1 << 20)

typedef struct assay_device_info {
  char name[128], driver[64], toolkit[64]; /* "NVIDIA H200", "580.159.04", "13.0"; simt: the CPU model, "", "" */
  int32_t multiprocessors;
} assay_device_info;

/* One per process and device; open() before anything else. alloc gives 256-byte aligned memory.
 * upload and download are ordered with `stream` and complete on return of synchronize(). */
typedef struct assay_device {
  const char *name;                         /* "cuda", "simt" */
  assay_status (*open)(assay_error *error); /* ASSAY_ERR_UNSUPPORTED: no such device here */
  void (*close)(void);
  assay_status (*info)(assay_device_info *info, assay_error *error);
  assay_status (*alloc)(int64_t bytes, void **memory, assay_error *error);
  void (*release)(void *memory);
  assay_status (*upload)(void *to, const void *from, int64_t bytes, assay_error *error);
  assay_status (*download)(void *to, const void *from, int64_t bytes, assay_error *error);
  void *(*stream)(void);
  assay_status (*synchronize)(assay_error *error); /* ASSAY_ERR_DEVICE if a kernel faulted */
  void (*schedule)(uint64_t seed);                 /* simt: the order of warps and lanes from here on; cuda: nothing */

  /* What further laws need. Each group is NULL where a device has none. */

  /* `capacity` >= bytes, whole pages; the addresses right before and right behind are unmapped, so that an access
   * there faults. */
  assay_status (*alloc_guarded)(int64_t bytes, void **memory, int64_t *capacity, assay_error *error);
  void (*release_guarded)(void *memory);

  /* A graph: launches into `stream` between begin and end are recorded, not run. cuda: captured in thread-local mode
   * from a stream with default flags, where it is an error if this thread allocates, waits or touches the legacy
   * default stream.
   * end() ends the capture whatever happened in it. replay() is ordered with stream(). */
  assay_status (*graph_capture_begin)(void **stream, assay_error *error);
  assay_status (*graph_capture_end)(void **graph, assay_error *error);
  assay_status (*graph_replay)(void *graph, assay_error *error);
  void (*graph_release)(void *graph);

  /* Two more streams, number 0 and 1, ordered with nothing. keep_busy puts work of about that long into one of them
   * (stream NULL: into a third, of its own): `blocks` blocks that write memory of their own. */
  assay_status (*side_stream)(int32_t number, void **stream, assay_error *error);
  assay_status (*keep_busy)(void *stream, int32_t blocks, int32_t microseconds, assay_error *error);
  assay_status (*side_synchronize)(assay_error *error); /* waits for all three */
} assay_device;

#ifdef __cplusplus
}
#endif
#endif
