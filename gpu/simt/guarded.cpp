/* guarded.cpp: memory between unmapped pages. An access outside of it raises SIGSEGV. */
#include <sys/mman.h>
#include <unistd.h>

#include <assay/device.h>

#include "simt/scheduler.h"

namespace assay_simt_host {

/* A region before its memory: [here][unmapped][memory][unmapped]. Its own page tells release() the size. */
struct Region {
  size_t bytes; /* size of the whole region */
};

constexpr size_t unmapped = static_cast<size_t>(ASSAY_UNMAPPED_BYTES);

assay_status guarded_alloc(int64_t bytes, void **memory, int64_t *capacity, assay_error *error) {
  *memory = nullptr;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t wanted = bytes > 0 ? static_cast<size_t>(bytes) : 1, inside = (wanted + page - 1) / page * page;
  const size_t all = page + unmapped + inside + unmapped;
  void *from = bytes >= 0 && bytes < (int64_t{1} << 46)
                   ? mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                   : MAP_FAILED;
  char *const base = static_cast<char *>(from), *const begin = base + page + unmapped;
  if (from == MAP_FAILED)
    return assay_fail(error, ASSAY_ERR_MEMORY, "simt: guarded alloc of %lld bytes", static_cast<long long>(bytes));
  if (mprotect(base, page, PROT_READ | PROT_WRITE) != 0 || mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) {
    (void)munmap(from, all);
    return assay_fail(error, ASSAY_ERR_MEMORY, "simt: guarded alloc of %lld bytes: protecting its ends",
                      static_cast<long long>(bytes));
  }
  reinterpret_cast<Region *>(base)->bytes = all;
  *memory = begin;
  *capacity = static_cast<int64_t>(inside);
  return ASSAY_OK;
}

void guarded_release(void *memory) {
  if (memory == nullptr) return;
  char *const base = static_cast<char *>(memory) - unmapped - static_cast<size_t>(sysconf(_SC_PAGESIZE));
  (void)munmap(base, reinterpret_cast<Region *>(base)->bytes);
}

} /* namespace assay_simt_host */
