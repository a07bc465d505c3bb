/* bytes.c: every file that a user names is opened here. */
#define _POSIX_C_SOURCE 200809L
#include "bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns what stands in a regular file's place; NULL: it is one. */
static const char *other_kind(const struct stat *about) {
  if (S_ISREG(about->st_mode)) return NULL;
  if (S_ISDIR(about->st_mode)) return "a folder";
  if (S_ISFIFO(about->st_mode)) return "a pipe";
  if (S_ISSOCK(about->st_mode)) return "a socket";
  return "a device";
}

static assay_status refuse_kind(const char *path, const char *kind, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s, allowed a regular file", path, kind);
}

assay_status file_check_regular(const char *path, assay_error *error) {
  struct stat about;
  const char *kind = stat(path, &about) == 0 ? other_kind(&about) : NULL;
  return kind == NULL ? ASSAY_OK : refuse_kind(path, kind, error);
}

assay_status file_open(const char *path, FILE **file, int64_t *size, assay_error *error) {
  struct stat about;
  *file = NULL;
  *size = 0;
  /* The kind is asked before the file is opened: opening a device may act on it. It is asked again of what was opened,
   * without waiting for a writer of a pipe. */
  assay_status status = file_check_regular(path, error);
  if (status != ASSAY_OK) return status;
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &about) != 0) {
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  } else if (other_kind(&about) != NULL) {
    status = refuse_kind(path, other_kind(&about), error);
  } else if ((*file = fdopen(fd, "rb")) == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: cannot be read: %s", path, strerror(errno));
  } else {
    *size = (int64_t)about.st_size;
  }
  if (status != ASSAY_OK && fd >= 0) (void)close(fd);
  return status;
}

assay_status file_line(FILE *file, const char *path, char **line, size_t *room, int64_t *size, assay_error *error) {
  errno = 0;
  const ssize_t got = getline(line, room, file);
  *size = got > 0 ? (int64_t)got : 0;
  if (!ferror(file) && (got > 0 || feof(file))) return ASSAY_OK; /* after an error a line may be cut off */
  const int why = errno;
  if (why == ENOMEM || why == 0) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: a line does not fit in memory", path);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(why));
}

assay_status file_bytes(const char *path, int64_t most, unsigned char **bytes, int64_t *size, assay_error *error) {
  FILE *file = NULL;
  int64_t there = 0;
  *bytes = NULL;
  *size = 0;
  assay_status status = file_open(path, &file, &there, error);
  if (status != ASSAY_OK) return status;
  const size_t wanted = (size_t)there;
  if (there > most)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld bytes, allowed at most %lld", path, (long long)there,
                        (long long)most);
  else if ((*bytes = malloc(wanted + 1)) == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: %zu bytes do not fit in memory", path, wanted);
  else if (fread(*bytes, 1, wanted, file) != wanted)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: fewer bytes than its size of %zu", path, wanted);
  (void)fclose(file);
  if (status == ASSAY_OK) {
    (*bytes)[wanted] = 0;
    *size = there;
  } else {
    free(*bytes);
    *bytes = NULL;
  }
  return status;
}
