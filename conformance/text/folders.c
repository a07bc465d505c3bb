/* folders.c: see folders.h. */
#include "folders.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef ASSAY_SUITES_DIR
#define ASSAY_SUITES_DIR "conformance/suites"
#endif
#ifndef ASSAY_BENCH_DIR
#define ASSAY_BENCH_DIR "bench"
#endif
#ifndef ASSAY_FIXTURES_DIR
#define ASSAY_FIXTURES_DIR "fixtures"
#endif

enum { PATH_ROOM = 4096 };

/* Writes the path of share/assay/<name> beside the program's bin/; returns whether that folder exists. */
static bool is_installed(const char *name, char *path) {
  char program[PATH_ROOM];
  struct stat about;
  const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
  if (size <= 0 || size >= (ssize_t)sizeof program - 1) return false;
  program[size] = '\0';
  for (int up = 0; up < 2; ++up) {
    char *slash = strrchr(program, '/');
    if (slash == NULL) return false;
    *slash = '\0';
  }
  const int n = snprintf(path, PATH_ROOM, "%.3900s/share/assay/%s", program, name);
  return n > 0 && n < PATH_ROOM && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static const char *choose(const char *variable, const char *name, const char *built, char *path) {
  const char *given = getenv(variable);
  if (given != NULL && given[0] != '\0') return given;
  return is_installed(name, path) ? path : built;
}

const char *folder_of_suites(void) {
  static _Thread_local char path[PATH_ROOM];
  return choose("ASSAY_SUITES", "suites", ASSAY_SUITES_DIR, path);
}

const char *folder_of_fixtures(void) {
  static _Thread_local char path[PATH_ROOM];
  return choose("ASSAY_FIXTURES", "fixtures", ASSAY_FIXTURES_DIR, path);
}

const char *folder_of_bench(void) {
  static _Thread_local char path[PATH_ROOM];
  return choose("ASSAY_BENCH", "bench", ASSAY_BENCH_DIR, path);
}
