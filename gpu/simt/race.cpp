/* race.cpp: tells ThreadSanitizer CUDA's order of memory, and makes its first report the error of the launch. */
#include "simt/scheduler.h"

#ifdef ASSAY_SIMT_TSAN

#include <stdio.h>

extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_set_fiber_name(void *fiber, const char *name);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
void __tsan_java_init(uintptr_t begin, uintptr_t bytes);
void __tsan_java_alloc(uintptr_t address, uintptr_t bytes);
void __tsan_java_free(uintptr_t address, uintptr_t bytes);
void __tsan_atomic32_store(volatile int *address, int value, int order);
int64_t __tsan_atomic64_load(const volatile int64_t *address, int order);
void __tsan_write8(void *address);
void __tsan_read_range(void *address, uintptr_t bytes);
void __tsan_write_range(void *address, uintptr_t bytes);
int __tsan_get_report_data(void *report, const char **description, int *count, int *stacks, int *accesses,
                           int *locations, int *mutexes, int *threads, int *unique_tids, void **sleep_trace,
                           uintptr_t trace_size);
int __tsan_get_report_mop(void *report, uintptr_t index, int *tid, void **address, int *size, int *write, int *atomic,
                          void **trace, uintptr_t trace_size);
int __tsan_get_report_thread(void *report, uintptr_t index, int *tid, uint64_t *os_id, int *running, const char **name,
                             int *parent, void **trace, uintptr_t trace_size);
void __sanitizer_symbolize_pc(void *pc, const char *format, char *text, size_t size);
void __tsan_on_report(void *report);
const char *__tsan_default_options(void);
}

namespace assay_simt_host {

constexpr unsigned no_order = 1; /* __tsan_switch_to_fiber_no_sync */
constexpr int release_order = 3; /* the number that clang gives memory_order_release for its runtime */
constexpr uint32_t max_recent = 4;

/* A CUDA thread as TSan must know it: its fiber, and atomics since its last fence. */
struct Track {
  void *fiber;
  bool fenced, ignoring;
  uint32_t recent_count;
  const void *recent[max_recent];
};

static Track track[max_places * max_threads];
static void *host;
static const Thread *running;
/* Threads that have a fiber: of the previous block, not yet destroyed, or of this one. */
static uint32_t fibers[max_places];
/* Number of neighbouring threads that share a fiber: 1 in half of the launches, and a warp in the others, by the seed.
 * TSan knows 256 threads at a time. The next thread takes the place of the first one, and a thread that meets it has
 * then seen everything that the first ever did. With one fiber per thread, that is everything the previous block
 * did. */
static uint32_t sharing[max_places];
static bool by_warps;
static int meeting, ending;
static const char engine_name[] = "the copy engine";
/* The copy engine of each block that is under way, and what proxy fences of the block's threads have told it. */
static void *engine[max_places];
static int told[max_places];
/* The last copy that was started; now: its writes are being told to TSan. */
static struct {
  const char *file;
  int32_t line;
  bool now;
} copying;
static bool found;
static char text[1200];

static Track *own() {
  return &track[running->slot];
}

void race_turn(const Thread *thread) {
  running = thread;
  __tsan_switch_to_fiber(thread != nullptr ? track[thread->slot].fiber : host, no_order);
}

static void destroy_fibers(uint32_t place) {
  for (uint32_t i = 0; i < fibers[place]; i += sharing[place])
    __tsan_destroy_fiber(track[place * max_threads + i].fiber);
  if (fibers[place] > 0) __tsan_destroy_fiber(engine[place]);
  fibers[place] = 0;
}

static void back_to_running() {
  __tsan_switch_to_fiber(running != nullptr ? track[running->slot].fiber : host, no_order);
}

void race_begin_launch(bool within) {
  by_warps = (run.random >> 33 & 1u) != 0;
  if (within) return;
  host = __tsan_get_current_fiber();
  found = false;
  text[0] = '\0';
  race_quiet(true);
}

/* Begins a block. A fiber begins with what its creator, the host, has seen: nothing of the launch's other blocks. */
void race_begin_block() {
  destroy_fibers(here->place);
  const uint32_t share = by_warps ? 32 : 1;
  for (uint32_t i = 0; i < run.threads; ++i) {
    Track *const t = &track[here->place * max_threads + i];
    *t = Track{};
    if (i % share != 0) {
      t->fiber = track[here->place * max_threads + i / share * share].fiber;
      continue;
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%s %u of block (%u,%u,%u)", by_warps ? "warp" : "thread", i / share,
                   now.block_index.x, now.block_index.y, now.block_index.z);
    t->fiber = __tsan_create_fiber(0);
    __tsan_set_fiber_name(t->fiber, name);
  }
  char name[64];
  (void)snprintf(name, sizeof name, "%s of block (%u,%u,%u)", engine_name, now.block_index.x, now.block_index.y,
                 now.block_index.z);
  engine[here->place] = __tsan_create_fiber(0);
  __tsan_set_fiber_name(engine[here->place], name);
  fibers[here->place] = run.threads;
  sharing[here->place] = share;
}

void race_fresh(const void *from, size_t bytes) {
  static bool begun;
  const uintptr_t at = reinterpret_cast<uintptr_t>(from) / 8 * 8;
  bytes = (bytes + 7) / 8 * 8;
  if (bytes == 0) return;
  if (!begun) __tsan_java_init(at, bytes);
  begun = true;
  __tsan_java_alloc(at, bytes);
  __tsan_java_free(at, 8);
}

/* Lets all threads see what all of them did. It is done at once for all when the last thread has arrived, so that a
 * fast thread's next steps are not included. */
void race_meet(uint32_t count, Thread *const *threads) {
  for (uint32_t i = 0; i < count; ++i) {
    __tsan_switch_to_fiber(track[threads[i]->slot].fiber, no_order);
    if (i == 0)
      __tsan_atomic32_store(&meeting, 0, release_order); /* forgets the previous meeting */
    else
      __tsan_release(&meeting);
  }
  for (uint32_t i = 0; i < count; ++i) {
    __tsan_switch_to_fiber(track[threads[i]->slot].fiber, no_order);
    __tsan_acquire(&meeting);
  }
  back_to_running();
}

void race_release(void *object) {
  __tsan_release(object);
}

void race_acquire(void *object, const Thread *thread) {
  __tsan_switch_to_fiber(track[thread->slot].fiber, no_order);
  __tsan_acquire(object);
  back_to_running();
}

void race_end_thread() {
  __tsan_release(&ending);
}

/* Ends the launch. After an error threads remain where they were; the host has waited for all of them anyway. */
void race_end_launch(bool within) {
  for (uint32_t place = run.first_place; run.failed && place < run.first_place + run.places; ++place)
    for (uint32_t i = 0; i < fibers[place]; i += sharing[place]) {
      __tsan_switch_to_fiber(track[place * max_threads + i].fiber, no_order);
      __tsan_release(&ending);
    }
  race_turn(nullptr);
  __tsan_acquire(&ending);
  for (uint32_t place = run.first_place; place < run.first_place + run.places; ++place)
    destroy_fibers(place);
  if (!within) race_quiet(false);
}

void race_quiet(bool begin) {
  if (begin)
    __tsan_ignore_thread_begin();
  else
    __tsan_ignore_thread_end();
}

void race_check() {
  if (!found) return;
  if (own()->ignoring) {
    own()->ignoring = false;
    race_quiet(false);
  }
  report(ASSAY_ERR_RACE, "%s", text);
  fail();
}

void race_read(const void *from, size_t bytes) {
  __tsan_read_range(const_cast<void *>(from), bytes);
}

void race_made(uint64_t *word) {
  __tsan_write8(word);
}

void race_used(const uint64_t *word) {
  (void)__tsan_atomic64_load(reinterpret_cast<const int64_t *>(word), 0);
}

void race_proxy() {
  __tsan_release(&told[here->place]);
}

void race_engine(void *to, size_t bytes, void *barrier, const char *file, int32_t line) {
  copying = {file, line, true};
  __tsan_switch_to_fiber(engine[here->place], no_order);
  __tsan_acquire(&told[here->place]);
  __tsan_write_range(to, bytes);
  __tsan_release(barrier);
  back_to_running();
  copying.now = false;
  if (!found || own()->ignoring) return;
  own()->ignoring = true;
  race_quiet(true);
}

/* Orders an atomic with fences. A fence followed by an atomic: the address passes on what the thread did. An atomic
 * followed by a fence: the thread has seen what the address passed on. */
void race_atomic(const void *address) {
  Track *t = own();
  if (t->fenced) __tsan_release(const_cast<void *>(address));
  for (uint32_t i = 0; i < t->recent_count; ++i)
    if (t->recent[i] == address) return;
  if (t->recent_count == max_recent) {
    for (uint32_t i = 1; i < max_recent; ++i)
      t->recent[i - 1] = t->recent[i];
    --t->recent_count;
  }
  t->recent[t->recent_count++] = address;
}

void race_fence() {
  Track *t = own();
  for (uint32_t i = 0; i < t->recent_count; ++i)
    __tsan_acquire(const_cast<void *>(t->recent[i]));
  t->recent_count = 0;
  t->fenced = true;
}

/* ---- TSan's report ------------------------------------------------------------------------------------- */

static void append(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void append(const char *format, ...) {
  const size_t length = strlen(text);
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text + length, sizeof text - length, format, list);
  va_end(list);
}

/* Appends the innermost line, as in "gate_attention.cu:109", and, if that is in a header, the kernel's line. */
static void append_lines(void *const *trace, int depth) {
  char innermost[160] = "";
  for (int i = 0; i < depth && trace[i] != nullptr; ++i) {
    char lines[1024] = "";
    __sanitizer_symbolize_pc(trace[i], "%s:%l", lines, sizeof lines - 2);
    for (const char *line = lines; *line != '\0'; line += strlen(line) + 1) {
      if (strstr(line, "<null>") != nullptr) continue; /* the runtime's own, for memset and similar functions */
      const char *base = base_name(line);
      if (innermost[0] == '\0') {
        (void)snprintf(innermost, sizeof innermost, "%s", base);
        append("%s", base);
      }
      if (strstr(innermost, ".cu:") != nullptr) return;
      if (strstr(base, ".cu:") == nullptr) continue;
      append(" in %s", base);
      return;
    }
  }
}

static const char *name_of(void *report, int threads, int wanted) {
  for (int i = 0; i < threads; ++i) {
    int tid = 0, alive = 0, parent = 0;
    uint64_t os_id = 0;
    const char *name = nullptr;
    void *trace[1] = {nullptr};
    (void)__tsan_get_report_thread(report, static_cast<uintptr_t>(i), &tid, &os_id, &alive, &name, &parent, trace, 1);
    if (tid == wanted && name != nullptr) return name;
  }
  return "another thread";
}

static void describe(void *report) {
  const char *what = nullptr;
  int count = 0, stacks = 0, accesses = 0, locations = 0, mutexes = 0, threads = 0, tids = 0;
  void *sleep[1] = {nullptr};
  (void)__tsan_get_report_data(report, &what, &count, &stacks, &accesses, &locations, &mutexes, &threads, &tids, sleep,
                               1);
  append("%s:", what != nullptr ? what : "report");
  for (int i = 0; i < accesses && i < 2; ++i) {
    int tid = 0, size = 0, write = 0, atomic = 0;
    void *address = nullptr;
    void *trace[16] = {nullptr};
    (void)__tsan_get_report_mop(report, static_cast<uintptr_t>(i), &tid, &address, &size, &write, &atomic, trace, 16);
    if (i == 0) append(" %s, %d bytes:", shared_name(address), size);
    const char *const name = name_of(report, threads, tid);
    append("%s %s%s by %s at ", i == 0 ? "" : ", and before it", atomic != 0 ? "atomic " : "",
           write != 0 ? "write" : "read", name);
    if (strncmp(name, engine_name, strlen(engine_name)) == 0)
      append("%s:%d%s", base_name(copying.file), copying.line,
             copying.now ? ", without a proxy fence after what was before" : " or an earlier copy");
    else
      append_lines(trace, by_warps ? 2 : 16); /* further callers may belong to any thread of the warp */
  }
}

} /* namespace assay_simt_host */

/* Makes the first report of a launch its error. The thread continues unobserved to its next rendezvous. */
void __tsan_on_report(void *report) {
  using namespace assay_simt_host;
  if (running == nullptr || found) return;
  found = true;
  race_quiet(true);
  describe(report);
  if (copying.now)
    race_quiet(false); /* race_engine does the rest */
  else
    own()->ignoring = true;
}

/* Returns options with which every launch reports its races anew. Races are results, so the process ends as it would
 * without them. */
const char *__tsan_default_options(void) {
  return "suppress_equal_stacks=0:suppress_equal_addresses=0:report_thread_leaks=0:report_signal_unsafe=0:report_"
         "destroy_locked=0:exitcode=0:halt_on_error=0:history_size=7:log_path=stderr";
}

#endif
