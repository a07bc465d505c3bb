/* device_cuda_pages.cu: memory between unmapped addresses, by the driver's virtual memory management: an access beside
 * it is an illegal address, at full speed. Its functions are looked up at run time, so that nothing more is linked. And
 * ranges far larger than the device's memory, of which a few pages are there. */
#include <assay/sparse.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdlib.h>

#include "gpu/lib/device_cuda.h"

namespace assay_cuda_host {

/* Whole pages, mapped. */
struct Mapped {
  CUdeviceptr begin;
  size_t bytes;
};

/* A reservation with several mapped pieces, everything between them unmapped. */
constexpr int max_mapped = ASSAY_SPARSE_PIECES;
struct Range {
  CUdeviceptr reserved, memory;
  size_t reserved_bytes;
  Mapped piece[max_mapped];
  int count;
  Range *next;
};

/* One reservation: [unmapped][mapped][unmapped]. */
struct Region {
  CUdeviceptr reserved, mapped;
  size_t reserved_bytes, mapped_bytes;
  Region *next;
};

static thread_local Region *regions; /* of this thread */
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
} driver; /* of this thread */

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

/* Reserved, not yet mapped: r->mapped_bytes is 0. */
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
  (void)driver.release(physical); /* lives as long as it is mapped */
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
  assay_status status = assay_device_cuda()->open(error);
  if (status != ASSAY_OK) return status;
  if (bytes < 0) return assay_fail(error, ASSAY_ERR_INPUT, "cuda: alloc of %lld bytes", static_cast<long long>(bytes));
  lock_for(false);
  status = make_region(bytes, memory, capacity, error);
  unlock();
  return status;
}

/* Waits: nothing may use what is unmapped. */
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
  for (int i = 0; i < r->count; ++i)
    (void)driver.unmap(r->piece[i].begin, r->piece[i].bytes);
  if (r->reserved_bytes > 0) (void)driver.free(r->reserved, r->reserved_bytes);
  free(r);
}

static assay_status map_piece(Range *r, CUdeviceptr begin, size_t bytes, const CUmemAllocationProp *kind,
                              assay_error *error) {
  const int64_t shown = static_cast<int64_t>(bytes);
  CUmemGenericAllocationHandle physical;
  CUmemAccessDesc access = {};
  access.location = kind->location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult code = driver.create(&physical, bytes, kind, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "physical memory", shown, error);
  code = driver.map(begin, bytes, 0, physical, 0);
  (void)driver.release(physical);
  if (code != CUDA_SUCCESS) return fail_with(code, "mapping", shown, error);
  r->piece[r->count++] = {begin, bytes};
  code = driver.allow(begin, bytes, &access, 1);
  return code == CUDA_SUCCESS ? ASSAY_OK : fail_with(code, "setting access", shown, error);
}

/* Pieces that share a page are mapped as one. */
static assay_status map_range(Range *r, int64_t bytes, const assay_piece *piece, int32_t count, assay_error *error) {
  CUmemAllocationProp kind;
  size_t unit = 0;
  assay_status status = ask_kind(bytes, &kind, &unit, error);
  if (status != ASSAY_OK) return status;
  const size_t whole = (static_cast<size_t>(bytes) + unit - 1) / unit * unit;
  const CUresult code = driver.reserve(&r->reserved, unit + whole + unit, 0, 0, 0);
  if (code != CUDA_SUCCESS) return fail_with(code, "reserving addresses", bytes, error);
  r->reserved_bytes = unit + whole + unit;
  r->memory = r->reserved + unit;
  size_t begin = 0, end = 0; /* pages not yet mapped */
  for (int32_t i = 0; i <= count && status == ASSAY_OK; ++i) {
    const size_t from = i < count ? static_cast<size_t>(piece[i].offset) / unit * unit : whole;
    const size_t to =
        i < count ? (static_cast<size_t>(piece[i].offset + piece[i].bytes) + unit - 1) / unit * unit : whole;
    if (i < count && end > begin && from <= end) {
      end = to > end ? to : end;
      continue;
    }
    if (end > begin) status = map_piece(r, r->memory + begin, end - begin, &kind, error);
    begin = from;
    end = to;
  }
  return status;
}

static assay_status sparse_alloc(int64_t bytes, const assay_piece *piece, int32_t count, void **memory,
                                 assay_error *error) {
  *memory = nullptr;
  assay_status status = assay_device_cuda()->open(error);
  if (status == ASSAY_OK) status = find_driver(error);
  if (status != ASSAY_OK) return status;
  if (count < 1 || count > max_mapped)
    return assay_fail(error, ASSAY_ERR_INPUT, "cuda: pieces of a range: found %d, allowed 1 to %d", count, max_mapped);
  Range *r = static_cast<Range *>(calloc(1, sizeof *r));
  if (r == nullptr) return assay_fail(error, ASSAY_ERR_MEMORY, "cuda: no memory to note a range");
  lock_for(false);
  status = map_range(r, bytes, piece, count, error);
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
  static const assay_sparse sparse = {assay_cuda_host::sparse_alloc, assay_cuda_host::sparse_release};
  return &sparse;
}
