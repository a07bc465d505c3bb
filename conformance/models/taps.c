/* taps.c: compares composite results, as docs/judging.md defines it. */
#include "taps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

static const double factor = 1.5;
/* The floor as a share of a value's RMS per layer that it has gone through. It stands for f32 rounding inside operators
 * where nothing that is stored rounds as coarsely. Clean f32 models reach 0.7 of it; 16-bit types do not notice it. */
static const double floor_share = 6e-7;

static bool ends(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

static bool wants(void *context, const char *name) {
  const model_record *r = context;
  if (ends(name, ".s") || ends(name, ".p")) return false;
  if (!r->residuals_only) return true;
  return ends(name, ".residual") || strcmp(name, "final") == 0;
}

static void keep(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  model_record *r = context;
  if (r->count == r->capacity) {
    const int64_t capacity = r->capacity > 0 ? 2 * r->capacity : 256;
    model_tap *grown = realloc(r->tap, (size_t)capacity * sizeof *grown);
    if (grown == NULL) {
      r->full = true;
      return;
    }
    r->tap = grown;
    r->capacity = capacity;
  }
  model_tap *tap = &r->tap[r->count];
  (void)snprintf(tap->name, sizeof tap->name, "%s", name);
  tap->rows = rows;
  tap->width = width;
  tap->value = malloc((size_t)(rows * width) * sizeof *value + 1);
  if (tap->value == NULL) {
    r->full = true;
    return;
  }
  memcpy(tap->value, value, (size_t)(rows * width) * sizeof *value);
  ++r->count;
}

assay_model_taps record_taps(model_record *r) {
  return (assay_model_taps){r, wants, keep};
}

void record_free(model_record *r) {
  for (int64_t i = 0; i < r->count; ++i)
    free(r->tap[i].value);
  free(r->tap);
  *r = (model_record){.tap = NULL};
}

/* ---- who made a stage ------------------------------------------------------------------------------------ */

static const char *operator_of(const assay_model_config *c, const char *name) {
  static const char *const norm[] = {"layer_norm", "rms_norm", "uclip_norm"};
  static const char *const act[] = {"bias_gelu_new", "swiglu", "reglu"};
  static const struct {
    const char *end, *op;
  } row[] = {{"embed", "embedding"},
             {"logits", "lm_head"},
             {".qkv", "gemm"},
             {".proj", "gemm"},
             {".up", "gemm"},
             {".down", "gemm"},
             {".biased", "gemm"},
             {"attn.q", "rope"},
             {"attn.k", "rope"},
             {"attn.v", "gemm"},
             {"attn.q_norm", "qk_norm"},
             {"attn.k_norm", "qk_norm"},
             {".residual", "bias_residual"}};
  if (ends(name, ".act")) return act[c->arch];
  if (ends(name, "attn.out"))
    return c->arch == ASSAY_ASYNCT ? "kv_append, gate_attention" : "kv_append, softmax_attention";
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i)
    if (ends(name, row[i].end)) return row[i].op;
  return norm[c->arch];
}

/* ---- comparing ------------------------------------------------------------------------------------------- */

static double rms(const double *a, const double *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double d = b != NULL ? a[i] - b[i] : a[i];
    sum += d * d;
  }
  return count > 0 ? sqrt(sum / (double)count) : 0;
}

/* Returns the number of layers that a stage has gone through, its own included. */
static int64_t depth_of(const assay_model_config *config, const char *name) {
  int layer = 0;
  if (sscanf(name, "layers.%d.", &layer) == 1) return layer + 1;
  return strcmp(name, "embed") == 0 ? 1 : config->layers;
}

bool taps_within(int64_t depth, const double *exact, const double *mirror, const double *device, int64_t count,
                 double *ratio, double *found) {
  const double allowed = factor * rms(mirror, exact, count) + floor_share * (double)depth * rms(exact, NULL, count);
  *found = rms(device, exact, count);
  /* Both are 0: there is nothing to compare. */
  *ratio = *found == 0 ? 0 : *found / allowed;
  return *ratio <= 1;
}

/* Returns the next stage of that name from *at on. Stages in between were made in another form. */
static const model_tap *next_of(const model_record *r, const char *name, int64_t *at) {
  for (int64_t i = *at; i < r->count && i < *at + 8; ++i)
    if (strcmp(r->tap[i].name, name) == 0) {
      *at = i + 1;
      return &r->tap[i];
    }
  return NULL;
}

static void note_growth(taps_verdict *v, const model_tap *exact, const model_tap *device) {
  const size_t used = strlen(v->growth);
  const int64_t count = exact->rows * exact->width;
  if (!ends(exact->name, "mlp.residual") || used + 12 > sizeof v->growth) return;
  (void)snprintf(v->growth + used, sizeof v->growth - used, " %.1e",
                 rms(device->value, exact->value, count) / rms(exact->value, NULL, count));
}

void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v) {
  int64_t at_exact = 0, at_mirror = 0;
  *v = (taps_verdict){.stages = 0};
  for (int64_t i = 0; i < device->count; ++i) {
    const model_tap *d = &device->tap[i];
    const model_tap *e = next_of(exact, d->name, &at_exact), *m = next_of(mirror, d->name, &at_mirror);
    double ratio = INFINITY, found = 0;
    if (e == NULL || m == NULL || e->rows != d->rows || e->width != d->width || m->rows != d->rows) {
      if (v->first[0] == '\0')
        (void)snprintf(v->first, sizeof v->first, "%s: a stage of [%lld, %lld] that the reference does not have",
                       d->name, (long long)d->rows, (long long)d->width);
      continue;
    }
    const int64_t count = d->rows * d->width;
    const bool good = taps_within(depth_of(config, d->name), e->value, m->value, d->value, count, &ratio, &found);
    ++v->stages;
    v->values += count;
    note_growth(v, e, d);
    if (!(ratio <= v->worst)) {
      v->worst = ratio;
      (void)snprintf(v->worst_at, sizeof v->worst_at, "%s", d->name);
    }
    if (good || v->first[0] != '\0') continue;
    (void)snprintf(v->first, sizeof v->first,
                   "%s of %s is the first stage that departs: RMS of the error %.3g, of mirror mode %.3g, ratio %.2f",
                   d->name, operator_of(config, d->name), found, rms(m->value, e->value, count), ratio);
  }
  if (device->full || exact->full || mirror->full)
    (void)snprintf(v->first, sizeof v->first, "out of memory: stages are missing");
}
