/* rendezvous.cpp: where threads wait for each other.
 *
 * __syncthreads releases when every thread of the block that has not ended has arrived. A warp rendezvous is identified
 * by operation, size and mask, and releases when all lanes of the mask have arrived. Lanes with other masks or
 * operations are at other rendezvous. Whether these can ever complete shows when no thread can continue
 * (report.cpp). */
#include "simt/scheduler.h"

namespace assay_simt_host {

/* Releases the block's barrier. The result is computed here: by the time a slow thread reads it, a fast one may have
 * ended. */
static void release_barrier(assay_simt_op op) {
  if (here->watched) proxy_release();
  run.polls = 0;
  here->result = here->votes;
  if (op == ASSAY_SIMT_SYNCTHREADS_AND) here->result = here->votes == static_cast<int32_t>(here->at_barrier);
  if (op == ASSAY_SIMT_SYNCTHREADS_OR) here->result = here->votes != 0;
  here->votes = 0;
  here->at_barrier = 0;
  Thread *met[race_checked ? max_threads : 1];
  uint32_t count = 0;
  for (uint32_t i = 0; i < run.threads; ++i) {
    if (here->thread[i].state != AT_BARRIER) continue;
    here->thread[i].state = READY;
    if (race_checked) met[count++] = &here->thread[i];
  }
  race_meet(count, met);
  push_all();
}

static bool same_place(const Thread *a, const Thread *b) {
  return a->op == b->op && a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

int32_t barrier(assay_simt_op op, int32_t predicate, const char *file, int32_t line) {
  Thread *self = current();
  self->state = AT_BARRIER;
  self->op = op;
  self->file = file;
  self->line = line;
  here->votes += predicate != 0;
  if (here->at_barrier++ == 0) here->first = self;
  if (!same_place(here->first, self)) {
    report(ASSAY_ERR_HANG,
           "illegal barrier: thread %u waits at %s:%d, thread %u at %s:%d: CUDA defines a barrier only where all "
           "threads meet at the same one",
           here->first->number, base_name(here->first->file), here->first->line, self->number, base_name(file), line);
    fail();
  }
  if (here->at_barrier + here->exited == run.threads) release_barrier(op);
  wait_for_turn();
  return here->result;
}

static void check_mask(const Thread *self, uint32_t mask) {
  const char *wrong = nullptr;
  uint32_t lanes = 0;
  if ((mask >> self->lane & 1u) == 0) {
    wrong = "lacks the calling lane";
    lanes = 1u << self->lane;
  } else if ((mask & ~self->warp->present) != 0) {
    wrong = "names a lane that the block does not have: lane";
    lanes = mask & ~self->warp->present;
  } else if ((mask & self->warp->exited) != 0) {
    wrong = "names a lane that has exited: lane";
    lanes = mask & self->warp->exited;
  }
  if (wrong == nullptr) return;
  report(ASSAY_ERR_HANG, "illegal mask: thread %u (lane %u) calls %s with mask 0x%08x at %s:%d, which %s %d",
         self->number, self->lane, op_name(self->op), mask, base_name(self->file), self->line, wrong,
         __builtin_ctz(lanes));
  fail();
}

/* Computes what every lane of the mask gets, and gives the lanes their turns. They go from a random lane on, upwards or
 * downwards, before or after all others. The values are computed here so that no lane can overwrite what another has
 * yet to read. */
static void release_lanes(Warp *w, assay_simt_op op, uint32_t bytes, uint32_t mask) {
  Thread *thread = w->thread;
  if (race_checked && op == ASSAY_SIMT_SYNCWARP) {
    Thread *met[race_checked ? 32 : 1];
    uint32_t count = 0;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      met[count++] = &thread[__builtin_ctz(m)];
    race_meet(count, met);
  }
  if (bytes != 0) {
    uint64_t given[32];
    for (uint32_t m = mask; m != 0; m &= m - 1)
      given[__builtin_ctz(m)] = thread[__builtin_ctz(m)].value;
    for (uint32_t m = mask; m != 0; m &= m - 1) {
      Thread &t = thread[__builtin_ctz(m)];
      t.value = (mask >> t.source & 1u) != 0 ? given[t.source] : ~UINT64_C(0);
    }
  } else if (op >= ASSAY_SIMT_MMA) {
    collective(w, op);
  } else if (op == ASSAY_SIMT_REDUCE_ADD || op == ASSAY_SIMT_REDUCE_MAX) {
    uint32_t sum = 0;
    int32_t most = INT32_MIN;
    for (uint32_t m = mask; m != 0; m &= m - 1) {
      const uint32_t given = static_cast<uint32_t>(thread[__builtin_ctz(m)].value);
      sum += given;
      most = std::max(most, static_cast<int32_t>(given));
    }
    for (uint32_t m = mask; m != 0; m &= m - 1)
      thread[__builtin_ctz(m)].value = op == ASSAY_SIMT_REDUCE_ADD ? sum : static_cast<uint32_t>(most);
  } else if (op != ASSAY_SIMT_SYNCWARP) {
    uint32_t ballot = 0;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      ballot |= static_cast<uint32_t>(thread[__builtin_ctz(m)].value) << __builtin_ctz(m);
    const uint64_t value = op == ASSAY_SIMT_BALLOT ? ballot : op == ASSAY_SIMT_ANY ? ballot != 0 : ballot == mask;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      thread[__builtin_ctz(m)].value = value;
  }
  w->waiting &= ~mask;
  run.polls = 0;
  const uint64_t bits = draw();
  const uint32_t from = static_cast<uint32_t>(bits >> 20) & 31u;
  const bool in_front = (bits >> 30 & 1u) != 0, downwards = (bits >> 31 & 1u) != 0;
  for (uint32_t m = std::rotr(mask, static_cast<int>(from)); m != 0;) {
    const uint32_t i = static_cast<uint32_t>(downwards ? 31 - __builtin_clz(m) : __builtin_ctz(m));
    m &= ~(1u << i);
    Thread *t = thread + ((i + from) & 31u);
    t->state = READY;
    if (in_front)
      push_front(t);
    else
      push_back(t);
  }
}

uint64_t warp(assay_simt_op op, uint32_t bytes, uint32_t mask, uint64_t value, uint32_t source, const char *file,
              int32_t line) {
  Thread *self = current();
  Warp *w = self->warp;
  const uint32_t own = 1u << self->lane;
  self->op = op;
  self->bytes = bytes;
  self->mask = mask;
  self->source = source;
  self->value = value;
  self->file = file;
  self->line = line;
  if ((mask & own) == 0 || (mask & (w->exited | ~w->present)) != 0) check_mask(self, mask);
  /* The first lane of the mask that waits for the same rendezvous knows its leader. */
  uint32_t leader = self->lane;
  for (uint32_t m = mask & w->waiting; m != 0; m &= m - 1) {
    const Thread &t = w->thread[__builtin_ctz(m)];
    if (t.mask == mask && t.op == op && t.bytes == bytes) {
      leader = w->leader[t.lane];
      break;
    }
  }
  if (leader == self->lane) w->arrived[leader] = 0;
  w->leader[self->lane] = leader;
  w->arrived[leader] |= own;
  w->waiting |= own;
  self->state = AT_WARP;
  if (w->arrived[leader] == mask) release_lanes(w, op, bytes, mask);
  wait_for_turn();
  return self->value;
}

void thread_ended(Thread *self) {
  Warp *w = self->warp;
  self->state = EXITED;
  w->exited |= 1u << self->lane;
  ++here->exited;
  run.polls = 0;
  cluster_thread_ended();
  for (uint32_t m = w->waiting; m != 0; m &= m - 1) {
    const Thread &t = w->thread[__builtin_ctz(m)];
    if ((t.mask >> self->lane & 1u) != 0) check_mask(&t, t.mask);
  }
  if (here->at_barrier != 0 && here->at_barrier + here->exited == run.threads) release_barrier(here->first->op);
}

} /* namespace assay_simt_host */
