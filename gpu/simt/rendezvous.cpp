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
  if (here->exited > 0) note_barrier();
  if (here->watched) proxy_release();
  run.polls = 0;
  here->result = here->votes;
  if (op == ASSAY_SIMT_SYNCTHREADS_AND) here->result = here->votes == static_cast<int32_t>(here->at_barrier);
  if (op == ASSAY_SIMT_SYNCTHREADS_OR) here->result = here->votes != 0;
  here->votes = 0;
  here->at_barrier = 0;
  if (race_checked) {
    Thread *met[race_checked ? max_threads : 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < run.threads; ++i)
      if (here->thread[i].state == AT_BARRIER) met[count++] = &here->thread[i];
    race_meet(count, met);
  }
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
  self->state = READY;
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

/* Gives the lanes of the mask their turns. They go from a random lane on, upwards or downwards, before or after all
 * others. */
static void push_lanes(const Warp *w, uint32_t mask) {
  const uint64_t bits = draw();
  const uint32_t from = static_cast<uint32_t>(bits >> 20) & 31u, first = w->thread->slot;
  const bool in_front = (bits >> 30 & 1u) != 0, downwards = (bits >> 31 & 1u) != 0;
  uint32_t at = in_front ? run.head - 1 : run.tail;
  const uint32_t step = in_front ? ~0u : 1u, turned = downwards ? 31 : 0;
  const uint32_t lowest = (in_front ? at - 31 : at) & run.ring_mask;
  if (mask == ~0u && lowest + 31 <= run.ring_mask) {
    const uint32_t reversed = turned ^ (in_front ? 31u : 0u);
    for (uint32_t i = 0; i < 32; ++i)
      run.ring[lowest + i] = static_cast<uint16_t>(first + (((i ^ reversed) + from) & 31u));
    (in_front ? run.head : run.tail) += 32 * step;
    return;
  }
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t lane = ((i ^ turned) + from) & 31u;
    if ((mask >> lane & 1u) == 0) continue;
    run.ring[at & run.ring_mask] = static_cast<uint16_t>(first + lane);
    at += step;
  }
  if (in_front)
    run.head = at + 1;
  else
    run.tail = at;
}

/* Computes what every lane of the mask gets, and gives the lanes their turns. The values are computed here so that no
 * lane can overwrite what another has yet to read. */
static void release_lanes(Warp *w, assay_simt_op op, uint32_t bytes, uint32_t mask) {
  Thread *thread = w->thread;
  uint64_t *const value = w->value;
  if (race_checked && op == ASSAY_SIMT_SYNCWARP) {
    Thread *met[race_checked ? 32 : 1];
    uint32_t count = 0;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      met[count++] = &thread[__builtin_ctz(m)];
    race_meet(count, met);
  }
  if (bytes != 0) {
    uint64_t given[32];
    memcpy(given, value, sizeof given);
    for (uint32_t i = 0; mask == ~0u && i < 32; ++i)
      value[i] = given[w->source[i] & 31u];
    for (uint32_t m = mask != ~0u ? mask : 0; m != 0; m &= m - 1) {
      const int lane = __builtin_ctz(m);
      const uint32_t source = w->source[lane];
      value[lane] = (mask >> source & 1u) != 0 ? given[source] : ~UINT64_C(0);
    }
  } else if (op >= ASSAY_SIMT_MMA) {
    collective(w, op);
  } else if (op == ASSAY_SIMT_REDUCE_ADD || op == ASSAY_SIMT_REDUCE_MAX) {
    uint32_t sum = 0;
    int32_t most = INT32_MIN;
    for (uint32_t m = mask; m != 0; m &= m - 1) {
      const uint32_t given = static_cast<uint32_t>(value[__builtin_ctz(m)]);
      sum += given;
      most = std::max(most, static_cast<int32_t>(given));
    }
    for (uint32_t m = mask; m != 0; m &= m - 1)
      value[__builtin_ctz(m)] = op == ASSAY_SIMT_REDUCE_ADD ? sum : static_cast<uint32_t>(most);
  } else if (op != ASSAY_SIMT_SYNCWARP) {
    uint32_t ballot = 0;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      ballot |= static_cast<uint32_t>(value[__builtin_ctz(m)]) << __builtin_ctz(m);
    const uint64_t vote = op == ASSAY_SIMT_BALLOT ? ballot : op == ASSAY_SIMT_ANY ? ballot != 0 : ballot == mask;
    for (uint32_t m = mask; m != 0; m &= m - 1)
      value[__builtin_ctz(m)] = vote;
  }
  w->waiting &= ~mask;
  run.polls = 0;
  push_lanes(w, mask);
}

uint64_t warp(assay_simt_op op, uint32_t bytes, uint32_t mask, uint64_t value, uint32_t source, const char *file,
              int32_t line) {
  Thread *self = current();
  Warp *w = self->warp;
  const uint32_t lane = self->lane, own = 1u << lane;
  self->op = op;
  self->bytes = bytes;
  self->mask = mask;
  self->file = file;
  self->line = line;
  w->source[lane] = source;
  w->value[lane] = value;
  if ((mask & own) == 0 || (mask & (w->exited | ~w->present)) != 0) check_mask(self, mask);
  /* Mostly it is the rendezvous that began last. Otherwise the first lane of the mask that waits for the same one knows
   * its leader. */
  const uint64_t name = static_cast<uint64_t>(mask) << 32 | static_cast<uint64_t>(bytes) << 16 | op;
  uint32_t leader = w->last_leader;
  if (w->last != name || (w->waiting >> leader & 1u) == 0) {
    leader = lane;
    for (uint32_t m = mask & w->waiting; m != 0; m &= m - 1) {
      const Thread &t = w->thread[__builtin_ctz(m)];
      if (t.mask == mask && t.op == op && t.bytes == bytes) {
        leader = w->leader[t.lane];
        break;
      }
    }
    if (leader == lane) {
      w->arrived[lane] = 0;
      w->last = name;
      w->last_leader = lane;
    }
  }
  w->leader[lane] = leader;
  w->arrived[leader] |= own;
  w->waiting |= own;
  self->state = AT_WARP;
  if (w->arrived[leader] == mask) release_lanes(w, op, bytes, mask);
  wait_for_turn();
  self->state = READY;
  return w->value[lane];
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
