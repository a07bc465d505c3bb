/* uploads.cpp: uploads while work is done late. They behave as if a launch wrote the data: it is there once the
 * following work has waited. Until then its place is undefined (all bits set). */
#include <stdlib.h>

#include "simt/scheduler.h"

namespace assay_simt_host {

struct Upload {
  void *to;
  int64_t bytes;
  Upload *next;
};

static Upload *first, **end = &first;

/* Larger uploads are done at once: two copies of them would cost more than they show. */
constexpr int64_t most_bytes = int64_t{64} << 20;

bool uploads_wait() {
  return first != nullptr;
}

bool upload_put_off(void *to, const void *from, int64_t bytes) {
  if (bytes <= 0 || bytes > most_bytes) return false;
  Upload *const made = static_cast<Upload *>(malloc(sizeof *made + static_cast<size_t>(bytes)));
  if (made == nullptr) return false;
  *made = Upload{to, bytes, nullptr};
  memcpy(made + 1, from, static_cast<size_t>(bytes));
  memset(to, 0xFF, static_cast<size_t>(bytes));
  *end = made;
  end = &made->next;
  return true;
}

void uploads_run() {
  while (first != nullptr) {
    Upload *const one = first;
    memcpy(one->to, one + 1, static_cast<size_t>(one->bytes));
    first = one->next;
    free(one);
  }
  end = &first;
}

} /* namespace assay_simt_host */
