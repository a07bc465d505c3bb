/* device.h: memory and order on the device a variant runs on. Two implementations: cuda, simt. */
#ifndef ASSAY_DEVICE_H
#define ASSAY_DEVICE_H

#include "status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
} assay_device;

#ifdef __cplusplus
}
#endif
#endif
