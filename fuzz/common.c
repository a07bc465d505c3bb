/* common.c: the registry, files and complaints of all fuzz targets. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/builtin.h"
#include "target.h"

static char folder[] = "/tmp/assay-fuzz-XXXXXX";
static char path[256];
static pid_t owner;

_Noreturn void fuzz_found(const char *what, const char *detail) {
  (void)fprintf(stderr, "fuzz: %s: %s\n", what, detail);
  abort();
}

enum { MOST_BESIDE = 16 };
static char kept[MOST_BESIDE][256];

static void clean_up(void) {
  if (getpid() != owner) return;
  if (path[0] != '\0') (void)unlink(path);
  for (int i = 0; i < MOST_BESIDE; ++i)
    if (kept[i][0] != '\0') (void)unlink(kept[i]);
  (void)rmdir(folder);
}

static void make_folder(void) {
  if (owner != 0) return;
  if (mkdtemp(folder) == NULL) fuzz_found("no folder", folder);
  owner = getpid();
  (void)atexit(clean_up);
}

const char *fuzz_beside(const char *name, const uint8_t *bytes, size_t count) {
  char wanted[256];
  int i = 0;
  make_folder();
  (void)snprintf(wanted, sizeof wanted, "%s/%s", folder, name);
  while (i < MOST_BESIDE && kept[i][0] != '\0' && strcmp(kept[i], wanted) != 0)
    ++i;
  if (i == MOST_BESIDE) fuzz_found("too many files", name);
  if (kept[i][0] != '\0') return kept[i];
  memcpy(kept[i], wanted, sizeof wanted);
  if (bytes == NULL) return kept[i];
  FILE *file = fopen(wanted, "wb");
  if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) fuzz_found("cannot write", wanted);
  return kept[i];
}

const char *fuzz_file(const char *name, const uint8_t *bytes, size_t count) {
  make_folder();
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  (void)unlink(path); /* a new inode: a loaded object is not changed under its user */
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) fuzz_found("cannot write", path);
  return path;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  assay_error error = {""};
  (void)argc;
  (void)argv;
  if (builtin_register(&error) != ASSAY_OK) fuzz_found("registry", error.text);
  return 0;
}
