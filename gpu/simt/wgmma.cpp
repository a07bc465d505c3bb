/* wgmma.cpp: products of a warpgroup. A thread that issues one leaves a note, and its accumulators are NaN from then
 * on. The lanes of a warp wait, after all other threads had their turn. The last lane then reads the operands from
 * shared memory as the engine sees it, and computes the warp's 16 rows for all lanes. Anything that is overwritten too
 * early, not fenced, or read too early therefore gives wrong numbers. */
#include "simt/scheduler.h"

#include <stdlib.h>

#include "gpu/lib/types.cuh"
#include "simt/products.h"
#include "simt/race.h"

namespace assay_simt_host {

using assay_simt_device::bf16;
using assay_simt_device::e4m3;
using assay_simt_device::e5m2;
using assay_simt_device::f16;
using assay_simt_device::to_float;

constexpr uint32_t max_issued = 256, max_accumulators = 6;

struct Issue {
  assay_simt_wgmma product;
  uint32_t accumulator, group;
  const char *file;
  int32_t line;
};

/* A thread's products. Accumulators are kept field by field, because most calls look at all of them. The values of a
 * block's threads are more than the cache holds. */
struct Queue {
  uint64_t block;
  uint64_t total;
  uint32_t first, end; /* issues, modulo max_issued */
  uint32_t committed;
  bool fenced;
  float *d[max_accumulators]; /* NULL: free */
  int32_t n[max_accumulators];
  uint32_t issued[max_accumulators]; /* pending products */
  Issue issue[max_issued];
  float value[max_accumulators][128];
};

static Queue *queues[max_places * max_threads];

[[noreturn]] static void wrong(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: wgmma: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

/* Empties the thread's queue for a new block. */
static __attribute__((noinline)) Queue *new_queue(const Thread *t) {
  Queue *&q = queues[t->slot];
  if (q == nullptr && (q = static_cast<Queue *>(calloc(1, sizeof *q))) == nullptr) {
    report(ASSAY_ERR_MEMORY, "no memory for the products of a thread");
    fail();
  }
  q->block = here->count;
  q->fenced = false;
  q->first = q->end = q->committed = 0;
  q->total = 0;
  for (float *&d : q->d)
    d = nullptr;
  return q;
}

static inline Queue *queue_of(const Thread *t) {
  Queue *const q = queues[t->slot];
  return q != nullptr && q->block == here->count ? q : new_queue(t);
}

uint64_t wgmma_address(const void *shared, const char *file, int32_t line) {
  const int64_t offset = shared_offset(shared, 16);
  if (offset < 0) wrong("descriptor of an address outside of shared memory", file, line);
  if (offset % 16 != 0) wrong("descriptor of an address that is not a multiple of 16", file, line);
  if (offset >= 1 << 18) wrong("descriptor of an address beyond 256 KB", file, line);
  return static_cast<uint64_t>(offset);
}

void wgmma_fence() {
  proxy_watch();
  queue_of(current())->fenced = true;
}

/* Copies field by field. The caller has just stored the fields, and a load of two at once would wait for both stores.
 */
static inline assay_simt_wgmma copy_of(const volatile assay_simt_wgmma *p) {
  return assay_simt_wgmma{p->d,    p->a,       p->descriptor_a, p->descriptor_b, p->n,
                          p->half, p->trans_b, p->accumulate,   p->eight_a,      p->eight_b};
}

void wgmma_issue(const assay_simt_wgmma *product, const char *file, int32_t line) {
  proxy_watch();
  Queue *q = queue_of(current());
  uint32_t a = max_accumulators, unused = max_accumulators;
  for (uint32_t i = 0; i < max_accumulators; ++i) {
    if (q->d[i] == product->d) a = i;
    if (q->d[i] == nullptr) unused = i;
  }
  const bool known = a != max_accumulators;
  if (!q->fenced && (!known || product->a != nullptr))
    wrong("no wgmma_fence since the last wait, after which registers may have been touched", file, line);
  if (q->end - q->first == max_issued) wrong("more than 256 products under way", file, line);
  if (known && q->n[a] != product->n) wrong("accumulators of another shape are under way", file, line);
  if (!known) {
    if (unused == max_accumulators) wrong("more than 6 accumulators under way", file, line);
    a = unused;
    q->d[a] = product->d;
    q->n[a] = product->n;
    q->issued[a] = 0;
    const size_t bytes = sizeof(float) * static_cast<size_t>(product->n / 2);
    race_quiet(true); /* the copy is simt's own: blocks that follow each other share it */
    if (product->accumulate) memcpy(q->value[a], product->d, bytes);
    race_quiet(false);
    memset(product->d, 0xFF, bytes);
  }
  ++q->issued[a];
  if (q->first == q->end) q->first = q->end = 0; /* few entries are in use, so that they stay in the cache */
  q->issue[q->end++ % max_issued] = Issue{copy_of(product), a, q->committed, file, line};
  ++q->total;
}

void wgmma_commit() {
  ++queue_of(current())->committed;
}

void wgmma_wait(int32_t pending, const char *file, int32_t line) {
  yield();
  (void)warp(ASSAY_SIMT_WGMMA_WAIT, 0, 0xFFFFFFFFu, static_cast<uint64_t>(pending), 0, file, line);
  queue_of(current())->fenced = false;
}

/* ---- operands -------------------------------------------------------------------------------------------- */

struct Descriptor {
  int64_t start, leading, stride;
  int64_t chunks; /* chunks of 16 bytes in the swizzle's width; 1 without swizzle */
};

static Descriptor read(uint64_t bits, const Issue &from) {
  const int64_t chunks[] = {1, 8, 4, 2};
  const Descriptor d = {static_cast<int64_t>(bits & 0x3FFFu) << 4, static_cast<int64_t>(bits >> 16 & 0x3FFFu) << 4,
                        static_cast<int64_t>(bits >> 32 & 0x3FFFu) << 4, chunks[bits >> 62]};
  if ((d.start >> 7 & (d.chunks - 1)) != 0)
    wrong("descriptor: the address is not aligned to the swizzle's pattern (1024, 512, 256 bytes)", from.file,
          from.line);
  return d;
}

/* Returns the number of k of one product, and of factors in 16 bytes. */
static int64_t depth_of(const Issue &from) {
  return from.product.eight_a != ASSAY_SIMT_SIXTEEN ? product_depth_eight : product_depth;
}

static void factors_eight(const uint8_t *codes, assay_simt_eight type, float *to) {
  if (type == ASSAY_SIMT_E4M3)
    for (int i = 0; i < 16; ++i)
      to[i] = to_float(e4m3{codes[i]});
  else
    for (int i = 0; i < 16; ++i)
      to[i] = to_float(e5m2{codes[i]});
}

/* Where one operand is read: the engine's view, and the array of shared memory in which the last piece was. */
struct Operand {
  Descriptor descriptor;
  const unsigned char *view;
  int64_t low, high;
};

static Operand operand(uint64_t descriptor, const Issue &from) {
  return Operand{read(descriptor, from), proxy_view(), 0, 0};
}

/* Finds the array that holds the 16 bytes. */
static void find_array(int64_t at, Operand *o, const Issue &from) {
  int64_t offset, bytes;
  for (int i = 0; shared_array(i, &offset, &bytes); ++i) {
    if (at < offset || at + 16 > offset + bytes) continue;
    o->low = offset;
    o->high = offset + bytes;
    return;
  }
  wrong("a descriptor leads outside of its array in shared memory", from.file, from.line);
}

/* Reads 16 bytes of b, or of a: 8 or 16 factors. */
static void chunk(int64_t at, Operand *o, const Issue &from, bool is_b, float *to) {
  at ^= (at >> 7 & (o->descriptor.chunks - 1)) << 4;
  if (at < o->low || at + 16 > o->high) find_array(at, o, from);
  if (from.product.eight_a != ASSAY_SIMT_SIXTEEN) {
    uint8_t codes[16];
    memcpy(codes, o->view + at, sizeof codes);
    factors_eight(codes, is_b ? from.product.eight_b : from.product.eight_a, to);
    return;
  }
  uint16_t bits[8];
  memcpy(bits, o->view + at, sizeof bits);
  if (from.product.half)
    for (int i = 0; i < 8; ++i)
      to[i] = to_float(f16{bits[i]});
  else
    for (int i = 0; i < 8; ++i)
      to[i] = to_float(bf16{bits[i]});
}

/* Reads rows `row` and up of a K-major operand, 32 bytes of k, to to[r * depth + k]. */
static void rows(Operand *o, int64_t row, int64_t count, const Issue &from, bool is_b, float *to) {
  const Descriptor &d = o->descriptor;
  const int64_t depth = depth_of(from);
  const int64_t pitch = d.chunks * 16, next = d.chunks == 1 ? d.leading : 16;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t half = 0; half < 2; ++half)
      chunk(d.start + (row + r) % 8 * pitch + (row + r) / 8 * d.stride + half * next, o, from, is_b,
            to + r * depth + half * depth / 2);
}

/* Turns eight rows at a time: what is written lies together. */
template <int64_t depth> static void turn(int64_t n, const float *from, float *to) {
  for (int64_t i = 0; i < n; i += 8)
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < 8; ++j)
        to[k * n + i + j] = from[(i + j) * depth + k];
}

/* Reads operand b to b[k * n + column]. n is a multiple of 8. */
static void operand_b(const Issue &from, float *b) {
  Operand o = operand(from.product.descriptor_b, from);
  const Descriptor &d = o.descriptor;
  const int64_t n = from.product.n;
  if (!from.product.trans_b) {
    static float turned[256 * product_depth_eight];
    rows(&o, 0, n, from, true, turned);
    if (depth_of(from) == product_depth)
      turn<product_depth>(n, turned, b);
    else
      turn<product_depth_eight>(n, turned, b);
    return;
  }
  for (int64_t k = 0; k < 16; ++k)
    for (int64_t i = 0; i < n / 8; ++i) {
      const int64_t at = d.chunks == 1
                             ? i * d.stride + k / 8 * d.leading + k % 8 * 16
                             : i % d.chunks * 16 + i / d.chunks * d.leading + k % 8 * d.chunks * 16 + k / 8 * d.stride;
      chunk(d.start + at, &o, from, true, b + k * n + i * 8);
    }
}

static void operand_a(const Warp *w, const Issue *const *issue, float *a) {
  if (issue[0]->product.a == nullptr) {
    const int64_t row = w->thread->number / 32 % 4 * 16;
    Operand o = operand(issue[0]->product.descriptor_a, *issue[0]);
    rows(&o, row, 16, *issue[0], false, a);
    return;
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = issue[lane]->product.a[i];
      float *to = a + (lane / 4 + i % 2 * 8) * 16 + lane % 4 * 2 + i / 2 * 8;
      for (int k = 0; k < 2; ++k) {
        const uint16_t bits = static_cast<uint16_t>(pair >> (16 * k));
        to[k] = issue[lane]->product.half ? to_float(f16{bits}) : to_float(bf16{bits});
      }
    }
}

/* ---- the warp's rows ------------------------------------------------------------------------------------- */

static bool alike(const Issue *a, const Issue *b) {
  const assay_simt_wgmma &x = a->product, &y = b->product;
  return x.n == y.n && x.half == y.half && x.eight_a == y.eight_a && x.eight_b == y.eight_b && x.trans_b == y.trans_b &&
         x.accumulate == y.accumulate && (x.a == nullptr) == (y.a == nullptr) &&
         (x.a != nullptr || x.descriptor_a == y.descriptor_a) && x.descriptor_b == y.descriptor_b &&
         a->group == b->group && a->accumulator == b->accumulator;
}

static void multiply(const Warp *w, Queue *const *q, const Issue *const *issue) {
  static float a[16 * product_depth_eight], b[product_depth_eight * 256], d[16 * 256];
  const assay_simt_wgmma &p = issue[0]->product;
  const int64_t n = p.n;
  operand_a(w, issue, a);
  operand_b(*issue[0], b);
  /* Calls use(two of the lane's values, their place in d). */
  const auto each = [&](auto use) {
    for (int lane = 0; lane < 32; ++lane) {
      float *value = q[lane]->value[issue[lane]->accumulator];
      float *const upper = d + lane / 4 * n + lane % 4 * 2, *const lower = upper + 8 * n;
      for (int64_t i = 0; i < n; i += 8, value += 4) {
        use(value, upper + i);
        use(value + 2, lower + i);
      }
    }
  };
  if (p.accumulate)
    each([](float *value, float *at) { memcpy(at, value, 8); });
  else
    memset(d, 0, sizeof(float) * static_cast<size_t>(16 * n));
  const auto least = [](assay_simt_eight type) { return type == ASSAY_SIMT_E4M3 ? -6 : -14; };
  if (p.eight_a != ASSAY_SIMT_SIXTEEN)
    tensor_products_eight(16, n, a, b, least(p.eight_a), least(p.eight_b), d);
  else
    tensor_products(16, n, a, b, p.half, d);
  each([](float *value, float *at) { memcpy(value, at, 8); });
}

static void finish(const Warp *w) {
  Queue *q[32];
  for (int lane = 0; lane < 32; ++lane)
    q[lane] = queue_of(w->thread + lane);
  const uint32_t pending = static_cast<uint32_t>(w->value[0]);
  for (;;) {
    const Issue *issue[32];
    int there = 0;
    for (int lane = 0; lane < 32; ++lane) {
      issue[lane] = &q[lane]->issue[q[lane]->first % max_issued];
      there += q[lane]->first != q[lane]->end && issue[lane]->group + pending < q[lane]->committed;
    }
    if (there == 0) return;
    for (int lane = 0; lane < 32; ++lane)
      if (there != 32 || !alike(issue[0], issue[lane]))
        wrong("the lanes of a warp issued different products", issue[0]->file, issue[0]->line);
    multiply(w, q, issue);
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t a = issue[lane]->accumulator;
      float *const d = q[lane]->d[a];
      const int32_t count = q[lane]->n[a] / 2;
      ++q[lane]->first;
      if (--q[lane]->issued[a] > 0) continue;
      uint32_t all = 0xFFFFFFFFu;
      for (int32_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, d + i, sizeof bits);
        all &= bits;
      }
      if (all != 0xFFFFFFFFu) wrong("accumulators were written before the wait", issue[lane]->file, issue[lane]->line);
      memcpy(d, q[lane]->value[a], sizeof(float) * static_cast<size_t>(count));
      q[lane]->d[a] = nullptr;
    }
  }
}

/* Completes the warp's products. The registers belong to all lanes and are written by one. */
void wgmma_finish(const Warp *w) {
  race_quiet(true);
  finish(w);
  race_quiet(false);
}

bool wgmma_end_block() {
  if (!here->watched) return true;
  for (uint32_t i = 0; i < run.threads; ++i) {
    const Queue *q = queues[here->thread[i].slot], *first = queues[here->thread[i / 128 * 128].slot];
    const uint64_t total = q != nullptr && q->block == here->count ? q->total : 0;
    const uint64_t of_first = first != nullptr && first->block == here->count ? first->total : 0;
    if (total == 0 && of_first == 0) continue;
    if (total != of_first) {
      report(ASSAY_ERR_DEVICE,
             "the warps of a warpgroup issued different numbers of wgmma: thread %u %llu, thread %u %llu", i,
             static_cast<unsigned long long>(total), i / 128 * 128, static_cast<unsigned long long>(of_first));
      return false;
    }
    const Issue *last = &q->issue[(q->end - 1) % max_issued];
    if (q->first != q->end) {
      report(ASSAY_ERR_DEVICE, "thread %u ends without a wait for its wgmma at %s:%d", i, base_name(last->file),
             last->line);
      return false;
    }
  }
  return true;
}

} /* namespace assay_simt_host */
