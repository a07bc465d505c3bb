/* device_cuda_pages.cu: memory between unmapped addresses, by the driver's virtual memory management.
 *
 * An access beside such memory is an illegal address, and kernels run at full speed. The driver's functions are looked
 * up at run time, so that nothing more is linked. The file also makes ranges far larger than the device's memory, of
 * which a few pages are mapped. */
#include <assay/sparse.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdlib.h>

#include "gpu/device/device_cuda.h"

namespace assay_cuda_host {

/* A run of whole mapped pages. */
struct Mapped {
  CUdeviceptr begin;
  size_t bytes;
};

/* A reservation with several mapped pieces. Everything between them is unmapped, or mapped to the filler. */
struct Range {
  CUdeviceptr reserved, memory;
  size_t reserved_bytes;
  Mapped *piece;
  int64_t count, room;
  Range *next;
};

/* One reservation: [unmapped][mapped][unmapped]. */
struct Region {
  CUdeviceptr reserved, mapped;
  size_t reserved_bytes, mapped_bytes;
  Region *next;
};

static thread_local Region *regions; /* each thread has its own */
static thread_local Range *ranges;   /* likewise */

static thread_local struct {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) allow;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuGetErrorName) name;
  bool ready;
} driver; /* each thread has its own */

template <class F> static bool find(const char *name, F *function) {
  constexpr unsigned int since = 11000; /* all of these are older */
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void *address = nullptr;
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &found);
  *function = reinterpret_cast<F>(address);
  return code == cudaSuccess && found == cudaDriverEntryPointSuccess && address != nullptr;
}

static assay_status find_driver(assay_error *error) {
  if (driver.ready) return ASSAY_OK;
  driver.ready = find("cuMemAddressReserve", &driver.reserve) && find("cuMemAddressFree", &driver.free) &&
                 find("cuMemCreate", &driver.create) && find("cuMemRelease", &driver.release) &&
                 find("cuMemMap", &driver.map) && find("cuMemUnmap", &driver.unmap) &&
                 find("cuMemSetAccess", &driver.allow) && find("cuMemGetAllocationGranularity", &driver.granularity) &&
                 find("cuGetErrorName", &driver.name);
  if (driver.ready) return ASSAY_OK;
  (void)cudaGetLastError();
  return assay_fail(error, ASSAY_ERR_DEVICE, "cuda: the driver has no virtual memory management");
}

static assay_status fail_with(CUresult code, const char *doing, int64_t bytes, assay_error *error) {
  const char *name = nullptr;
  (void)driver.name(code, &name);
  return assay_fail(error, code == CUDA_ERROR_OUT_OF_MEMORY ? ASSAY_ERR_MEMORY : ASSAY_ERR_DEVICE,
                    "cuda: guarded alloc of %lld bytes: %s: %s", static_cast<long long>(bytes), doing,
                    name != nullptr ? name : "unknown error");
}

/* Maps the pages of a reservation that has none yet: r->mapped_bytes is 0. */
static assay_status map_region(Region *r, size_t bytes, size_t unit, const CUmemAllocationProp *kind,
                               assay_error *error) {
  const int64_t shown = static_cast<int64_t>(bytes);
  CUmemGenericAllocationHandle physical;
  CUmemAccessDesc access = {};
  access.location = kind->location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult code = driver.reserve(&r->reserved, unit + bytes + unit, 0, 0, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "reserving addresses", shown, error);
  r->reserved_bytes = unit + bytes + unit;
  r->mapped = r->reserved + unit;
  code = driver.create(&physical, bytes, kind, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "physical memory", shown, error);
  code = driver.map(r->mapped, bytes, 0, physical, 0);
  (void)driver.release(physical); /* the memory lives as long as it is mapped */
  if (code != CUDA_SUCCESS) return fail_with(code, "mapping", shown, error);
  r->mapped_bytes = bytes;
  code = driver.allow(r->mapped, bytes, &access, 1);
  return code == CUDA_SUCCESS ? ASSAY_OK : fail_with(code, "setting access", shown, error);
}

static void unmap_region(Region *r) {
  if (r->mapped_bytes > 0) (void)driver.unmap(r->mapped, r->mapped_bytes);
  if (r->reserved_bytes > 0) (void)driver.free(r->reserved, r->reserved_bytes);
  free(r);
}

static assay_status ask_kind(int64_t bytes, CUmemAllocationProp *kind, size_t *unit, assay_error *error) {
  *kind = {};
  kind->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind->location.id = 0;
  const CUresult code = driver.granularity(unit, kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return code == CUDA_SUCCESS ? ASSAY_OK : fail_with(code, "asking for the granularity", bytes, error);
}

static assay_status make_region(int64_t bytes, void **memory, int64_t *capacity, assay_error *error) {
  assay_status status = find_driver(error);
  if (status != ASSAY_OK) return status;
  CUmemAllocationProp kind;
  size_t unit = 0;
  status = ask_kind(bytes, &kind, &unit, error);
  if (status != ASSAY_OK) return status;
  while (unit < static_cast<size_t>(ASSAY_UNMAPPED_BYTES)) /* a power of two; 2 MiB on Hopper */
    unit *= 2;
  const size_t wanted = bytes > 0 ? static_cast<size_t>(bytes) : 1;
  Region *r = static_cast<Region *>(calloc(1, sizeof *r));
  if (r == nullptr) return assay_fail(error, ASSAY_ERR_MEMORY, "cuda: no memory to note a region");
  status = map_region(r, (wanted + unit - 1) / unit * unit, unit, &kind, error);
  if (status != ASSAY_OK) {
    unmap_region(r);
    return status;
  }
  r->next = regions;
  regions = r;
  *memory = reinterpret_cast<void *>(r->mapped);
  *capacity = static_cast<int64_t>(r->mapped_bytes);
  return ASSAY_OK;
}

assay_status guarded_alloc(int64_t bytes, void **memory, int64_t *capacity, assay_error *error) {
  *memory = nullptr;
  assay_status status = open_device(error);
  if (status != ASSAY_OK) return status;
  if (bytes < 0) return assay_fail(error, ASSAY_ERR_INPUT, "cuda: alloc of %lld bytes", static_cast<long long>(bytes));
  lock_for(false);
  status = make_region(bytes, memory, capacity, error);
  unlock();
  return status;
}

/* Unmaps memory after the device is done: no kernel may use unmapped memory. */
void guarded_release(void *memory) {
  for (Region **at = &regions; *at != nullptr; at = &(*at)->next) {
    Region *r = *at;
    if (reinterpret_cast<void *>(r->mapped) != memory) continue;
    *at = r->next;
    lock_for(false);
    (void)cudaDeviceSynchronize();
    unmap_region(r);
    unlock();
    return;
  }
}

/* ---- a few pages of a huge range --------------------------------------------------------------------- */

static void unmap_range(Range *r) {
  for (int64_t i = 0; i < r->count; ++i)
    (void)driver.unmap(r->piece[i].begin, r->piece[i].bytes);
  if (r->reserved_bytes > 0) (void)driver.free(r->reserved, r->reserved_bytes);
  free(r->piece);
  free(r);
}

/* Makes room for one more piece. */
static bool has_room(Range *r) {
  if (r->count < r->room) return true;
  const int64_t room = 2 * r->room + ASSAY_SPARSE_PIECES;
  Mapped *const grown = static_cast<Mapped *>(realloc(r->piece, static_cast<size_t>(room) * sizeof *grown));
  if (grown == nullptr) return false;
  r->piece = grown;
  r->room = room;
  return true;
}

/* Maps memory at an address. Memory may be mapped several times. */
static assay_status map_memory(Range *r, CUdeviceptr begin, size_t bytes, CUmemGenericAllocationHandle physical,
                               const CUmemAllocationProp *kind, assay_error *error) {
  const int64_t shown = static_cast<int64_t>(bytes);
  CUmemAccessDesc access = {};
  access.location = kind->location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!has_room(r)) return assay_fail(error, ASSAY_ERR_MEMORY, "cuda: no memory to note a piece");
  CUresult code = driver.map(begin, bytes, 0, physical, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "mapping", shown, error);
  r->piece[r->count++] = {begin, bytes};
  code = driver.allow(begin, bytes, &access, 1);
  return code == CUDA_SUCCESS ? ASSAY_OK : fail_with(code, "setting access", shown, error);
}

static assay_status map_piece(Range *r, CUdeviceptr begin, size_t bytes, const CUmemAllocationProp *kind,
                              assay_error *error) {
  CUmemGenericAllocationHandle physical;
  const CUresult code = driver.create(&physical, bytes, kind, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "physical memory", static_cast<int64_t>(bytes), error);
  const assay_status status = map_memory(r, begin, bytes, physical, kind, error);
  (void)driver.release(physical); /* the memory lives as long as it is mapped */
  return status;
}

/* One memory that is mapped again and again between the pieces of a range, if any is. It is there in two sizes, of many
 * pages and of one, since a mapping has all of it. */
struct Filler {
  CUmemGenericAllocationHandle many, one;
  size_t many_bytes, one_bytes; /* 0: nothing */
};

static assay_status make_filler(Filler *f, size_t unit, const CUmemAllocationProp *kind, assay_error *error) {
  constexpr size_t pages = 64;
  CUresult code = driver.create(&f->one, unit, kind, 0);
  if (code == CUDA_SUCCESS) f->one_bytes = unit;
  if (code == CUDA_SUCCESS) code = driver.create(&f->many, pages * unit, kind, 0);
  if (code == CUDA_SUCCESS) f->many_bytes = pages * unit;
  return code == CUDA_SUCCESS ? ASSAY_OK
                              : fail_with(code, "physical memory", static_cast<int64_t>(pages * unit), error);
}

static void drop_filler(const Filler *f) {
  if (f->one_bytes > 0) (void)driver.release(f->one);
  if (f->many_bytes > 0) (void)driver.release(f->many);
}

/* Maps the filler to the addresses from `begin` to `end`. */
static assay_status fill_between(Range *r, const Filler *f, CUdeviceptr begin, CUdeviceptr end,
                                 const CUmemAllocationProp *kind, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (f->many_bytes > 0 && begin < end && status == ASSAY_OK) {
    const bool many = end - begin >= f->many_bytes;
    const size_t bytes = many ? f->many_bytes : f->one_bytes;
    status = map_memory(r, begin, bytes, many ? f->many : f->one, kind, error);
    begin += bytes;
  }
  return status;
}

/* Writes 0 to all memory of a range. */
static assay_status clear(const Range *r, assay_error *error) {
  cudaError_t code = cudaSuccess;
  for (int64_t i = 0; i < r->count && code == cudaSuccess; ++i)
    code = cudaMemset(reinterpret_cast<void *>(r->piece[i].begin), 0, r->piece[i].bytes);
  if (code == cudaSuccess) code = cudaDeviceSynchronize();
  if (code == cudaSuccess) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "cuda: clearing a range: %s", cudaGetErrorName(code));
}

/* Maps the pages of the pieces, and the filler between them. Pieces that share a page are mapped as one. */
static assay_status map_pieces(Range *r, size_t whole, size_t unit, const assay_piece *piece, int32_t count,
                               const Filler *filler, const CUmemAllocationProp *kind, assay_error *error) {
  assay_status status = ASSAY_OK;
  size_t begin = 0, end = 0; /* pages not yet mapped */
  for (int32_t i = 0; i <= count && status == ASSAY_OK; ++i) {
    const size_t from = i < count ? static_cast<size_t>(piece[i].offset) / unit * unit : whole;
    const size_t to =
        i < count ? (static_cast<size_t>(piece[i].offset + piece[i].bytes) + unit - 1) / unit * unit : whole;
    if (i < count && end > begin && from <= end) {
      end = to > end ? to : end;
      continue;
    }
    if (end > begin) status = map_piece(r, r->memory + begin, end - begin, kind, error);
    if (status == ASSAY_OK) status = fill_between(r, filler, r->memory + end, r->memory + from, kind, error);
    begin = from;
    end = to;
  }
  return status;
}

/* Maps a range. `filled`: the filler lies between the pieces. */
static assay_status map_range(Range *r, int64_t bytes, int64_t before, bool filled, const assay_piece *piece,
                              int32_t count, assay_error *error) {
  CUmemAllocationProp kind;
  Filler filler = {};
  size_t unit = 0;
  assay_status status = ask_kind(bytes, &kind, &unit, error);
  if (status != ASSAY_OK) return status;
  const size_t whole = (static_cast<size_t>(bytes) + unit - 1) / unit * unit;
  const size_t front = (static_cast<size_t>(before) + unit) / unit * unit;
  const CUresult code = driver.reserve(&r->reserved, front + whole + unit, 0, 0, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "reserving addresses", bytes, error);
  r->reserved_bytes = front + whole + unit;
  r->memory = r->reserved + front;
  if (filled) status = make_filler(&filler, unit, &kind, error);
  if (status == ASSAY_OK) status = map_pieces(r, whole, unit, piece, count, &filler, &kind, error);
  drop_filler(&filler); /* the memory lives as long as it is mapped */
  return status == ASSAY_OK && filled ? clear(r, error) : status;
}

static assay_status make_range(int64_t bytes, int64_t before, bool filled, const assay_piece *piece, int32_t count,
                               void **memory, assay_error *error) {
  *memory = nullptr;
  assay_status status = open_device(error);
  if (status == ASSAY_OK) status = find_driver(error);
  if (status != ASSAY_OK) return status;
  Range *r = static_cast<Range *>(calloc(1, sizeof *r));
  if (r == nullptr) return assay_fail(error, ASSAY_ERR_MEMORY, "cuda: no memory to note a range");
  lock_for(false);
  status = map_range(r, bytes, before, filled, piece, count, error);
  if (status == ASSAY_OK) {
    r->next = ranges;
    ranges = r;
    *memory = reinterpret_cast<void *>(r->memory);
  } else {
    unmap_range(r);
  }
  unlock();
  return status;
}

static assay_status sparse_alloc(int64_t bytes, const assay_piece *piece, int32_t count, void **memory,
                                 assay_error *error) {
  if (count >= 1 && count <= ASSAY_SPARSE_PIECES) return make_range(bytes, 0, false, piece, count, memory, error);
  *memory = nullptr;
  return assay_fail(error, ASSAY_ERR_INPUT, "cuda: pieces of a range: found %d, allowed 1 to %d", count,
                    ASSAY_SPARSE_PIECES);
}

static assay_status filled_alloc(int64_t bytes, int64_t before, const assay_piece *piece, int32_t count, void **memory,
                                 assay_error *error) {
  return make_range(bytes, before, true, piece, count, memory, error);
}

static void sparse_release(void *memory) {
  for (Range **at = &ranges; *at != nullptr; at = &(*at)->next) {
    Range *r = *at;
    if (reinterpret_cast<void *>(r->memory) != memory) continue;
    *at = r->next;
    lock_for(false);
    (void)cudaDeviceSynchronize();
    unmap_range(r);
    unlock();
    return;
  }
}

} // namespace assay_cuda_host

extern "C" const assay_sparse *assay_sparse_cuda(void) {
  static const assay_sparse sparse = {assay_cuda_host::sparse_alloc, assay_cuda_host::filled_alloc,
                                      assay_cuda_host::sparse_release};
  return &sparse;
}
