/* memory.c: the arenas of images. If a device can copy directly from host memory of its own kind, arenas are of that
 * kind and are kept from case to case. */
#include <stdlib.h>

#include "place.h"

enum { KEPT = 6, SPARE_BYTES = 1 << 16 };

static _Thread_local const assay_device *source; /* NULL: the heap */
static _Thread_local struct {
  unsigned char *memory;
  int64_t bytes;
  bool taken;
} kept[KEPT];

void image_memory_release(void) {
  for (int i = 0; i < KEPT; ++i) {
    if (kept[i].memory == NULL || kept[i].taken) continue;
    source->release_host(kept[i].memory);
    kept[i].memory = NULL;
  }
}

void image_memory(const assay_device *device) {
  const assay_device *wanted = device->alloc_host != NULL ? device : NULL;
  if (wanted == source) return;
  image_memory_release();
  source = wanted;
}

static unsigned char *take_kept(int64_t bytes, int64_t *spare) {
  int place = -1;
  for (int i = 0; i < KEPT; ++i) {
    if (kept[i].taken) continue;
    if (place < 0 || kept[i].bytes > kept[place].bytes) place = i;
  }
  if (place < 0) return NULL;
  if (kept[place].memory == NULL || kept[place].bytes < bytes + SPARE_BYTES) {
    void *memory = NULL;
    if (kept[place].memory != NULL) source->release_host(kept[place].memory);
    kept[place].memory = NULL;
    kept[place].bytes = 0;
    const int64_t wanted = bytes + bytes / 4 + (1 << 20);
    if (source->alloc_host(wanted, &memory, NULL) != ASSAY_OK) return NULL;
    kept[place].memory = memory;
    kept[place].bytes = wanted;
  }
  kept[place].taken = true;
  *spare = kept[place].bytes - bytes;
  return kept[place].memory;
}

unsigned char *image_take(int64_t bytes, int64_t *spare) {
  unsigned char *memory = source != NULL ? take_kept(bytes, spare) : NULL;
  if (memory != NULL) return memory;
  *spare = 0;
  return aligned_alloc(DEVICE_ALIGNMENT, (size_t)(bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT);
}

void image_give(unsigned char *memory) {
  for (int i = 0; i < KEPT && memory != NULL; ++i)
    if (kept[i].memory == memory) {
      kept[i].taken = false;
      return;
    }
  free(memory);
}
