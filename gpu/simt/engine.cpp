/* engine.cpp: the copy engine. A load takes its bytes from global memory when it is issued, and its place in shared
 * memory is undefined from then on. In half of the launches a load arrives at once. In the others the pending loads
 * arrive in a random order, when no thread can continue without one. A store takes its bytes from the engine's view of
 * shared memory when its thread waits for it to be read. It delivers them to global memory when its thread waits for it
 * or the block ends. A thread that does not wait therefore gets wrong bytes. */
#include "simt/scheduler.h"

#include <stdlib.h>

#include "gpu/lib/tensor_map.h"

namespace assay_simt_host {

using assay_simt_device::swizzle_128;
using assay_simt_device::swizzle_32;
using assay_simt_device::swizzle_64;
using assay_simt_device::swizzle_none;
using assay_simt_device::tensor_map;
using assay_simt_device::tensor_map_made;
using assay_simt_device::tensor_swizzle;

enum Kind : uint8_t { LOAD, STORE, ARRIVE };

struct Item {
  Kind kind;
  bool tensor, taken; /* STORE: the bytes have been read */
  const Thread *thread;
  Block *block;
  assay_simt_bulk copy;
  tensor_map map;
  uint64_t before; /* only for ARRIVE */
  uint32_t bytes, group;
  unsigned char *data; /* the box, dense and not swizzled */
  const char *file;
  int32_t line;
  Item *next;
};

struct Items {
  Item *under_way, *stores; /* under_way: loads and arrivals; stores: oldest last */
  uint32_t under_way_count;
};

static Items items;

struct Groups {
  uint64_t block;
  uint32_t committed;
};
static Groups groups[max_places * max_threads];

static uint32_t *committed(const Thread *t) {
  Groups *g = &groups[t->slot];
  if (g->block != here->count) *g = Groups{here->count, 0};
  return &g->committed;
}

[[noreturn]] static void wrong(const char *what, const char *file, int32_t line) {
  report(ASSAY_ERR_DEVICE, "thread %u: %s at %s:%d", current()->number, what, base_name(file), line);
  fail();
}

static void drop(Item *item) {
  race_quiet(true);
  free(item->data);
  free(item);
  race_quiet(false);
}

uint32_t bulk_check(const assay_simt_bulk *copy, const char *file, int32_t line) {
  proxy_watch();
  int64_t bytes = copy->bytes;
  if (copy->map != nullptr) {
    tensor_map map;
    memcpy(&map, copy->map, sizeof map);
    if (map.made != tensor_map_made) wrong("the tensor map was not made by tensor_map_make", file, line);
    if (map.shape.rank != copy->rank) wrong("the tensor map has another rank", file, line);
    if (reinterpret_cast<uintptr_t>(copy->shared) % 128 != 0)
      wrong("tensor copy: the shared address is not a multiple of 128", file, line);
    bytes = map.shape.element_bytes;
    for (int32_t i = 0; i < map.shape.rank; ++i)
      bytes *= map.shape.box[i];
  } else {
    const uintptr_t all = reinterpret_cast<uintptr_t>(copy->shared) | reinterpret_cast<uintptr_t>(copy->global);
    if (all % 16 != 0 || bytes % 16 != 0)
      wrong("bulk copy: addresses and bytes are not all multiples of 16", file, line);
    if (bytes == 0) wrong("bulk copy of 0 bytes", file, line);
  }
  if (shared_offset(copy->shared, bytes) < 0) wrong("copy beyond its array in shared memory", file, line);
  if (copy->barrier != nullptr) {
    const int64_t offset = shared_offset(copy->barrier, 8);
    if (offset < 0 || !mbarrier_valid(proxy_word(offset)))
      wrong("copy: the mbarrier was not made, or no mbarrier_fence_init came after", file, line);
  }
  return static_cast<uint32_t>(bytes);
}

/* Checks a load that is about to start. The thread then overwrites the destination, up to bulk_load. That is no access
 * of its own, since ThreadSanitizer knows the copy engine. */
uint32_t load_check(const assay_simt_bulk *copy, const char *file, int32_t line) {
  const uint32_t bytes = bulk_check(copy, file, line);
  race_quiet(true);
  return bytes;
}

static Item *make(Kind kind, const assay_simt_bulk *copy, uint32_t bytes, const char *file, int32_t line) {
  race_quiet(true);
  Item *item = static_cast<Item *>(malloc(sizeof *item));
  unsigned char *data = static_cast<unsigned char *>(malloc(bytes > 0 ? bytes : 1));
  race_quiet(false);
  if (item == nullptr || data == nullptr) {
    free(item);
    free(data);
    report(ASSAY_ERR_MEMORY, "no memory for a copy");
    fail();
  }
  *item = Item{kind, copy->map != nullptr, false, current(), here, *copy, {}, 0, bytes, 0, data, file, line, nullptr};
  if (item->tensor) memcpy(&item->map, copy->map, sizeof item->map);
  return item;
}

/* Calls use(row, bytes before the tensor, bytes inside, address of the first byte inside) for each row of the box. */
template <class Use> static void each_row(const Item *item, Use use) {
  const auto &s = item->map.shape;
  const int64_t row = static_cast<int64_t>(s.box[0]) * s.element_bytes;
  const int64_t rows = item->bytes / row;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t rest = i, offset = 0;
    bool inside = true;
    for (int32_t k = 1; k < s.rank; ++k) {
      const int64_t at = item->copy.at[k] + rest % s.box[k];
      rest /= s.box[k];
      inside = inside && at >= 0 && at < s.extent[k];
      offset += at * s.stride[k];
    }
    const int64_t first = item->copy.at[0], last = first + s.box[0];
    const int64_t from = first < 0 ? 0 : first, to = last > s.extent[0] ? s.extent[0] : last;
    if (inside && from < to)
      use(i * row + (from - first) * s.element_bytes, (to - from) * s.element_bytes,
          item->map.base + offset + from * s.element_bytes);
  }
}

static int64_t swizzled(int64_t at, tensor_swizzle swizzle) {
  const int64_t mask = swizzle == swizzle_128 ? 7 : swizzle == swizzle_64 ? 3 : swizzle == swizzle_32 ? 1 : 0;
  return at ^ ((at >> 7 & mask) << 4);
}

/* Copies bytes that the running thread reads; the destination is the engine's own. */
static void fetch(void *to, const void *from, size_t bytes) {
  race_read(from, bytes);
  race_quiet(true);
  memcpy(to, from, bytes);
  race_quiet(false);
}

/* Completes one pending item, drawn at random. */
static void step();

/* Makes an item pending. If it may arrive early, it does: a thread that still reads the previous contents then reads
 * the new ones. */
static void start(Item *item) {
  item->next = items.under_way;
  items.under_way = item;
  ++items.under_way_count;
  if (run.eager) step();
}

void bulk_load(const assay_simt_bulk *copy, const char *file, int32_t line) {
  const uint32_t bytes = bulk_check(copy, file, line);
  race_quiet(false);
  Item *item = make(LOAD, copy, bytes, file, line);
  if (item->tensor) {
    race_quiet(true);
    memset(item->data, 0, bytes);
    race_quiet(false);
    each_row(item, [item](int64_t at, int64_t count, const char *from) {
      fetch(item->data + at, from, static_cast<size_t>(count));
    });
  } else {
    fetch(item->data, copy->global, bytes);
  }
  race_engine(copy->shared, bytes, copy->barrier, file, line);
  proxy_poison(shared_offset(copy->shared, bytes), bytes);
  race_release(copy->barrier);
  start(item);
}

void engine_arrive(uint64_t *barrier, uint64_t before, const char *file, int32_t line) {
  const assay_simt_bulk none = {};
  Item *item = make(ARRIVE, &none, 0, file, line);
  item->copy.barrier = barrier;
  item->before = before;
  start(item);
}

static void land(const Item *item) {
  const int64_t offset = shared_offset(item->copy.shared, item->bytes);
  const tensor_swizzle swizzle = item->tensor ? item->map.shape.swizzle : swizzle_none;
  race_quiet(true);
  for (int64_t i = 0; i < item->bytes; i += 16)
    proxy_write(swizzled(offset + i, swizzle), item->data + i, 16);
  race_quiet(false);
}

static void step() {
  Item **at = &items.under_way;
  for (uint64_t skip = draw() % items.under_way_count; skip > 0; --skip)
    at = &(*at)->next;
  Item *item = *at;
  *at = item->next;
  --items.under_way_count;
  uint32_t arrivals = 0;
  run.polls = 0;
  Block *const before = here;
  here = item->block;
  if (item->kind == LOAD) {
    land(item);
  } else {
    copy_finish(item->thread, item->before);
    arrivals = 1;
  }
  mbarrier_complete(item->copy.barrier, arrivals, item->bytes, item->file, item->line);
  here = before;
  drop(item);
}

Thread *engine_run() {
  while (items.under_way != nullptr) {
    step();
    Thread *next = pop();
    if (next != nullptr) return next;
  }
  return nullptr;
}

void engine_idle() {
  if (items.under_way != nullptr && draw() % 16 == 0) step();
}

/* ---- stores --------------------------------------------------------------------------------------------------- */

void bulk_store(const assay_simt_bulk *copy, const char *file, int32_t line) {
  const uint32_t bytes = bulk_check(copy, file, line);
  Item *item = make(STORE, copy, bytes, file, line);
  item->group = *committed(current());
  item->next = items.stores;
  items.stores = item;
}

void bulk_commit() {
  ++*committed(current());
}

static void take(Item *item) {
  if (item->taken) return;
  item->taken = true;
  const int64_t offset = shared_offset(item->copy.shared, item->bytes);
  const tensor_swizzle swizzle = item->tensor ? item->map.shape.swizzle : swizzle_none;
  for (int64_t i = 0; i < item->bytes; i += 16)
    memcpy(item->data + i, proxy_view() + swizzled(offset + i, swizzle), 16);
}

/* A GPU stores 16 bytes at a time. Where a row of the tensor ends within them, it stores what is beyond too. An H200
 * showed it (docs/log/2026-11-28-h200-merged-again.md). */
static void give(const Item *item) {
  if (item->tensor)
    each_row(item, [item](int64_t at, int64_t count, char *to) {
      memcpy(to, item->data + at, static_cast<size_t>((count + 15) / 16 * 16));
    });
  else
    memcpy(item->copy.global, item->data, item->bytes);
}

void bulk_wait(int32_t pending, bool only_read) {
  const Thread *self = current();
  const uint32_t begun = *committed(self);
  for (Item **at = &items.stores; *at != nullptr;) {
    Item *item = *at;
    if (item->thread != self || item->group + static_cast<uint32_t>(pending) >= begun) {
      at = &item->next;
      continue;
    }
    take(item);
    if (only_read) {
      at = &item->next;
      continue;
    }
    give(item);
    *at = item->next;
    drop(item);
  }
}

bool engine_end_block() {
  for (const Item *list : {items.under_way, items.stores})
    for (const Item *item = list; item != nullptr; item = item->next) {
      if (item->block != here || item->taken) continue;
      report(ASSAY_ERR_DEVICE, "the block ends while a copy of thread %u, issued at %s:%d, still %s its shared memory",
             item->thread->number, base_name(item->file), item->line, item->kind == STORE ? "reads" : "writes");
      return false;
    }
  for (Item **at = &items.stores; *at != nullptr;) {
    Item *item = *at;
    if (item->block != here) {
      at = &item->next;
      continue;
    }
    *at = item->next;
    give(item);
    drop(item);
  }
  return true;
}

static void drop_all(const Items *all) {
  for (Item *list : {all->under_way, all->stores})
    while (list != nullptr) {
      Item *next = list->next;
      drop(list);
      list = next;
    }
}

void engine_drop() {
  drop_all(&items);
  items = Items{};
}

static Items aside;

void engine_put_aside() {
  aside = items;
  items = Items{};
}

void engine_take_up() {
  drop_all(&items);
  items = aside;
  aside = Items{};
}

} /* namespace assay_simt_host */
