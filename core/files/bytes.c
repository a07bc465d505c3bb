/* bytes.c: a whole file in memory. */
#define _POSIX_C_SOURCE 200809L
#include "bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

assay_status file_bytes(const char *path, int64_t most, unsigned char **bytes, int64_t *size, assay_error *error) {
  assay_status status = ASSAY_OK;
  struct stat about;
  *bytes = NULL;
  *size = 0;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found no regular file, allowed one", path);
  } else if ((int64_t)about.st_size > most) {
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld bytes, allowed at most %lld", path,
                        (long long)about.st_size, (long long)most);
  } else {
    const size_t wanted = (size_t)about.st_size;
    *bytes = malloc(wanted + 1);
    if (*bytes == NULL) {
      status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: %zu bytes do not fit in memory", path, wanted);
    } else if (fread(*bytes, 1, wanted, file) != wanted) {
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: fewer bytes than its size of %zu", path, wanted);
      free(*bytes);
      *bytes = NULL;
    } else {
      (*bytes)[wanted] = 0;
      *size = (int64_t)wanted;
    }
  }
  (void)fclose(file);
  return status;
}
