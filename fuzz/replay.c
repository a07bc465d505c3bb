/* replay.c: runs a target over files and folders without libFuzzer, so that any compiler will do. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "target.h"

enum { MAX_BYTES = 1 << 21 };

static int64_t ran;

static int run_file(const char *path) {
  int code = 1;
  FILE *file = fopen(path, "rb");
  uint8_t *bytes = malloc(MAX_BYTES);
  if (file != NULL && bytes != NULL) {
    const size_t count = fread(bytes, 1, MAX_BYTES, file);
    /* Exactly as long as the input, so that AddressSanitizer sees its end. */
    uint8_t *exact = malloc(count > 0 ? count : 1);
    if (exact != NULL) {
      memcpy(exact, bytes, count);
      (void)LLVMFuzzerTestOneInput(exact, count);
      ++ran;
      code = 0;
    }
    free(exact);
  }
  if (code != 0) (void)fprintf(stderr, "replay: cannot read %s\n", path);
  if (file != NULL) (void)fclose(file);
  free(bytes);
  return code;
}

static int run_path(const char *path) {
  struct stat about;
  if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) return run_file(path);
  int code = 0;
  struct dirent **entry = NULL;
  const int count = scandir(path, &entry, NULL, alphasort);
  for (int i = 0; i < count; ++i) {
    char inner[4096];
    (void)snprintf(inner, sizeof inner, "%s/%s", path, entry[i]->d_name);
    if (entry[i]->d_name[0] != '.') code |= run_path(inner);
    free(entry[i]);
  }
  free(entry);
  return code;
}

int main(int argc, char **argv) {
  int code = LLVMFuzzerInitialize(&argc, &argv);
  for (int i = 1; i < argc && code == 0; ++i)
    code = run_path(argv[i]);
  (void)printf("replay: %lld inputs\n", (long long)ran);
  return code != 0 || ran == 0;
}
