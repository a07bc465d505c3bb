/* copies.cpp: cp.async. A copy takes its bytes when it begins and gives them when its thread waits for its group: the
 * thread itself then writes them (ptx_async.cuh), so that sanitizers see who does. */
#include "simt/scheduler.h"

#include <stdlib.h>

namespace assay_simt_host {

struct Pending {
  assay_simt_copy copy;
  uint32_t group;
  Pending *next;
};

/* Of one thread; of this block only if `block` is its count. */
struct Copies {
  uint64_t block;
  Pending *first, *last;
  uint32_t committed; /* groups */
};

static Copies copies[max_threads];
static Pending *unused;

static Copies *own() {
  Copies *c = &copies[current()->number];
  if (c->block == block.count) return c;
  if (c->first != nullptr) { /* of a block that ended without waiting */
    c->last->next = unused;
    unused = c->first;
  }
  *c = Copies{block.count, nullptr, nullptr, 0};
  return c;
}

void copy_begin(const assay_simt_copy *copy) {
  Copies *c = own();
  Pending *p = unused;
  if (p != nullptr) {
    unused = p->next;
  } else if ((p = static_cast<Pending *>(malloc(sizeof *p))) == nullptr) {
    report(ASSAY_ERR_MEMORY, "no memory for a copy");
    fail();
  }
  *p = Pending{*copy, c->committed, nullptr};
  if (c->first == nullptr)
    c->first = p;
  else
    c->last->next = p;
  c->last = p;
}

void copy_commit() {
  ++own()->committed;
}

bool copy_arrives(int32_t pending, assay_simt_copy *copy) {
  Copies *c = own();
  Pending *p = c->first;
  if (p == nullptr || p->group + static_cast<uint32_t>(pending) >= c->committed) return false;
  *copy = p->copy;
  c->first = p->next;
  p->next = unused;
  unused = p;
  return true;
}

} /* namespace assay_simt_host */
