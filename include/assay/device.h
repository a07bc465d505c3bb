/* device.h: the device that a variant runs on: its memory, and the order of work on it. Implementations: cuda and
 * simt. */
#ifndef ASSAY_DEVICE_H
#define ASSAY_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Least number of unmapped bytes before guarded memory, and after it. */
#define ASSAY_UNMAPPED_BYTES ((int64_t)1 << 20)

typedef struct assay_device_info {
  char name[128], driver[64], toolkit[64]; /* "NVIDIA H200", "580.159.04", "13.0"; simt: the CPU model, "", "" */
  int32_t multiprocessors;
  int32_t memory_rate; /* bytes per ns that the memory could move, by its clock and width; 0: unknown */
} assay_device_info;

/* Largest number of pieces of memory that one call compares. */
#define ASSAY_MAX_PIECES 32
typedef struct assay_piece {
  int64_t offset, bytes;
} assay_piece;

/* State that the device reports of itself; -1: unknown. `slowed` holds the reasons why the clocks are lower than they
 * could be, as bits of the driver's mask (NVML's clocks event reasons). */
typedef struct assay_device_state {
  int32_t core_mhz, memory_mhz, celsius, milliwatts;
  int64_t slowed;
} assay_device_state;

/* Rates that a device measures. A multiply-add counts as 2 operations.
 *   COPY   bytes read plus bytes written
 *   FMA    f32 on plain cores
 *   MMA    bf16 products with f32 sums on tensor cores, through mma.sync
 *   GEMM   bf16 products by the vendor's library, 8192^3
 *   MMA8   e4m3 products with f32 sums on tensor cores, through mma.sync
 *   GEMM8  e4m3 products by the vendor's library, 8192^3
 *
 * GEMM and GEMM8 are 0 where the library is missing or has no such product. */
typedef enum assay_rate {
  ASSAY_RATE_COPY,
  ASSAY_RATE_FMA,
  ASSAY_RATE_MMA,
  ASSAY_RATE_GEMM,
  ASSAY_RATE_MMA8,
  ASSAY_RATE_GEMM8,
  ASSAY_RATES
} assay_rate;

/* Time on the device's own clock, and the device's highest rates. Every function works in the order of stream() unless
 * it takes a stream. */
typedef struct assay_device_timing {
  assay_status (*cache)(int64_t *bytes, assay_error *error); /* writes the size of the last-level cache */
  assay_status (*flush)(assay_error *error);                 /* removes all data from that cache */
  assay_status (*mark)(int32_t number, assay_error *error);  /* sets mark 0 or 1 at the present place */
  assay_status (*between)(double *us, assay_error *error);   /* waits, then writes the time from mark 0 to mark 1 */
  assay_status (*wait_all)(assay_error *error);              /* waits for all work on the device, in every stream */
  assay_status (*empty)(void *stream, assay_error *error);   /* launches a kernel that does nothing */
  assay_status (*rate)(assay_rate which, double *per_second, assay_error *error); /* measures a rate; waits */
  /* Writes the device's present state. */
  assay_status (*state)(assay_device_state *state, assay_error *error);
} assay_device_timing;

/* Lanes of work: the device's own stream, a lane for what the host sends and a lane for what comes back. Work inside
 * one lane is in order. Two lanes are not ordered unless one waits for a mark of the other. */
typedef enum assay_lane { ASSAY_LANE_OWN, ASSAY_LANE_UP, ASSAY_LANE_DOWN, ASSAY_LANES } assay_lane;
#define ASSAY_MARKS 32

/* Counts of what made the host stand still since the process began. They are waits for the whole device or its stream,
 * copies that may block, allocations, and marks that were not reached yet. */
typedef struct assay_device_waits {
  int64_t synchronized, copied, allocated, marks;
} assay_device_waits;

/* Work in lanes. Host memory given to copy() comes from alloc_host(). It stays in use until a mark after the copy is
 * reached. */
typedef struct assay_device_flow {
  assay_status (*replay)(void *graph, assay_error *error); /* runs in stream() */
  assay_status (*copy)(assay_lane lane, void *to, const void *from, int64_t bytes,
                       assay_error *error); /* lanes UP and DOWN only */
  /* Sets a mark at the lane's present place. A mark that is set again stands at its new place from then on. */
  assay_status (*mark)(assay_lane lane, int32_t number, assay_error *error);
  /* Makes later work of the lane wait for the mark's present place; a mark never set delays nothing. The host goes
   * on. */
  assay_status (*after)(assay_lane lane, int32_t number, assay_error *error);
  /* Writes whether the mark's place is reached. With `wait` the host waits until it is. */
  assay_status (*reached)(int32_t number, bool wait, bool *reached, assay_error *error);
  /* simt: finishes the work of these lanes (bit 1 << lane) as late as order allows, and all other work as early as it
   * allows. cuda: does nothing. */
  void (*lag)(uint32_t lanes);
  void (*waits)(assay_device_waits *count); /* simt only; NULL: waits are not counted */
} assay_device_flow;

/* Rows of bytes, each `pitch` bytes after the one before. */
typedef struct assay_device_rows {
  void *to;
  int64_t to_pitch;
  const void *from;
  int64_t from_pitch, width, count;
} assay_device_rows;

/* Work around calls of other people's code, in a stream of the caller's. It can be captured. */
typedef struct assay_device_door {
  assay_status (*copy_rows)(void *stream, const assay_device_rows *rows, assay_error *error);
  /* to[i] = from[i] · factor, in f64, rounded once. Both may be the same memory. */
  assay_status (*scale)(void *stream, float *to, const float *from, int64_t count, double factor, assay_error *error);
} assay_device_door;

/* A device; each process has one of each kind. Call open() first. alloc() returns 256-byte aligned memory. upload() and
 * download() are ordered with stream() and are complete when synchronize() returns. Functions that return a status
 * return ASSAY_OK or write the reason to *error. */
typedef struct assay_device {
  const char *name;                         /* "cuda", "simt" */
  assay_status (*open)(assay_error *error); /* ASSAY_ERR_NO_DEVICE: this machine has none */
  void (*close)(void);
  assay_status (*info)(assay_device_info *info, assay_error *error);
  assay_status (*alloc)(int64_t bytes, void **memory, assay_error *error);
  void (*release)(void *memory);
  assay_status (*upload)(void *to, const void *from, int64_t bytes, assay_error *error);
  assay_status (*download)(void *to, const void *from, int64_t bytes, assay_error *error);
  void *(*stream)(void);
  assay_status (*synchronize)(assay_error *error); /* ASSAY_ERR_DEVICE if a kernel faulted */
  void (*schedule)(uint64_t seed);                 /* simt: reorders warps and lanes from here on; cuda: does nothing */

  /* Functions that only some laws need. Each group is NULL where a device lacks it. */

  /* Allocates whole pages, *capacity >= bytes of them. The addresses right before and right after the memory are
   * unmapped; an access to them faults. */
  assay_status (*alloc_guarded)(int64_t bytes, void **memory, int64_t *capacity, assay_error *error);
  void (*release_guarded)(void *memory);

  /* A graph. Launches into *stream between begin and end are recorded and do not run. cuda captures in thread-local
   * mode from a stream with default flags. It is an error if this thread allocates, waits or touches the legacy default
   * stream there. graph_capture_end() ends the capture even after a failure in it. graph_replay() is ordered with
   * stream(). */
  assay_status (*graph_capture_begin)(void **stream, assay_error *error);
  assay_status (*graph_capture_end)(void **graph, assay_error *error);
  assay_status (*graph_replay)(void *graph, assay_error *error);
  void (*graph_release)(void *graph);

  /* Two more streams, numbers 0 and 1, that are ordered with nothing. keep_busy() puts work of about `microseconds`
   * into `stream`: `blocks` blocks that write memory of their own. A NULL stream stands for a third stream,
   * keep_busy()'s own. */
  assay_status (*side_stream)(int32_t number, void **stream, assay_error *error);
  assay_status (*keep_busy)(void *stream, int32_t blocks, int32_t microseconds, assay_error *error);
  assay_status (*side_synchronize)(assay_error *error); /* waits for all three streams */

  /* Work on memory in place, all of it ordered with stream(). copy() copies from one place on the device to another.
   * compare() tells whether the pieces hold the same bytes in `a` and in `b`. *differ is in host memory; it is 0 or 1
   * when synchronize() returns, or -1 if the comparison could not be made. */
  assay_status (*copy)(void *to, const void *from, int64_t bytes, assay_error *error);
  assay_status (*compare)(const void *a, const void *b, const assay_piece *piece, int32_t count, int32_t *differ,
                          assay_error *error);

  /* Allocates 256-byte aligned host memory that is uploaded in place. The caller leaves it unchanged until
   * synchronize(). */
  assay_status (*alloc_host)(int64_t bytes, void **memory, assay_error *error);
  void (*release_host)(void *memory);

  /* simt: while on, delays uploads and a launch until the next launch. A dependent next launch may begin before them,
   * up to its wait for them. Turning it off runs the delayed work and returns that work's status. NULL: launches
   * overlap by themselves. */
  assay_status (*late)(bool on, assay_error *error);

  /* simt: launches from here on run only blocks among the first `ends` or the last `ends` of an axis of the grid. An
   * axis of at most 128 blocks stays whole. With two axes or more, no more than 16 blocks stay at an end. 0: all blocks
   * run. A launch whose blocks wait for each other always runs whole. NULL: there is no such choice. */
  void (*window)(int64_t ends);

  /* simt: returns words about something that CUDA allows and that is a mistake in most kernels, done by a launch since
   * the last call. NULL: no launch did so. The text is valid until the next launch. A NULL pointer: nothing is noticed.
   */
  const char *(*note)(void);

  const assay_device_timing *timing; /* NULL: only the host's clock is available */
  const assay_device_flow *flow;
  const assay_device_door *door; /* NULL: the device's memory is the host's */
} assay_device;

#ifdef __cplusplus
}
#endif
#endif
