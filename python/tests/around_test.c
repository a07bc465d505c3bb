/* around_test.c: bytes around an argument that change during a call stay as they are, and those that the interpreter
 * has changed are copied back (python/door/memory.c). Built and run by ci/python.sh. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "python/door/door.h"

enum { ARGS = 2, BYTES = 4096, FIRST = 1024, APART = 400, ELEMENTS = 4, AROUND = 256, FLIP = 0x55 };

int main(void) {
  const assay_arg named[ARGS] = {{.name = "a", .shape = "N"}, {.name = "b", .shape = "N"}};
  const assay_op op = {.args = named, .arg_count = ARGS, .form = ASSAY_PLAIN};
  assay_tensor arg[ARGS] = {0};
  unsigned char memory[BYTES], wanted[BYTES];
  assay_error error = {""};
  door_image image;
  for (int i = 0; i < BYTES; ++i)
    memory[i] = (unsigned char)(7 * i);
  for (int i = 0; i < ARGS; ++i) {
    arg[i].dtype = ASSAY_I32;
    arg[i].rank = 1;
    arg[i].shape[0] = ELEMENTS;
    arg[i].stride[0] = 1;
    arg[i].data = memory + FIRST + i * APART;
  }
  const assay_call call = {.op = &op, .arg = arg};
  const int file = memfd_create("around", 0), end = FIRST + APART + ELEMENTS * 4;
  if (file < 0 || door_copy_in(&call, file, &image, &error) != ASSAY_OK) return 1;
  /* The worker's own bytes change: before the first argument, between both, and after the second. */
  memory[FIRST - 10] ^= 1;
  memory[FIRST + ELEMENTS * 4 + 5] ^= 1;
  memory[end + AROUND - 1] ^= 1;
  /* The interpreter writes into an argument, before the second one, and as far before the first as is seen. */
  unsigned char *shared = mmap(NULL, (size_t)image.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED) return 1;
  shared[image.offset[0] + 3] ^= FLIP;
  shared[image.offset[1] - 1] ^= FLIP;
  shared[image.offset[0] - AROUND] ^= FLIP;
  memcpy(wanted, memory, sizeof wanted);
  wanted[FIRST + 3] ^= FLIP;
  wanted[FIRST + APART - 1] ^= FLIP;
  wanted[FIRST - AROUND] ^= FLIP;
  const bool good = door_copy_out(&image, file, &error) == ASSAY_OK && memcmp(memory, wanted, sizeof wanted) == 0;
  door_image_end(&image, file);
  (void)munmap(shared, (size_t)image.bytes);
  (void)close(file);
  if (!good) printf("around_test: bytes around an argument: found others, allowed what the interpreter has written\n");
  return good ? 0 : 1;
}
