/* cluster.cpp: what blocks have to do with each other and with the previous launch; registers that change hands. */
#include "simt/scheduler.h"

namespace assay_simt_host {

[[noreturn]] static void wrong(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

static void wait_at(State state, assay_simt_op op, const char *file, int32_t line) {
  Thread *self = current();
  self->state = state;
  self->op = op;
  self->file = file;
  self->line = line;
  wait_for_turn();
}

/* Lets the threads that wait like this continue, in the places from `first` on. */
static void wake(State state, uint32_t first, uint32_t places, void *object) {
  run.polls = 0;
  for (uint32_t p = first; p < first + places; ++p)
    for (uint32_t i = 0; i < run.threads; ++i) {
      Thread *t = &blocks[p].thread[i];
      if (t->state != state) continue;
      t->state = READY;
      if (object != nullptr) race_acquire(object, t);
      push_back(t);
    }
}

/* ---- clusters --------------------------------------------------------------------------------------------- */

uint32_t cluster_rank() {
  return here->rank;
}

uint32_t cluster_size() {
  return static_cast<uint32_t>(run.launch->cluster);
}

static uint32_t first_place() {
  return here->place - here->rank;
}

static void arrived() {
  Cluster *c = here->cluster;
  if (++c->arrived < cluster_size() * run.threads) return;
  c->arrived = 0;
  for (uint32_t p = first_place(); p < first_place() + cluster_size(); ++p)
    c->arrived += blocks[p].exited; /* exited threads count in every phase */
  ++c->phase;
  wake(AT_CLUSTER, first_place(), cluster_size(), c);
}

void cluster_arrive(const char *file, int32_t line) {
  Thread *self = current();
  if (self->arrived != 0) wrong("cluster_arrive again before cluster_wait", file, line);
  self->arrived = here->cluster->phase + 1;
  race_release(here->cluster);
  if (here->watched) proxy_release();
  arrived();
}

void cluster_wait(const char *file, int32_t line) {
  Thread *self = current();
  if (self->arrived == 0) wrong("cluster_wait without cluster_arrive", file, line);
  const bool over = self->arrived <= here->cluster->phase;
  self->arrived = 0;
  if (over)
    race_acquire(here->cluster, self);
  else
    wait_at(AT_CLUSTER, ASSAY_SIMT_CLUSTER_WAIT, file, line);
}

void cluster_thread_ended() {
  if (cluster_size() > 1 && current()->arrived != here->cluster->phase + 1) arrived();
}

void *cluster_shared(const void *shared, uint32_t rank, const char *file, int32_t line) {
  if (rank >= cluster_size()) wrong("cluster_shared: no block of the cluster has this rank", file, line);
  if (shared_offset(shared, 1) < 0) wrong("cluster_shared: not the address of own shared memory", file, line);
  const Block *there = &blocks[first_place() + rank];
  if (there->exited == run.threads) wrong("cluster_shared: that block has ended", file, line);
  const int64_t offset = (static_cast<int64_t>(rank) - here->rank) * shared_arena_bytes;
  return const_cast<char *>(static_cast<const char *>(shared)) + offset;
}

Block *cluster_other(const void *shared) {
  for (uint32_t p = first_place(); p < first_place() + cluster_size(); ++p) {
    const uintptr_t from = reinterpret_cast<uintptr_t>(shared_arenas[p]), at = reinterpret_cast<uintptr_t>(shared);
    if (p != here->place && at >= from && at - from < shared_arena_bytes) return &blocks[p];
  }
  return nullptr;
}

/* ---- polls, dependent launches ---------------------------------------------------------------------------- */

void poll(const char *file, int32_t line) {
  Thread *self = current();
  self->state = POLLS;
  self->op = ASSAY_SIMT_POLL;
  self->file = file;
  self->line = line;
  yield();
  self->state = READY;
}

static int dependency; /* an address */

void dependency_wait(const char *file, int32_t line) {
  if (run.waits_for) wait_at(AT_DEPENDENCY, ASSAY_SIMT_DEPENDENCY_WAIT, file, line);
}

void dependency_met() {
  race_release(&dependency);
  wake(AT_DEPENDENCY, run.first_place, run.places, &dependency);
}

/* ---- registers -------------------------------------------------------------------------------------------- */

/* Returns the share that a launch gives every thread of the 65,536 registers. */
static uint32_t share() {
  const uint32_t all = 65536 / run.threads / 8 * 8;
  return all < 256 ? all : 256;
}

void registers(int32_t count, bool more, const char *file, int32_t line) {
  Warp *w = current()->warp;
  const uint32_t wanted = static_cast<uint32_t>(count);
  for (;;) {
    const uint32_t has = w->registers != 0 ? w->registers : share();
    if (has == wanted) break;
    if (more != (wanted > has))
      wrong(more ? "registers_more: the warp has more" : "registers_fewer: the warp has fewer", file, line);
    const int32_t change = count - static_cast<int32_t>(has);
    if (change <= here->registers) {
      here->registers -= change;
      w->registers = wanted;
      wake(AT_REGISTERS, here->place, 1, nullptr);
      break;
    }
    current()->source = wanted;
    wait_at(AT_REGISTERS, ASSAY_SIMT_REGISTERS, file, line);
  }
}

bool registers_end_block() {
  for (uint32_t w = 0; w < run.warps; ++w) {
    if (here->warp[w].registers == here->warp[w / 4 * 4].registers) continue;
    report(ASSAY_ERR_DEVICE, "the warps of a warpgroup have different numbers of registers: warp %u and warp %u",
           w / 4 * 4, w);
    return false;
  }
  return true;
}

} /* namespace assay_simt_host */
