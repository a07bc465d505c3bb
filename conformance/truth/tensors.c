/* tensors.c: finds the kind of a folder; compares bf16 norms in safetensors bit for bit. */
#define _POSIX_C_SOURCE 200809L
#include "tensors.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/dtype.h"
#include "core/files/bytes.h"
#include "core/files/tensor_file.h"

typedef long long ll; /* for messages */

/* ---- RMSNorm ----------------------------------------------------------------------------------------- */

/* Reads the weight of "model.layers.8.input_layernorm" from FOLDER/input_layernorm_weight_bf16.bin. */
static assay_status read_weight(const char *folder, const char *layer, int64_t C, unsigned char **bytes,
                                assay_error *error) {
  char path[4096];
  int64_t size = 0;
  const char *dot = strrchr(layer, '.');
  (void)snprintf(path, sizeof path, "%.3000s/%.200s_weight_bf16.bin", folder, dot != NULL ? dot + 1 : layer);
  const assay_status status = file_bytes(path, (int64_t)1 << 28, bytes, &size, error);
  if (status != ASSAY_OK || size == 2 * C) return status;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: size: found %lld bytes, allowed %lld, %lld bf16", path, (ll)size,
                    (ll)(2 * C), (ll)C);
}

static void compare_bits(const foreign_call *f, const file_tensor *y, truth_report *r) {
  const double *value = f->expected[0].value;
  for (int64_t i = 0; i < y->count; ++i) {
    const double got = assay_load_f64(y->data, ASSAY_BF16, i), expected = assay_round_f64(value[i], ASSAY_BF16);
    const bool nan = assay_is_nan(got) && assay_is_nan(expected);
    ++r->elements;
    if (got == expected || nan || r->failed) continue;
    r->failed = true;
    (void)snprintf(r->message, sizeof r->message, "element %lld: recorded %.9g, the reference gives %.9g", (ll)i, got,
                   expected);
  }
  ++r->covered;
}

assay_status truth_rms_norm(const char *folder, const char *name, truth_log *log, assay_error *error) {
  char path[4096];
  tensor_file file;
  foreign_call f = {0};
  unsigned char *weight = NULL;
  truth_report report;
  assay_error inner = {""};
  memset(&report, 0, sizeof report);
  (void)snprintf(path, sizeof path, "%.3000s/%.500s", folder, name);
  assay_status status = tensor_file_safetensors(path, &file, error);
  if (status != ASSAY_OK) return status;
  const file_tensor *x = tensor_file_find(&file, "input_hidden_states"), *y = NULL;
  const char *layer = json_text(json_member(file.manifest, "__metadata__"), "layer", NULL);
  if (x == NULL || x->dtype != ASSAY_BF16 || x->rank < 1)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: input_hidden_states: found none in BF16, allowed one", path);
  if (status == ASSAY_OK && layer == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: __metadata__: layer: found none, allowed its name", path);
  if (status == ASSAY_OK && tensor_file_get(&file, "output", ASSAY_BF16, x->rank, x->shape, &y, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: %.1800s", path, inner.text);
  const int64_t C = status == ASSAY_OK ? x->shape[x->rank - 1] : 1;
  const int64_t shape[2] = {status == ASSAY_OK && C > 0 ? x->count / C : 0, C};
  if (status == ASSAY_OK) status = read_weight(folder, layer, C, &weight, error);
  if (status == ASSAY_OK && foreign_begin(&f, "rms_norm", &inner) != ASSAY_OK) {
    truth_fail(log, name, "operator missing: rms_norm");
  } else if (status == ASSAY_OK) {
    assay_status asked = foreign_tensor(&f, "x", ASSAY_BF16, 2, shape, x->data, &inner);
    if (asked == ASSAY_OK) asked = foreign_tensor(&f, "g", ASSAY_BF16, 1, &C, weight, &inner);
    if (asked == ASSAY_OK) asked = foreign_tensor(&f, "y", ASSAY_BF16, 2, shape, NULL, &inner);
    if (asked == ASSAY_OK) asked = foreign_set(&f, "eps", 1e-6, &inner);
    if (asked == ASSAY_OK) asked = foreign_reference(&f, &inner);
    if (asked == ASSAY_OK)
      compare_bits(&f, y, &report);
    else
      truth_failed(&report, &inner);
    if (report.failed)
      truth_fail(log, name, "%s", report.message);
    else
      truth_pass(log, name, "rms_norm, %lld elements, every bit", (ll)report.elements);
  }
  free(weight);
  foreign_free(&f);
  tensor_file_free(&file);
  return status;
}

/* ---- folders ----------------------------------------------------------------------------------------- */

static bool is_folder(const char *path) {
  struct stat about;
  return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static int visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

static bool ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* Walks one folder and, where it holds nothing known, its subfolders. */
static assay_status walk(const char *folder, int depth, int64_t *found, truth_log *log, assay_error *error) {
  struct dirent **entry = NULL;
  assay_status status = ASSAY_OK;
  const int64_t before = *found;
  const int count = scandir(folder, &entry, visible, alphasort);
  if (count < 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read as a folder", folder);
  for (int i = 0; i < count && status == ASSAY_OK; ++i) {
    const char *name = entry[i]->d_name;
    const bool gpt = strcmp(name, "golden_pytorch_manifest.json") == 0, norm = ends_with(name, ".safetensors");
    *found += gpt || norm;
    if (gpt) status = truth_gpt(folder, log, error);
    if (norm) status = truth_rms_norm(folder, name, log, error);
  }
  const bool here = *found > before;
  for (int i = 0; i < count; ++i) {
    char inner[4096];
    (void)snprintf(inner, sizeof inner, "%.3000s/%.500s", folder, entry[i]->d_name);
    if (status == ASSAY_OK && !here && depth > 0 && is_folder(inner))
      status = walk(inner, depth - 1, found, log, error);
    free(entry[i]);
  }
  free(entry);
  return status;
}

assay_status truth_tensors(const char *folder, truth_log *log, assay_error *error) {
  int64_t found = 0;
  const assay_status status = walk(folder, 1, &found, log, error);
  if (status != ASSAY_OK || found > 0) return status;
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "%s: found no recorded tensors, allowed: golden_pytorch_manifest.json or *.safetensors here or one "
                    "folder below",
                    folder);
}
