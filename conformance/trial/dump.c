/* dump.c: writes one case to files that other tools read (assay replay --dump DIR). */
#include "trial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/contract.h"
#include "core/dtype.h"
#include "conformance/text/text.h"

enum { FOLDER_ROOM = 3800 };

static char folder[FOLDER_ROOM];

assay_status trial_dump_to(const char *path, assay_error *error) {
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

/* Writes an argument as a dense tensor. A pool is written from first_block on: only these blocks are in memory. */
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

/* Writes the shape of an output's rows and returns its rank. For a cache these are the rows of the new tokens. */
static int32_t output_shape(const trial *t, int32_t o, int64_t *shape) {
  const trial_output *out = &t->output[o];
  const assay_tensor *arg = &t->first.arg[out->arg];
  if (out->kind == OUTPUT_CACHE) {
    shape[0] = out->rows;
    shape[1] = out->group > 0 ? out->width / out->group : 0;
    shape[2] = out->group;
    return 3;
  }
  memcpy(shape, arg->shape, sizeof arg->shape);
  return arg->rank;
}

/* Writes f64 values in the output's shape. Rows that were not judged are NaN. */
static assay_status dump_expected(const trial *t, int32_t o, const double *value, const char *what,
                                  assay_error *error) {
  const int64_t width = t->output[o].width, N = t->output[o].rows;
  int64_t shape[ASSAY_MAX_RANK];
  const int32_t rank = output_shape(t, o, shape);
  char name[96];
  double *all = malloc((size_t)(N * width) * sizeof *all + 1);
  if (all == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "--dump: out of memory");
  for (int64_t i = 0; i < N * width; ++i)
    all[i] = (double)NAN;
  for (int64_t r = 0; r < outputs_judged(t, o); ++r)
    memcpy(all + outputs_row(t, o, r) * width, value + r * width, (size_t)width * sizeof *value);
  (void)snprintf(name, sizeof name, "%s.%s", t->one->op->args[t->output[o].arg].name, what);
  const assay_status status = write_tensor(name, NPY_F64, rank, shape, all, error);
  free(all);
  return status;
}

/* ---- the manifest ------------------------------------------------------------------------------------ */

static void put_params(FILE *to, const trial *t) {
  const assay_op *op = t->one->op;
  for (int32_t i = 0; i < op->param_count; ++i) {
    (void)fprintf(to, "%s\"%s\": ", i > 0 ? ", " : "", op->params[i].name);
    if (op->params[i].kind == ASSAY_BOOL)
      (void)fputs(t->first.param[i] != 0 ? "true" : "false", to);
    else
      (void)fprintf(to, "%.17g", t->first.param[i]);
  }
}

static void put_contract(FILE *to, const assay_contract *c) {
  const contract_field *field = NULL;
  for (int32_t i = 0; (field = contract_field_at(i)) != NULL; ++i) {
    char value[40];
    const char *quote = contract_is_text(field) ? "\"" : "";
    contract_value(c, field, value, sizeof value);
    (void)fprintf(to, "%s\"%s\": %s%s%s", i > 0 ? ", " : "", field->name, quote, value, quote);
  }
}

/* Writes the sum contract, where fields can say it. */
static void put_sums(FILE *to, const assay_sums *sums) {
  char value[160];
  const char *name = NULL;
  if (sums->unit == ASSAY_SUM_NONE || !sums_is_plain(sums)) return;
  (void)fputs(",\n  \"sums\": {", to);
  for (int32_t i = 0; sums_field(sums, i, &name, value, sizeof value); ++i)
    (void)fprintf(to, "%s\"%s\": \"%s\"", i > 0 ? ", " : "", name, value);
  (void)fputc('}', to);
}

static void put_inputs(FILE *to, const trial *t) {
  const char *between = "";
  for (int32_t i = 0; i < t->one->op->arg_count; ++i) {
    const assay_arg *about = &t->one->op->args[i];
    const char *dtype = assay_dtype_name(t->first.arg[i].dtype);
    const bool pool = about->content == ASSAY_K_CACHE || about->content == ASSAY_V_CACHE;
    if (about->role == ASSAY_OUT || t->first.arg[i].data == NULL) continue;
    (void)fprintf(to, "%s\n    \"%s\": {\"file\": \"%s.%s.npy\", \"dtype\": \"%s\"", between, about->name, about->name,
                  dtype, dtype);
    if (pool) (void)fprintf(to, ", \"first_block\": %lld", (long long)t->first.first_block);
    (void)fputc('}', to);
    between = ",";
  }
}

/* Writes the rows of each request where no argument tells them and a request has not just one. */
static void put_requests(FILE *to, const trial *t) {
  const logical *l = t->first.logical;
  bool needed = false;
  for (int64_t b = 0; b < l->B; ++b)
    needed = needed || l->fresh[b] != 1;
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    needed = needed && !(t->one->op->args[i].content == ASSAY_CU_Q && t->first.arg[i].data != NULL);
  if (!needed || t->one->op->form != ASSAY_PAGED) return;
  for (int64_t b = 0; b < l->B; ++b)
    (void)fprintf(to, "%s%lld", b > 0 ? ", " : ",\n  \"requests\": [", (long long)l->fresh[b]);
  (void)fputc(']', to);
}

static assay_status dump_manifest(const trial *t, assay_error *error) {
  static char descriptor[CASE_MAX_LINE];
  char path[FOLDER_ROOM + 32];
  text_file file;
  assay_status status = case_print(t->one, descriptor, sizeof descriptor, error);
  (void)snprintf(path, sizeof path, "%s/" DUMP_MANIFEST, folder);
  if (status == ASSAY_OK) status = text_open(&file, path, error);
  if (status != ASSAY_OK) return status;
  FILE *to = file.stream;
  (void)fprintf(to, "{\n  \"operator\": \"%s\",\n  \"case\": ", t->one->op->name);
  text_json(to, descriptor);
  (void)fprintf(to, ",\n  \"tier\": \"%s\",\n  \"params\": {", t->one->tier == TIER_EXACT ? "exact" : "calibrated");
  put_params(to, t);
  (void)fputs("},\n  \"contract\": {", to);
  put_contract(to, &t->variant->contract);
  (void)fputc('}', to);
  put_sums(to, &t->sums);
  put_requests(to, t);
  (void)fputs(",\n  \"inputs\": {", to);
  put_inputs(to, t);
  (void)fputs("\n  },\n  \"outputs\": {", to);
  for (int32_t o = 0; o < t->count; ++o) {
    const char *name = t->one->op->args[t->output[o].arg].name, *dtype = assay_dtype_name(t->output[o].dtype);
    (void)fprintf(to, "%s\n    \"%s\": {\"file\": \"%s.got.%s.npy\", \"dtype\": \"%s\"}", o > 0 ? "," : "", name, name,
                  dtype, dtype);
  }
  (void)fputs("\n  }\n}\n", to);
  return text_close(&file, error);
}

static assay_status dump_before(const trial *t, assay_error *error) {
  assay_status status = dump_manifest(t, error);
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
    int64_t shape[ASSAY_MAX_RANK];
    const int32_t rank = output_shape(t, o, shape);
    (void)snprintf(name, sizeof name, "%s.got", t->one->op->args[t->output[o].arg].name);
    status = write_tensor(name, (int)t->output[o].dtype, rank, shape, got->bits[o], error);
  }
  return status;
}

bool trial_dump(const trial *t, const outputs *got, case_result *result) {
  assay_error error = {""};
  if (folder[0] == '\0') return true;
  if ((got == NULL ? dump_before(t, &error) : dump_got(t, got, &error)) == ASSAY_OK) return true;
  verdict_set(result, VERDICT_FAIL, "launch", "--dump: %s", error.text);
  return false;
}
