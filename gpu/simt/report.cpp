/* report.cpp: describes what went wrong in a launch, in one message. It names the kernel, the block, and groups of
 * threads with the source line at which they stand. */
#include "simt/scheduler.h"

namespace assay_simt_host {

/* Text that stops growing when it is full; its end then says so. */
struct Text {
  char at[1400];
  size_t length;
};

static void add(Text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(Text *text, const char *format, ...) {
  if (text->length >= sizeof text->at - 1) return;
  va_list list;
  va_start(list, format);
  const int n = vsnprintf(text->at + text->length, sizeof text->at - text->length, format, list);
  va_end(list);
  text->length += n > 0 ? static_cast<size_t>(n) : 0;
}

const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

const char *op_name(assay_simt_op op) {
  static const char *const names[ASSAY_SIMT_OP_COUNT] = {"__syncthreads",
                                                         "__syncthreads_count",
                                                         "__syncthreads_and",
                                                         "__syncthreads_or",
                                                         "__syncwarp",
                                                         "__shfl_sync",
                                                         "__shfl_up_sync",
                                                         "__shfl_down_sync",
                                                         "__shfl_xor_sync",
                                                         "__ballot_sync",
                                                         "__any_sync",
                                                         "__all_sync",
                                                         "__reduce_add_sync",
                                                         "__reduce_max_sync",
                                                         "mma",
                                                         "ldmatrix",
                                                         "stmatrix",
                                                         "wgmma_wait",
                                                         "named_barrier_sync",
                                                         "named_barrier_arrive",
                                                         "mbarrier_wait",
                                                         "cluster_wait",
                                                         "registers_more",
                                                         "dependency_wait",
                                                         "load_acquire"};
  return names[op];
}

void report(assay_status status, const char *format, ...) {
  if (run.status != ASSAY_OK) return;
  run.status = status;
  Text text;
  text.length = 0;
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text.at, sizeof text.at, format, list);
  va_end(list);
  const char *name = run.launch->name; /* "(kernel<A, B>)", as the macro received it */
  int length = static_cast<int>(strlen(name));
  if (name[0] == '(' && name[length - 1] == ')') {
    ++name;
    length -= 2;
  }
  (void)assay_fail(run.error, status, "%.*s, block (%u,%u,%u): %s", length, name, now.block_index.x, now.block_index.y,
                   now.block_index.z, text.at);
}

/* Adds "threads 0-31, 40" for the threads of a warp in `lanes`, or of consecutive numbers. */
static void add_lanes(Text *text, const Warp *w, uint32_t lanes) {
  const char *separator = "";
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    uint32_t last = lane;
    while (last < 31 && (lanes >> (last + 1) & 1u) != 0)
      ++last;
    const unsigned base = w->thread->number;
    add(text, last > lane ? "%s%u-%u" : "%s%u", separator, base + lane, base + last);
    separator = ",";
    lane = last;
  }
}

static uint32_t missing(const Thread *t) {
  return t->mask & ~t->warp->arrived[t->warp->leader[t->lane]];
}

static bool alike(const Thread *a, const Thread *b) {
  if (a->state != b->state) return false;
  if (a->state == EXITED || a->state == READY) return true;
  const bool place = a->op == b->op && a->line == b->line && strcmp(a->file, b->file) == 0;
  return place && (a->state != AT_NAMED || a->source == b->source) &&
         (a->state != AT_MBARRIER || (a->value == b->value && a->source == b->source)) &&
         (a->state != AT_WARP || (a->mask == b->mask && a->bytes == b->bytes && a->warp == b->warp));
}

static void add_state(Text *text, const Thread *t) {
  if (t->state == EXITED || t->state == READY) {
    add(text, t->state == EXITED ? "exited" : "polls");
    return;
  }
  add(text, "%s", op_name(t->op));
  if (t->state == AT_WARP) add(text, " with mask 0x%08x", t->mask);
  if (t->state == AT_NAMED)
    add(text, " %u, where %u of %u threads are,", t->source, block_of(t)->named[t->source].arrived,
        block_of(t)->named[t->source].threads);
  if (t->state == AT_MBARRIER) {
    char about[120];
    mbarrier_describe(reinterpret_cast<const uint64_t *>(static_cast<uintptr_t>(t->value)), about, sizeof about);
    add(text, " for parity %u of %s", t->source, about);
  }
  add(text, " at %s:%d", base_name(t->file), t->line);
  if (t->state == AT_WARP) {
    add(text, ", waiting for ");
    add_lanes(text, t->warp, missing(t));
  }
}

/* Finds two lanes that can never meet: they name each other but came with different masks or to different
 * operations. */
static bool find_disagreement(const Thread **a, const Thread **b) {
  for (uint32_t i = 0; i < run.threads; ++i) {
    const Thread *t = &here->thread[i];
    if (t->state != AT_WARP) continue;
    for (uint32_t m = t->mask & t->warp->waiting; m != 0; m &= m - 1) {
      const Thread *u = t->warp->thread + __builtin_ctz(m);
      const bool same = u->mask == t->mask && u->op == t->op && u->bytes == t->bytes;
      if (same || (u->mask >> t->lane & 1u) == 0) continue;
      *a = t;
      *b = u;
      return true;
    }
  }
  return false;
}

static void add_threads(Text *text, const Block *b) {
  for (uint32_t i = 0; i < run.threads;) {
    const Thread *t = &b->thread[i];
    uint32_t end = i + 1;
    while (end < run.threads && alike(t, &b->thread[end]))
      ++end;
    if (text->length > sizeof text->at - 240) {
      add(text, "; and threads from %u on", i);
      break;
    }
    add(text, i == 0 ? "" : "; ");
    add(text, end - i > 1 ? "threads %u-%u: " : "thread %u: ", i, end - 1);
    add_state(text, t);
    i = end;
  }
}

/* The first note, until it is asked for. */
static Text noted;

void note_barrier() {
  if (noted.length > 0) return;
  uint32_t ended = 0;
  while (here->thread[ended].state != EXITED)
    ++ended;
  add(&noted, "%u of %u threads ended without the barrier at %s:%d, thread %u first", here->exited, run.threads,
      base_name(here->first->file), here->first->line, ended);
}

const char *launch_note() {
  const bool any = noted.length > 0;
  noted.length = 0;
  return any ? noted.at : nullptr;
}

void report_hang() {
  Text text;
  text.length = 0;
  text.at[0] = '\0';
  const Thread *a = nullptr, *b = nullptr;
  const char *headline = "hang: every thread waits";
  if (find_disagreement(&a, &b))
    headline = a->mask != b->mask ? "illegal mask: lanes name each other with different masks"
                                  : "illegal mask: lanes of one mask meet in different operations";
  add_threads(&text, here);
  for (uint32_t p = run.first_place; p < run.first_place + run.places; ++p) {
    if (&blocks[p] == here || blocks[p].exited == run.threads) continue;
    if (text.length > sizeof text.at - 300) {
      add(&text, "; and other blocks");
      break;
    }
    add(&text, "; block (%u,%u,%u): ", blocks[p].index.x, blocks[p].index.y, blocks[p].index.z);
    add_threads(&text, &blocks[p]);
  }
  report(ASSAY_ERR_HANG, "%s: %s", headline, text.at);
}

} /* namespace assay_simt_host */
