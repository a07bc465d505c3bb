/* named.cpp: barriers 1 to 15, each for the number of threads that the calls name. A thread that only arrives continues
 * at once. */
#include "simt/scheduler.h"

namespace assay_simt_host {

static void illegal(const char *what, uint32_t found, const char *file, int32_t line) {
  report(ASSAY_ERR_HANG, "illegal barrier: thread %u: %s, found %u at %s:%d", current()->number, what, found,
         base_name(file), line);
  fail();
}

static void release(NamedBarrier *b, uint32_t id) {
  b->arrived = 0;
  run.polls = 0;
  if (here->watched) proxy_release();
  for (uint32_t i = 0; i < run.threads; ++i) {
    Thread *t = &here->thread[i];
    if (t->state != AT_NAMED || t->source != id) continue;
    t->state = READY;
    race_acquire(b, t);
    push_back(t);
  }
}

void named_barrier(assay_simt_op op, uint32_t id, uint32_t threads, const char *file, int32_t line) {
  Thread *self = current();
  if (id < 1 || id > 15) illegal("a named barrier's number is not 1 to 15", id, file, line);
  if (threads == 0 || threads % 32 != 0 || threads > (run.threads + 31) / 32 * 32)
    illegal("a named barrier's threads are not whole warps of the block", threads, file, line);
  NamedBarrier *b = &here->named[id];
  if (b->arrived != 0 && b->threads != threads) {
    report(ASSAY_ERR_HANG, "illegal barrier: named barrier %u: thread %u at %s:%d names %u threads, one before it %u",
           id, self->number, base_name(file), line, threads, b->threads);
    fail();
  }
  b->threads = threads;
  race_release(b);
  if (op == ASSAY_SIMT_NAMED_ARRIVE) {
    if (++b->arrived == threads) release(b, id);
    return;
  }
  self->state = AT_NAMED;
  self->op = op;
  self->source = id;
  self->file = file;
  self->line = line;
  if (++b->arrived == threads) release(b, id);
  wait_for_turn();
}

} /* namespace assay_simt_host */
