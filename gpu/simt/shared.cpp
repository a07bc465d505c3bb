/* shared.cpp: the shared memory of the running blocks. Each block has an arena, and all arenas have one layout. First
 * comes the dynamic part, then each static array when it is first met, with redzones before, between and after them.
 * Memory starts as bytes 0xFF, which are NaN in every floating type. In half of the launches under a seed it starts as
 * bytes 0x7F, which are large numbers in f32 and bf16. A redzone is filled with words that are NaN, and checked when
 * the block ends. Under AddressSanitizer an access to a redzone is reported where it happens. */
#include <stdlib.h>

#include "simt/scheduler.h"

namespace assay_simt_host {

static constexpr int64_t redzone = 128, max_static = 48 * 1024, max_total = 227 * 1024, max_arrays = 64;
static constexpr uint16_t redzone_word = 0xFFA5; /* NaN as f16, as bf16 and, twice, as f32 */

struct Array {
  const char *name, *file; /* file NULL: the dynamic part */
  int32_t line;
  int64_t offset, bytes;
  const assay_simt_site *site;
};

/* The arenas. An array of alignment 16 begins 16 bytes after a multiple of 128, so that nothing is better aligned than
 * promised. */
alignas(1024) unsigned char shared_arenas[max_places][shared_arena_bytes];
/* The layout, which is the same for all blocks of a launch. used: up to the end of the last redzone. */
struct Layout {
  Array arrays[max_arrays];
  int count;
  int64_t used, static_bytes, dynamic_bytes;
};

static Layout layout;

/* The dynamic part begins at 128. After it there is room to begin at 1024 instead, if the kernel asks for it. */
static constexpr int64_t moved_to = 1024, room = moved_to - redzone;

/* Returns redzone bytes from an even address on, one more than the longest redzone with its gap. */
static const unsigned char *pattern() {
  static unsigned char bytes[4098];
  if (bytes[0] == 0)
    for (size_t i = 0; i < sizeof bytes; i += 2)
      memcpy(bytes + i, &redzone_word, 2);
  return bytes;
}

static void poison(unsigned char *arena, int64_t from, int64_t to) {
  memcpy(arena + from, pattern() + (from & 1), static_cast<size_t>(to - from));
#ifdef ASSAY_SIMT_ASAN
  __asan_poison_memory_region(arena + from, static_cast<size_t>(to - from));
#endif
}

static void unpoison(unsigned char *arena, int64_t from, int64_t to) {
#ifdef ASSAY_SIMT_ASAN
  __asan_unpoison_memory_region(arena + from, static_cast<size_t>(to - from));
#else
  (void)arena;
  (void)from;
  (void)to;
#endif
}

/* Fills memory with the launch's byte. To MemorySanitizer it is uninitialised. */
static void make_fresh(unsigned char *at, int64_t bytes) {
  memset(at, run.fresh, static_cast<size_t>(bytes));
#ifdef ASSAY_SIMT_MSAN
  __msan_allocated_memory(at, static_cast<size_t>(bytes));
#endif
}

/* Lays out in every arena of the launch: redzone up to `offset`, an array, redzone up to `end`. */
static void lay_out(int64_t from, int64_t offset, int64_t bytes, int64_t end) {
  for (uint32_t p = run.first_place; p < run.first_place + run.places; ++p) {
    unsigned char *const arena = shared_arenas[p];
    unpoison(arena, from, end);
    poison(arena, from, offset);
    make_fresh(arena + offset, bytes);
    poison(arena, offset + bytes, end);
  }
}

/* Appends an array and its redzone. The gap before it belongs to the redzone of the previous array. */
static int64_t append(const char *name, const char *file, int32_t line, int64_t bytes, int64_t align,
                      const assay_simt_site *site) {
  const int64_t rounded = (layout.used + 127) / 128 * 128;
  const int64_t offset = (rounded + align - 1) / align * align + align % 128;
  const int64_t end = offset + bytes + redzone;
  lay_out(layout.used, offset, bytes, end);
  layout.arrays[layout.count++] = Array{name, file, line, offset, bytes, site};
  if (site != nullptr) proxy_extend(layout.used, end);
  layout.used = end;
  return offset;
}

assay_status shared_begin_launch(int64_t bytes, assay_error *error) {
  if (bytes > max_total)
    return assay_fail(error, ASSAY_ERR_DEVICE, "shared memory: found %lld bytes, allowed 0 to %lld",
                      static_cast<long long>(bytes), static_cast<long long>(max_total));
  shared_end_launch();
  layout.count = 0;
  layout.used = redzone;
  layout.static_bytes = 0;
  layout.dynamic_bytes = bytes;
  lay_out(0, redzone, 0, redzone);
  (void)append("dynamic shared memory", nullptr, 0, bytes, 128, nullptr);
  if (bytes > 0) {
    lay_out(layout.used, layout.used, 0, layout.used + room);
    layout.used += room;
  }
  return ASSAY_OK;
}

void *shared_dynamic() {
  return shared_arena() + layout.arrays[0].offset;
}

void *shared_dynamic_1024() {
  Array &a = layout.arrays[0];
  if (a.bytes > 0 && a.offset != moved_to) {
    race_quiet(true);
    lay_out(0, moved_to, a.bytes, moved_to + a.bytes + redzone);
    a.offset = moved_to;
    race_quiet(false);
  }
  return now.dynamic_shared = shared_dynamic();
}

void shared_begin_block() {
  unsigned char *const arena = shared_arena();
  race_fresh(arena, static_cast<size_t>(layout.used)); /* another block's shared memory is other memory */
  for (int i = 0; i < layout.count; ++i)
    make_fresh(arena + layout.arrays[i].offset, layout.arrays[i].bytes);
}

/* Returns the first byte of [from, to) that no longer has its redzone value, or `to` if there is none. */
static int64_t first_written(int64_t from, int64_t to) {
  unsigned char *const arena = shared_arena();
  unpoison(arena, from, to);
  int64_t i = to;
  if (memcmp(arena + from, pattern() + (from & 1), static_cast<size_t>(to - from)) != 0)
    for (i = from; arena[i] == pattern()[i & 1];)
      ++i;
  if (i == to) poison(arena, from, to);
  return i;
}

bool shared_end_block() {
  for (int i = -1; i < layout.count; ++i) {
    const int64_t from = i < 0 ? 0 : layout.arrays[i].offset + layout.arrays[i].bytes;
    const int64_t to = i + 1 < layout.count ? layout.arrays[i + 1].offset : layout.used;
    const int64_t at = first_written(from, to);
    if (at == to) continue;
    char where[256] = "";
    const Array &a = layout.arrays[i < 0 ? 0 : i];
    if (a.file != nullptr) (void)snprintf(where, sizeof where, " (%s:%d)", base_name(a.file), a.line);
    report(ASSAY_ERR_DEVICE, "shared memory overrun: byte %lld of %s%s was written, which has %lld bytes",
           static_cast<long long>(at - a.offset), a.name, where, static_cast<long long>(a.bytes));
    return false;
  }
  return true;
}

void shared_end_launch() {
  for (uint32_t p = run.first_place; p < run.first_place + run.places; ++p)
    unpoison(shared_arenas[p], 0, shared_arena_bytes);
}

Layout *shared_put_aside() {
  Layout *kept = static_cast<Layout *>(malloc(sizeof *kept));
  if (kept != nullptr) *kept = layout;
  return kept;
}

void shared_take_up(Layout *kept) {
  layout = *kept;
  free(kept);
}

void shared_site(assay_simt_site *site) {
  unsigned char *const arena = shared_arenas[run.first_place];
  for (int i = 1; i < layout.count; ++i) { /* known before a launch that ran in between */
    const Array &a = layout.arrays[i];
    if (a.site != site) continue;
    site->memory = arena + a.offset;
    site->launch = now.launch;
    return;
  }
  if (site->bytes > max_static - layout.static_bytes) {
    report(ASSAY_ERR_DEVICE,
           "static shared memory: %s at %s:%d needs %lld bytes after %lld others, allowed are %lld in all", site->name,
           base_name(site->file), site->line, static_cast<long long>(site->bytes),
           static_cast<long long>(layout.static_bytes), static_cast<long long>(max_static));
    fail();
  }
  if (site->bytes > max_total - layout.static_bytes - layout.dynamic_bytes || layout.count == max_arrays) {
    report(ASSAY_ERR_DEVICE,
           "shared memory: %s at %s:%d needs %lld bytes after %lld static and %lld dynamic ones in %d arrays, allowed "
           "are %lld in %lld",
           site->name, base_name(site->file), site->line, static_cast<long long>(site->bytes),
           static_cast<long long>(layout.static_bytes), static_cast<long long>(layout.dynamic_bytes), layout.count - 1,
           static_cast<long long>(max_total), static_cast<long long>(max_arrays - 1));
    fail();
  }
  layout.static_bytes += site->bytes;
  race_quiet(true);
  site->memory = arena + append(site->name, site->file, site->line, site->bytes, site->align, site);
  site->launch = now.launch;
  race_quiet(false);
}

int64_t shared_offset(const void *address, int64_t bytes) {
  const int64_t at = static_cast<const unsigned char *>(address) - shared_arena();
  for (int i = 0; i < layout.count; ++i)
    if (at >= layout.arrays[i].offset && at + bytes <= layout.arrays[i].offset + layout.arrays[i].bytes) return at;
  return -1;
}

bool shared_array(int i, int64_t *offset, int64_t *bytes) {
  if (i >= layout.count) return false;
  *offset = layout.arrays[i].offset;
  *bytes = layout.arrays[i].bytes;
  return true;
}

int64_t shared_used() {
  return layout.used;
}

const char *shared_name(const void *address) {
  for (uint32_t p = run.first_place; p < run.first_place + run.places; ++p) {
    const int64_t at = static_cast<const unsigned char *>(address) - shared_arenas[p];
    for (int i = 0; i < layout.count; ++i)
      if (at >= layout.arrays[i].offset && at < layout.arrays[i].offset + layout.arrays[i].bytes)
        return layout.arrays[i].name;
  }
  return "global memory";
}

} /* namespace assay_simt_host */
