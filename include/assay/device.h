/* device.h: memory and order on the device a variant runs on. Two implementations: cuda, simt. */
#ifndef ASSAY_DEVICE_H
#define ASSAY_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* So much is unmapped before and behind guarded memory, at least. */
#define ASSAY_UNMAPPED_BYTES ((int64_t)1 << 20)

typedef struct assay_device_info {
  char name[128], driver[64], toolkit[64]; /* "NVIDIA H200", "580.159.04", "13.0"; simt: the CPU model, "", "" */
  int32_t multiprocessors;
  int32_t memory_rate; /* bytes a ns that its memory could move, by its clock and width; 0: not known */
} assay_device_info;

/* So many pieces of memory are compared at once, at most. */
#define ASSAY_MAX_PIECES 32
typedef struct assay_piece {
  int64_t offset, bytes;
} assay_piece;

/* What the device says of itself; -1: unknown. slowed: reasons why its clocks are lower than they could be, bits of the
 * driver's mask (NVML's clocks event reasons). */
typedef struct assay_device_state {
  int32_t core_mhz, memory_mhz, celsius, milliwatts;
  int64_t slowed;
} assay_device_state;

/* copy: bytes read plus bytes written; fma: f32 on plain cores; mma: bf16 products on tensor cores, f32 sums, through
 * mma.sync; gemm: the same by the vendor's library, 8192^3, 0 where the library is missing. Operations count 2 a
 * multiply-add. */
typedef enum assay_rate { ASSAY_RATE_COPY, ASSAY_RATE_FMA, ASSAY_RATE_MMA, ASSAY_RATE_GEMM, ASSAY_RATES } assay_rate;

/* Time on the device's own clock, and what it can do at most. All in order with stream() unless a stream is given. */
typedef struct assay_device_timing {
  assay_status (*cache)(int64_t *bytes, assay_error *error); /* of the last level */
  assay_status (*flush)(assay_error *error);                 /* then it holds nothing of anybody */
  assay_status (*mark)(int32_t number, assay_error *error);  /* number 0 or 1: now */
  assay_status (*between)(double *us, assay_error *error);   /* from mark 0 to mark 1, after a wait */
  assay_status (*wait_all)(assay_error *error);              /* for everything on the device, whatever stream */
  assay_status (*empty)(void *stream, assay_error *error);   /* launches a kernel that does nothing */
  assay_status (*rate)(assay_rate which, double *per_second, assay_error *error); /* measures it; waits */
  assay_status (*state)(assay_device_state *state, assay_error *error);
} assay_device_timing;

/* Work in lanes: the device's own stream, one for what is sent to it, one for what comes back. Each lane is in order in
 * itself and in no order with another, unless it waits for a mark of it. */
typedef enum assay_lane { ASSAY_LANE_OWN, ASSAY_LANE_UP, ASSAY_LANE_DOWN, ASSAY_LANES } assay_lane;
#define ASSAY_MARKS 32

/* What the host has stood still for, since the process began: waits for the whole device or its stream, copies that may
 * be blocking, memory taken, and marks that were not reached yet. */
typedef struct assay_device_waits {
  int64_t synchronized, copied, allocated, marks;
} assay_device_waits;

/* Host memory here is alloc_host's and in use until a mark behind the copy is reached. */
typedef struct assay_device_flow {
  assay_status (*replay)(void *graph, assay_error *error); /* in stream() */
  assay_status (*copy)(assay_lane lane, void *to, const void *from, int64_t bytes, assay_error *error); /* UP, DOWN */
  /* The place in the lane that it has come to; a mark that is set again is at its new place from then on. */
  assay_status (*mark)(assay_lane lane, int32_t number, assay_error *error);
  /* What follows in the lane waits for the mark's place as it is now; never set: for nothing. The host goes on. */
  assay_status (*after)(assay_lane lane, int32_t number, assay_error *error);
  /* Is that place reached? With `wait` the host waits for it. */
  assay_status (*reached)(int32_t number, bool wait, bool *reached, assay_error *error);
  /* simt: lanes (bit 1 << lane) whose work is done as late as order allows, all other work as early; cuda: nothing. */
  void (*lag)(uint32_t lanes);
  void (*waits)(assay_device_waits *count); /* simt; NULL: nobody counts */
} assay_device_flow;

/* One per process and device; open() before anything else. alloc gives 256-byte aligned memory.
 * upload and download are ordered with `stream` and complete on return of synchronize(). */
typedef struct assay_device {
  const char *name;                         /* "cuda", "simt" */
  assay_status (*open)(assay_error *error); /* ASSAY_ERR_NO_DEVICE: there is none here */
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

  /* Memory that is looked at where it is, all of it ordered with stream(). copy: from one place on the device to
   * another. compare: do these pieces hold the same bytes in `a` and `b`? *differ, the host's, is 0 or 1 on return of
   * synchronize(); -1: it could not be asked. */
  assay_status (*copy)(void *to, const void *from, int64_t bytes, assay_error *error);
  assay_status (*compare)(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                          assay_error *error);

  /* Memory of the host that is uploaded as it lies, and so stays as it is until synchronize(). 256-byte aligned. */
  assay_status (*alloc_host)(int64_t bytes, void **memory, assay_error *error);
  void (*release_host)(void *memory);

  /* simt: while on, uploads and a launch are put off until the next launch; if that one is dependent, it may begin
   * first, up to its wait for them. Off: what was put off runs, and its status is returned. NULL: launches overlap by
   * themselves. */
  assay_status (*late)(bool on, assay_error *error);

  const assay_device_timing *timing; /* NULL: the host's clock is the only one */
  const assay_device_flow *flow;
} assay_device;

#ifdef __cplusplus
}
#endif
#endif
