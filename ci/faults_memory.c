/* faults_memory.c: for LD_PRELOAD: allocation number MALLOC_FAULT_AT of each process fails. The count goes on in
 * children. At the end the first process writes "faults: COUNT calls" to standard error, where MALLOC_FAULT_AT is 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static long count, wanted = -1;
static pid_t first;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("MALLOC_FAULT_AT"); /* conformance/start.c lends no entry that begins like this */
  if (text != NULL) wanted = atol(text);
  first = getpid();
}

__attribute__((destructor)) static void end(void) {
  char text[64] = "faults: ";
  size_t length = strlen(text), digits = 1;
  if (wanted != 0 || getpid() != first) return;
  for (long rest = count; rest >= 10; rest /= 10)
    ++digits;
  for (size_t i = digits; i > 0; --i, count /= 10)
    text[length + i - 1] = (char)('0' + count % 10);
  (void)memcpy(text + length + digits, " calls\n", 7);
  if (write(2, text, length + digits + 7) < 0) return;
}

static bool fails(void) {
  return wanted >= 0 && ++count == wanted;
}

void *malloc(size_t size) {
  return fails() ? (errno = ENOMEM, NULL) : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
  return fails() ? (errno = ENOMEM, NULL) : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size) {
  return fails() ? (errno = ENOMEM, NULL) : __libc_realloc(old, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  void *const got = fails() ? NULL : __libc_memalign(alignment, size);
  if (got == NULL) return ENOMEM;
  *memory = got;
  return 0;
}
