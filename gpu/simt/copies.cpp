/* copies.cpp: cp.async. A copy takes its bytes when it begins and delivers them when its thread waits for its group.
 * The thread itself then writes them (ptx_async.cuh), so that sanitizers see which thread does. */
#include "simt/scheduler.h"

#include <stdlib.h>

namespace assay_simt_host {

struct Pending {
  assay_simt_copy copy;
  uint32_t group;
  uint64_t number;         /* counts the thread's copies */
  const uint64_t *barrier; /* the first barrier that reports the copy */
  Pending *next;
};

/* The copies of one thread. They belong to this block only if `block` is its count. */
struct Copies {
  uint64_t block;
  Pending *first, *last;
  uint32_t committed; /* groups */
  uint64_t begun;
};

static Copies copies[max_places * max_threads];
static Pending *unused;

static Copies *own() {
  Copies *c = &copies[current()->slot];
  if (c->block == here->count) return c;
  if (c->first != nullptr) { /* from a block that ended without waiting */
    c->last->next = unused;
    unused = c->first;
  }
  *c = Copies{here->count, nullptr, nullptr, 0, 0};
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
  *p = Pending{*copy, c->committed, c->begun++, nullptr, nullptr};
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

void copy_arrive(uint64_t *barrier, const char *file, int32_t line) {
  race_release(barrier);
  for (Pending *p = own()->first; p != nullptr; p = p->next)
    if (p->barrier == nullptr) p->barrier = barrier;
  engine_arrive(barrier, own()->begun, file, line);
}

/* Finishes copies on behalf of the engine. The bytes that it writes belong to the generic view: a thread that has
 * waited must call a fence before wgmma reads them. */
void copy_finish(const Thread *thread, uint64_t before) {
  Copies *c = &copies[thread->slot];
  while (c->first != nullptr && c->first->number < before) {
    Pending *p = c->first;
    const int64_t offset = shared_offset(p->copy.to, 16);
    proxy_settle();
    memcpy(p->copy.to, p->copy.data, sizeof p->copy.data);
    if (offset >= 0) proxy_foreign(offset, 16, p->barrier);
    c->first = p->next;
    p->next = unused;
    unused = p;
  }
}

} /* namespace assay_simt_host */
