/* mbarrier.cpp: a barrier is its 64 bits in shared memory, so that a barrier that was never made or was overwritten is
 * recognised. The fields are:
 *
 *   bits 0..19   arrivals of a phase
 *   bits 20..39  missing arrivals
 *   bits 40..60  bytes that were announced and have not arrived, plus 2^20
 *   bit 61       parity of the phase
 *   bits 62..63  10; in fresh memory they are 11 or 01 */
#include "simt/scheduler.h"

namespace assay_simt_host {

struct Fields {
  uint32_t count, missing;
  int32_t bytes;
  uint32_t parity;
};

constexpr uint32_t field = (1u << 20) - 1;
constexpr int32_t max_bytes = 1 << 20;

bool mbarrier_valid(uint64_t word) {
  return word >> 62 == 2;
}

static Fields unpack(uint64_t word) {
  return Fields{static_cast<uint32_t>(word) & field, static_cast<uint32_t>(word >> 20) & field,
                static_cast<int32_t>(word >> 40 & 0x1FFFFFu) - max_bytes, static_cast<uint32_t>(word >> 61 & 1u)};
}

[[noreturn]] static void wrong(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: mbarrier: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

/* Writes the barrier's state. If the engine knows the barrier, the engine's view gets the state too. */
static void write(uint64_t *barrier, const Fields &f) {
  const uint64_t word = static_cast<uint64_t>(f.count) | static_cast<uint64_t>(f.missing) << 20 |
                        static_cast<uint64_t>(f.bytes + max_bytes) << 40 | static_cast<uint64_t>(f.parity) << 61 |
                        UINT64_C(2) << 62;
  const int64_t offset = shared_offset(barrier, 8);
  race_quiet(true);
  if (mbarrier_valid(proxy_word(offset)))
    proxy_write(offset, &word, 8);
  else
    memcpy(barrier, &word, 8);
  race_quiet(false);
}

/* Reads the barrier's state. used: the running thread uses the barrier. It is false for the engine, which runs on a
 * thread that has nothing to do with the barrier and may have ended. */
static Fields read(const uint64_t *barrier, const char *file, int32_t line, bool used = true) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0 || shared_offset(barrier, 8) < 0)
    wrong("it is not 8 aligned bytes of shared memory", file, line);
  proxy_watch();
  if (used) race_used(barrier);
  uint64_t word;
  memcpy(&word, barrier, 8);
  if (!mbarrier_valid(word)) wrong("used before it was made, or overwritten since", file, line);
  return unpack(word);
}

void mbarrier_init(uint64_t *barrier, uint32_t count, const char *file, int32_t line) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0 || shared_offset(barrier, 8) < 0)
    wrong("it is not 8 aligned bytes of shared memory", file, line);
  if (count < 1 || count > field) wrong("its count is not 1 to 2^20 - 1", file, line);
  proxy_watch();
  uint64_t before;
  memcpy(&before, barrier, 8);
  if (mbarrier_valid(before)) wrong("made again", file, line);
  race_made(barrier);
  write(barrier, Fields{count, count, 0, 0});
}

/* Changes the barrier's state. A phase ends when nothing is missing. The threads that waited for it then continue,
 * before all others or after them. */
static void change(uint64_t *barrier, Fields f) {
  const bool over = f.missing == 0 && f.bytes == 0;
  if (over) {
    f.missing = f.count;
    f.parity ^= 1u;
  }
  write(barrier, f);
  if (!over) return;
  proxy_phase();
  run.polls = 0;
  uint32_t warps = 0;
  const bool in_front = (draw() >> 30 & 1u) != 0;
  for (uint32_t i = 0; i < run.threads; ++i) {
    Thread *t = &here->thread[i];
    if (t->state != AT_MBARRIER || t->value != reinterpret_cast<uintptr_t>(barrier) || t->source == f.parity) continue;
    t->state = READY;
    warps |= 1u << (t->number / 32);
    race_acquire(barrier, t);
    if (in_front)
      push_front(t);
    else
      push_back(t);
  }
  proxy_waited(barrier, warps);
}

void mbarrier_complete(uint64_t *barrier, uint32_t arrivals, uint32_t bytes, const char *file, int32_t line) {
  Fields f = read(barrier, file, line, false);
  if (arrivals > f.missing) wrong("more arrivals than its count", file, line);
  f.missing -= arrivals;
  f.bytes -= static_cast<int32_t>(bytes);
  if (f.bytes < -max_bytes) wrong("more than 2^20 bytes have come that nobody announced", file, line);
  change(barrier, f);
}

/* Arrives at a barrier of another block of the cluster. */
static void arrive_there(Block *there, uint64_t *barrier, const char *file, int32_t line) {
  Block *const before = here;
  race_release(barrier);
  if (here->watched) proxy_release();
  here = there;
  mbarrier_complete(barrier, 1, 0, file, line);
  here = before;
}

void mbarrier_arrive(uint64_t *barrier, bool expect, uint32_t bytes, const char *file, int32_t line) {
  if (Block *const there = cluster_other(barrier); there != nullptr) {
    if (expect) wrong("bytes announced to another block", file, line);
    arrive_there(there, barrier, file, line);
    return;
  }
  Fields f = read(barrier, file, line);
  if (f.missing == 0) wrong("more arrivals than its count", file, line);
  if (expect && static_cast<int64_t>(f.bytes) + bytes >= max_bytes) wrong("2^20 bytes announced, or more", file, line);
  race_release(barrier);
  --f.missing;
  if (expect) f.bytes += static_cast<int32_t>(bytes);
  change(barrier, f);
}

void mbarrier_wait(uint64_t *barrier, uint32_t parity, const char *file, int32_t line) {
  Thread *self = current();
  if (parity > 1) wrong("waited for a parity that is not 0 or 1", file, line);
  if (read(barrier, file, line).parity != parity) {
    race_acquire(barrier, self);
    proxy_waited(barrier, 1u << (self->number / 32));
    return;
  }
  self->state = AT_MBARRIER;
  self->op = ASSAY_SIMT_MBARRIER_WAIT;
  self->value = reinterpret_cast<uintptr_t>(barrier);
  self->source = parity;
  self->file = file;
  self->line = line;
  wait_for_turn();
}

void mbarrier_describe(const uint64_t *barrier, char *text, size_t size) {
  uint64_t word;
  memcpy(&word, barrier, 8);
  const Fields f = unpack(word);
  (void)snprintf(text, size, "%s, byte %lld (%u of %u arrivals, %d bytes missing)", shared_name(barrier),
                 static_cast<long long>(shared_offset(barrier, 8)), f.missing, f.count, f.bytes);
}

} /* namespace assay_simt_host */
