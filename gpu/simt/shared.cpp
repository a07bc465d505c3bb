/* shared.cpp: the shared memory of the running block. One arena: first the dynamic part, then each static
 * array where it is first met; redzones before, between and behind. Memory starts as bytes 0xFF (NaN in every
 * floating type), a redzone is filled with words that are NaN too and checked when the block ends; under
 * AddressSanitizer an access to one is reported where it happens. */
#include "simt/scheduler.h"

namespace assay_simt_host {

static constexpr int64_t redzone = 128, max_static = 48 * 1024, max_total = 227 * 1024, max_arrays = 64;
static constexpr uint16_t redzone_word = 0xFFA5; /* NaN as f16, as bf16 and, twice, as f32 */

struct Array {
  const char *name, *file; /* file NULL: the dynamic part */
  int32_t line;
  int64_t offset, bytes;
};

/* An array of alignment 16 begins 16 bytes behind a multiple of 128: nothing is better aligned than promised. */
alignas(1024) unsigned char shared_arena[shared_arena_bytes];
static constexpr unsigned char *arena = shared_arena;
static Array arrays[max_arrays];
static int count;
static int64_t used, static_bytes, dynamic_bytes; /* used: up to the end of the last redzone */

/* The dynamic part begins at 128. Behind it there is room to begin at 1024 instead, if the kernel asks. */
static constexpr int64_t moved_to = 1024, room = moved_to - redzone;

/* Redzone bytes from an even address on; one more than the longest redzone with its gap. */
static const unsigned char *pattern() {
  static unsigned char bytes[4098];
  if (bytes[0] == 0)
    for (size_t i = 0; i < sizeof bytes; i += 2)
      memcpy(bytes + i, &redzone_word, 2);
  return bytes;
}

static void poison(int64_t from, int64_t to) {
  memcpy(arena + from, pattern() + (from & 1), static_cast<size_t>(to - from));
#ifdef ASSAY_SIMT_ASAN
  __asan_poison_memory_region(arena + from, static_cast<size_t>(to - from));
#endif
}

static void unpoison(int64_t from, int64_t to) {
#ifdef ASSAY_SIMT_ASAN
  __asan_unpoison_memory_region(arena + from, static_cast<size_t>(to - from));
#else
  (void)from;
  (void)to;
#endif
}

/* NaN in every floating type; to MemorySanitizer, not written. */
static void make_fresh(int64_t offset, int64_t bytes) {
  memset(arena + offset, 0xFF, static_cast<size_t>(bytes));
#ifdef ASSAY_SIMT_MSAN
  __msan_allocated_memory(arena + offset, static_cast<size_t>(bytes));
#endif
}

/* Appends an array and its redzone; the gap before it belongs to the redzone of the one before. */
static void *append(const char *name, const char *file, int32_t line, int64_t bytes, int64_t align) {
  const int64_t rounded = (used + 127) / 128 * 128;
  const int64_t offset = (rounded + align - 1) / align * align + align % 128;
  const int64_t end = offset + bytes + redzone;
  unpoison(used, end);
  poison(used, offset);
  make_fresh(offset, bytes);
  poison(offset + bytes, end);
  arrays[count++] = Array{name, file, line, offset, bytes};
  used = end;
  return arena + offset;
}

assay_status shared_begin_launch(int64_t bytes, assay_error *error) {
  if (bytes > max_total)
    return assay_fail(error, ASSAY_ERR_DEVICE, "shared memory: found %lld bytes, allowed 0 to %lld",
                      static_cast<long long>(bytes), static_cast<long long>(max_total));
  unpoison(0, shared_arena_bytes);
  count = 0;
  used = redzone;
  static_bytes = 0;
  dynamic_bytes = bytes;
  poison(0, redzone);
  now.dynamic_shared = append("dynamic shared memory", nullptr, 0, bytes, 128);
  if (bytes > 0) {
    unpoison(used, used + room);
    poison(used, used + room);
    used += room;
  }
  return ASSAY_OK;
}

void *shared_dynamic_1024() {
  Array &a = arrays[0];
  if (a.bytes > 0 && a.offset != moved_to) {
    race_quiet(true);
    unpoison(a.offset, moved_to + a.bytes);
    poison(a.offset, moved_to);
    a.offset = moved_to;
    make_fresh(a.offset, a.bytes);
    now.dynamic_shared = arena + a.offset;
    race_quiet(false);
  }
  return now.dynamic_shared;
}

void shared_begin_block() {
  race_fresh(arena, static_cast<size_t>(used)); /* another block's shared memory is other memory */
  for (int i = 0; i < count; ++i)
    make_fresh(arrays[i].offset, arrays[i].bytes);
}

/* First byte of [from, to) that is not the redzone's; `to` if all are. */
static int64_t first_written(int64_t from, int64_t to) {
  unpoison(from, to);
  int64_t i = to;
  if (memcmp(arena + from, pattern() + (from & 1), static_cast<size_t>(to - from)) != 0)
    for (i = from; arena[i] == pattern()[i & 1];)
      ++i;
  if (i == to) poison(from, to);
  return i;
}

bool shared_end_block() {
  for (int i = -1; i < count; ++i) {
    const int64_t from = i < 0 ? 0 : arrays[i].offset + arrays[i].bytes;
    const int64_t to = i + 1 < count ? arrays[i + 1].offset : used;
    const int64_t at = first_written(from, to);
    if (at == to) continue;
    char where[256] = "";
    const Array &a = arrays[i < 0 ? 0 : i];
    if (a.file != nullptr) (void)snprintf(where, sizeof where, " (%s:%d)", base_name(a.file), a.line);
    report(ASSAY_ERR_DEVICE, "shared memory overrun: byte %lld of %s%s was written, which has %lld bytes",
           static_cast<long long>(at - a.offset), a.name, where, static_cast<long long>(a.bytes));
    return false;
  }
  return true;
}

void shared_end_launch() {
  unpoison(0, shared_arena_bytes);
}

void shared_site(assay_simt_site *site) {
  if (site->bytes > max_static - static_bytes) {
    report(ASSAY_ERR_DEVICE,
           "static shared memory: %s at %s:%d needs %lld bytes after %lld others, allowed are %lld in all", site->name,
           base_name(site->file), site->line, static_cast<long long>(site->bytes), static_cast<long long>(static_bytes),
           static_cast<long long>(max_static));
    fail();
  }
  if (site->bytes > max_total - static_bytes - dynamic_bytes || count == max_arrays) {
    report(ASSAY_ERR_DEVICE,
           "shared memory: %s at %s:%d needs %lld bytes after %lld static and %lld dynamic ones in %d arrays, allowed "
           "are %lld in %lld",
           site->name, base_name(site->file), site->line, static_cast<long long>(site->bytes),
           static_cast<long long>(static_bytes), static_cast<long long>(dynamic_bytes), count - 1,
           static_cast<long long>(max_total), static_cast<long long>(max_arrays - 1));
    fail();
  }
  static_bytes += site->bytes;
  race_quiet(true);
  site->memory = append(site->name, site->file, site->line, site->bytes, site->align);
  site->launch = now.launch;
  race_quiet(false);
}

int64_t shared_offset(const void *address, int64_t bytes) {
  const int64_t at = static_cast<const unsigned char *>(address) - arena;
  for (int i = 0; i < count; ++i)
    if (at >= arrays[i].offset && at + bytes <= arrays[i].offset + arrays[i].bytes) return at;
  return -1;
}

int64_t shared_used() {
  return used;
}

const char *shared_name(const void *address) {
  const unsigned char *at = static_cast<const unsigned char *>(address);
  for (int i = 0; i < count; ++i)
    if (at >= arena + arrays[i].offset && at < arena + arrays[i].offset + arrays[i].bytes) return arrays[i].name;
  return "global memory";
}

} /* namespace assay_simt_host */
