/* vast_memory.c: ranges of addresses far larger than memory, for the law `vast`. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "far_internal.h"
#include "vast_internal.h"

/* FILLER: bytes of the small memory that stands for the rest of a range. MOST_WAITS: quarters of a second that a worker
 * waits for memory of the device. */
enum { FILLER = 1 << 26, MOST_WAITS = 80 };

/* This many addresses before a range are not mapped. An offset of up to 2^31 elements of 8 bytes that wraps around in
 * 32 bits leads there. */
static const int64_t before = (int64_t)1 << 34;

static int64_t round_up(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

static bool map(unsigned char *at, int64_t bytes, int flags, int file) {
  return mmap(at, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_NORESERVE | flags, file, 0) != MAP_FAILED;
}

static assay_status take_host(vast_range *r, const assay_piece *piece, int32_t count, assay_error *error) {
  const int64_t page = sysconf(_SC_PAGESIZE), whole = round_up(r->bytes, page);
  r->reserved_bytes = before + whole + page;
  void *memory = mmap(NULL, (size_t)r->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return assay_fail(error, ASSAY_ERR_MEMORY, "no range of %lld addresses", (long long)r->reserved_bytes);
  r->reserved = memory;
  r->memory = r->reserved + before;
  const int file = memfd_create("assay", MFD_CLOEXEC);
  bool good = file >= 0 && ftruncate(file, FILLER) == 0;
  for (int64_t at = 0; at < whole && good; at += FILLER)
    good = map(r->memory + at, whole - at < FILLER ? whole - at : FILLER, MAP_SHARED, file);
  if (file >= 0) (void)close(file); /* the memory lives as long as it is mapped */
  for (int32_t i = 0; i < count && good; ++i) {
    const int64_t from = piece[i].offset / page * page, to = round_up(piece[i].offset + piece[i].bytes, page);
    good = map(r->memory + from, to - from, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  }
  return good ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "no memory for a range of addresses");
}

assay_status vast_take(const trial *t, vast_range *r, const assay_piece *piece, int32_t count, assay_error *error) {
  static const struct timespec pause = {0, 250 * 1000 * 1000};
  const assay_sparse *sparse = far_sparse(t);
  void *memory = NULL;
  if (sparse == NULL) return take_host(r, piece, count, error);
  assay_status status = sparse->alloc_filled(r->bytes, before, piece, count, &memory, error);
  /* Workspaces of several GB are memory. Other workers may hold theirs, and give them back soon. */
  for (int again = 0; status == ASSAY_ERR_MEMORY && again < MOST_WAITS; ++again) {
    (void)nanosleep(&pause, NULL);
    status = sparse->alloc_filled(r->bytes, before, piece, count, &memory, error);
  }
  r->memory = memory;
  return status;
}

void vast_give(const trial *t, vast_range *r) {
  const assay_sparse *sparse = far_sparse(t);
  if (sparse != NULL && r->memory != NULL) sparse->release(r->memory);
  if (sparse == NULL && r->reserved != NULL) (void)munmap(r->reserved, (size_t)r->reserved_bytes);
  *r = (vast_range){.memory = NULL};
}
