/* judge_dump.c: everything about one case as files that other tools read (assay replay --dump DIR). */
#include "judge_dump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/dtype.h"
#include "npy.h"

enum { FOLDER_ROOM = 3800 };

static char folder[FOLDER_ROOM];

assay_status judge_dump_to(const char *path, assay_error *error) {
  if (strlen(path) == 0 || strlen(path) >= sizeof folder)
    return assay_fail(error, ASSAY_ERR_INPUT, "--dump: a path of 1 to %d bytes", FOLDER_ROOM - 1);
  if (mkdir(path, 0777) != 0 && errno != EEXIST)
    return assay_fail(error, ASSAY_ERR_INPUT, "--dump: folder '%s' cannot be made: %s", path, strerror(errno));
  memcpy(folder, path, strlen(path) + 1);
  return ASSAY_OK;
}

static assay_status write_tensor(const char *name, int type, int32_t rank, const int64_t *shape, const void *data,
                                 assay_error *error) {
  char path[FOLDER_ROOM + 200];
  (void)snprintf(path, sizeof path, "%s/%s.%s.npy", folder, name, npy_type_name(type));
  return npy_write(path, type, rank, shape, data, error);
}

/* An argument as a dense tensor. Of a pool, the blocks that are there: axis 0 begins at first_block. */
static assay_status dump_argument(const trial *t, int32_t i, assay_error *error) {
  const assay_arg *about = &t->one->op->args[i];
  assay_tensor arg = t->first.arg[i];
  const int64_t size = assay_dtype_size(arg.dtype);
  int64_t offset = 0, count = 1, index[ASSAY_MAX_RANK] = {0};
  if (about->content == ASSAY_K_CACHE || about->content == ASSAY_V_CACHE) {
    offset = t->first.first_block * arg.stride[0];
    arg.shape[0] = t->first.pool_blocks;
  }
  for (int32_t a = 0; a < arg.rank; ++a)
    count *= arg.shape[a];
  unsigned char *dense = malloc((size_t)(count * size) + 1);
  if (dense == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "--dump: out of memory for %s", about->name);
  for (int64_t n = 0; n < count; ++n) {
    int64_t at = offset;
    for (int32_t a = 0; a < arg.rank; ++a)
      at += index[a] * arg.stride[a];
    memcpy(dense + n * size, (const unsigned char *)arg.data + at * size, (size_t)size);
    for (int32_t a = arg.rank - 1; a >= 0 && ++index[a] == arg.shape[a]; --a)
      index[a] = 0;
  }
  const assay_status status = write_tensor(about->name, (int)arg.dtype, arg.rank, arg.shape, dense, error);
  free(dense);
  return status;
}

/* f64, in the output's shape; rows that were not judged are NaN. */
static assay_status dump_expected(const trial *t, int32_t o, const double *value, const char *what,
                                  assay_error *error) {
  const assay_tensor *arg = &t->first.arg[t->output[o].arg];
  const int64_t width = t->output[o].width, N = t->output[o].rows;
  char name[96];
  double *all = malloc((size_t)(N * width) * sizeof *all + 1);
  if (all == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "--dump: out of memory");
  for (int64_t i = 0; i < N * width; ++i)
    all[i] = (double)NAN;
  for (int64_t r = 0; r < outputs_judged(t, o); ++r)
    memcpy(all + outputs_row(t, o, r) * width, value + r * width, (size_t)width * sizeof *value);
  (void)snprintf(name, sizeof name, "%s.%s", t->one->op->args[t->output[o].arg].name, what);
  const assay_status status = write_tensor(name, NPY_F64, arg->rank, arg->shape, all, error);
  free(all);
  return status;
}

static assay_status dump_before(const trial *t, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < t->one->op->arg_count && status == ASSAY_OK; ++i)
    if (t->one->op->args[i].role != ASSAY_OUT && t->first.arg[i].data != NULL) status = dump_argument(t, i, error);
  for (int32_t o = 0; o < t->count && status == ASSAY_OK; ++o) {
    status = dump_expected(t, o, t->expected[o].value, "expected", error);
    if (status == ASSAY_OK) status = dump_expected(t, o, t->expected[o].sigma, "sigma", error);
  }
  return status;
}

static assay_status dump_got(const trial *t, const outputs *got, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t o = 0; o < t->count && status == ASSAY_OK; ++o) {
    char name[96];
    const assay_tensor *arg = &t->first.arg[t->output[o].arg];
    (void)snprintf(name, sizeof name, "%s.got", t->one->op->args[t->output[o].arg].name);
    status = write_tensor(name, (int)arg->dtype, arg->rank, arg->shape, got->bits[o], error);
  }
  return status;
}

bool judge_dump(const trial *t, const outputs *got, case_result *result) {
  assay_error error = {""};
  if (folder[0] == '\0') return true;
  if ((got == NULL ? dump_before(t, &error) : dump_got(t, got, &error)) == ASSAY_OK) return true;
  judge_verdict(result, VERDICT_FAIL, "launch", "--dump: %s", error.text);
  return false;
}
