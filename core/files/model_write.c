/* model_write.c: writes a model in the flat format (docs/models.md). */
#include "model_file.h"

#include <errno.h>
#include <string.h>

#include "core/dtype.h"
#include "model_config.h"

enum { ALIGNMENT = 256, PATH_SIZE = 4096 };

static int64_t count_of(const assay_weight_spec *spec) {
  int64_t count = 1;
  for (int32_t a = 0; a < spec->rank; ++a)
    count *= spec->shape[a];
  return count;
}

static int64_t bytes_of(const assay_weight_spec *spec) {
  return count_of(spec) * assay_dtype_size(spec->dtype);
}

static int64_t aligned(int64_t offset) {
  return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void write_manifest(FILE *to, const assay_model_config *config) {
  assay_weight_spec spec;
  int64_t offset = 0;
  (void)fputs("{\"data\":\"model.bin\",\"config\":{", to);
  model_config_write(to, config);
  (void)fputs("},\"tensors\":[", to);
  for (int32_t i = 0; assay_model_weight_spec(config, i, &spec); ++i) {
    char shape[160];
    offset = aligned(offset);
    tensor_file_shape(spec.rank, spec.shape, shape, sizeof shape);
    (void)fprintf(to, "%s\n{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":%s,\"offset\":%lld,\"nbytes\":%lld}",
                  i > 0 ? "," : "", spec.name, assay_dtype_name(spec.dtype), shape, (long long)offset,
                  (long long)bytes_of(&spec));
    offset += bytes_of(&spec);
  }
  (void)fputs("]}\n", to);
}

static void write_data(FILE *to, const assay_model_config *config, const assay_model_weights *weights) {
  static const unsigned char zero[ALIGNMENT];
  assay_weight_spec spec;
  int64_t offset = 0;
  for (int32_t i = 0; assay_model_weight_spec(config, i, &spec); ++i) {
    const int64_t gap = aligned(offset) - offset, bytes = bytes_of(&spec);
    (void)fwrite(zero, 1, (size_t)gap, to);
    (void)fwrite(weights->tensor[i].data, 1, (size_t)bytes, to);
    offset += gap + bytes;
  }
}

static assay_status open_in(const char *folder, const char *name, FILE **file, char *path, assay_error *error) {
  *file = NULL;
  if (snprintf(path, PATH_SIZE, "%s/%s", folder, name) >= PATH_SIZE)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: the path is too long, allowed up to %d bytes", name, PATH_SIZE - 1);
  *file = fopen(path, "wb");
  return *file != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_IO, "%s: %s", path, strerror(errno));
}

static assay_status close_written(FILE *file, const char *path, assay_error *error) {
  const bool bad = ferror(file) != 0;
  return fclose(file) == 0 && !bad ? ASSAY_OK : assay_fail(error, ASSAY_ERR_IO, "%s: not written", path);
}

assay_status model_file_write(const char *folder, const assay_model_config *config, const assay_model_weights *weights,
                              assay_error *error) {
  char path[PATH_SIZE];
  FILE *file = NULL;
  assay_status status = assay_model_weights_check(config, weights, error);
  if (status == ASSAY_OK) status = open_in(folder, "model.json", &file, path, error);
  if (status != ASSAY_OK) return status;
  write_manifest(file, config);
  status = close_written(file, path, error);
  if (status == ASSAY_OK) status = open_in(folder, "model.bin", &file, path, error);
  if (status != ASSAY_OK) return status;
  write_data(file, config, weights);
  return close_written(file, path, error);
}
