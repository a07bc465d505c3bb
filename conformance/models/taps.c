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

/* Returns the next stage of that name from *at on. Stages in between were made in another form. */
static const model_tap *next_of(const model_record *r, const char *name, int64_t *at) {
  for (int64_t i = *at; i < r->count && i < *at + 8; ++i)
    if (strcmp(r->tap[i].name, name) == 0) {
      *at = i + 1;
      return &r->tap[i];
    }
  return NULL;
}

/* Tells whether the ids of a row differ and are experts. */
static bool are_experts(const double *ids, int64_t k, int64_t E) {
  for (int64_t j = 0; j < k; ++j) {
    if (!(ids[j] >= 0 && ids[j] < (double)E)) return false;
    for (int64_t i = 0; i < j; ++i)
      if (ids[i] == ids[j]) return false;
  }
  return true;
}

/* Takes over the ids of `chosen`. Ids that are none stay as they are, and the check of the routes shows them. */
static void replay(void *context, const char *name, int64_t rows, int64_t k, int32_t *ids) {
  model_record *r = context;
  int64_t at = r->chosen_at;
  const int64_t E = r->experts;
  while (at < r->chosen->count && strcmp(r->chosen->tap[at].name, name) != 0)
    ++at;
  if (at == r->chosen->count || r->chosen->tap[at].rows != rows || r->chosen->tap[at].width != k) return;
  r->chosen_at = at + 1;
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t j = 0; j < k && are_experts(r->chosen->tap[at].value + n * k, k, E); ++j)
      ids[n * k + j] = (int32_t)r->chosen->tap[at].value[n * k + j];
}

assay_model_taps record_taps(model_record *r) {
  return (assay_model_taps){r, wants, keep, r->chosen != NULL ? replay : NULL};
}

void record_free(model_record *r) {
  for (int64_t i = 0; i < r->count; ++i)
    free(r->tap[i].value);
  free(r->tap);
  *r = (model_record){.tap = NULL};
}

static void add_rows(model_record *pooled, model_tap *to, const model_tap *from) {
  const int64_t had = to->rows * to->width, more = from->rows * from->width;
  double *grown = realloc(to->value, (size_t)(had + more) * sizeof *grown + 1);
  if (grown == NULL) {
    pooled->full = true;
    return;
  }
  memcpy(grown + had, from->value, (size_t)more * sizeof *grown);
  to->value = grown;
  to->rows += from->rows;
}

void record_pool(const model_record *r, const char *end, model_record *pooled) {
  pooled->full = pooled->full || r->full;
  for (int64_t i = 0; i < r->count; ++i) {
    const model_tap *from = &r->tap[i];
    int64_t n = 0;
    if (end != NULL && !ends(from->name, end)) continue;
    while (n < pooled->count && strcmp(pooled->tap[n].name, from->name) != 0)
      ++n;
    if (n == pooled->count)
      keep(pooled, from->name, from->rows, from->width, from->value);
    else
      add_rows(pooled, &pooled->tap[n], from);
  }
}

/* ---- who made a stage ------------------------------------------------------------------------------------ */

static const char *operator_of(const assay_model_config *c, const char *name) {
  static const char *const norm[ASSAY_ARCH_COUNT] = {"layer_norm", "rms_norm", "uclip_norm",
                                                     "rms_norm",   "rms_norm", "rms_norm"};
  static const char *const act[ASSAY_ARCH_COUNT] = {"bias_gelu_new", "swiglu", "reglu", "swiglu", "swiglu", "geglu"};
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
             {".residual", "bias_residual"},
             {".router", "gemm"},
             {"router.ids", "moe_router"},
             {"router.weights", "moe_router"},
             {"moe.out", "moe_combine"}};
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

/* Returns the RMS that a stage may be off after `depth` layers. */
static double allowed(int64_t depth, const double *exact, const double *mirror, int64_t count) {
  return factor * rms(mirror, exact, count) + floor_share * (double)depth * rms(exact, NULL, count);
}

bool taps_within(int64_t depth, const double *exact, const double *mirror, const double *device, int64_t count,
                 double *ratio, double *found) {
  const double most = allowed(depth, exact, mirror, count);
  *found = rms(device, exact, count);
  /* Both are 0: there is nothing to compare. */
  *ratio = *found == 0 ? 0 : *found / most;
  return *ratio <= 1;
}

/* Writes the k largest of E logits in descending order, ties to the lower id. */
static void best_of(const double *logits, int64_t E, int64_t k, int64_t *ids) {
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < E; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i)
        taken = taken || ids[i] == e;
      if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    ids[j] = best;
  }
}

static void check_row(const model_tap *logits, const model_tap *ids, int64_t n, double most, routes_verdict *v) {
  const int64_t E = logits->width, k = ids->width;
  const double *x = logits->value + n * E, *found = ids->value + n * k;
  int64_t best[64];
  bool same = true;
  ++v->rows;
  if (!are_experts(found, k, E)) {
    if (v->wrong[0] == '\0')
      (void)snprintf(v->wrong, sizeof v->wrong, "%s: row %lld: found %g ..., allowed %lld different experts of %lld",
                     ids->name, (long long)n, found[0], (long long)k, (long long)E);
    return;
  }
  best_of(x, E, k, best);
  for (int64_t j = 0; j < k; ++j) {
    const int64_t id = (int64_t)found[j];
    same = same && id == best[j];
    if (id == best[j] || fabs(x[id] - x[best[j]]) <= most || v->wrong[0] != '\0') continue;
    (void)snprintf(v->wrong, sizeof v->wrong,
                   "%s: row %lld, choice %lld: found expert %lld for %lld, whose logits are %.3g apart, allowed %.3g",
                   ids->name, (long long)n, (long long)j, (long long)id, (long long)best[j], fabs(x[id] - x[best[j]]),
                   most);
  }
  v->differ += !same;
}

void routes_check(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, routes_verdict *v) {
  int64_t at_exact = 0, at_mirror = 0;
  *v = (routes_verdict){.rows = 0};
  for (int64_t i = 0; i + 1 < device->count; ++i) {
    const model_tap *d = &device->tap[i], *ids = NULL;
    if (!ends(d->name, ".router")) continue;
    for (int64_t n = i + 1; n < device->count && n < i + 3 && ids == NULL; ++n)
      if (ends(device->tap[n].name, ".router.ids")) ids = &device->tap[n];
    while (at_exact < exact->count && strcmp(exact->tap[at_exact].name, d->name) != 0)
      ++at_exact;
    while (at_mirror < mirror->count && strcmp(mirror->tap[at_mirror].name, d->name) != 0)
      ++at_mirror;
    if (ids == NULL || at_exact == exact->count || at_mirror == mirror->count ||
        exact->tap[at_exact].rows != ids->rows || ids->width > 64) {
      v->wrong_at = i;
      (void)snprintf(v->wrong, sizeof v->wrong, "%s: a router of another size than the reference's", d->name);
      return;
    }
    const model_tap *e = &exact->tap[at_exact++], *m = &mirror->tap[at_mirror++];
    const double most = 4 * allowed(depth_of(config, e->name), e->value, m->value, e->rows * e->width);
    for (int64_t n = 0; n < ids->rows; ++n) {
      const bool before = v->wrong[0] != '\0';
      check_row(e, ids, n, most, v);
      if (!before) v->wrong_at = ids - device->tap;
    }
  }
}

static void note_growth(taps_verdict *v, const model_tap *exact, const model_tap *device) {
  const size_t used = strlen(v->growth);
  const int64_t count = exact->rows * exact->width;
  if (!ends(exact->name, "mlp.residual") || used + 12 > sizeof v->growth) return;
  (void)snprintf(v->growth + used, sizeof v->growth - used, " %.1e",
                 rms(device->value, exact->value, count) / rms(exact->value, NULL, count));
}

/* Compares one stage. */
static void compare_stage(const assay_model_config *config, const model_tap *e, const model_tap *m, const model_tap *d,
                          taps_verdict *v) {
  double ratio = INFINITY, found = 0;
  if (e == NULL || m == NULL || e->rows != d->rows || e->width != d->width || m->rows != d->rows) {
    if (v->first[0] == '\0')
      (void)snprintf(v->first, sizeof v->first, "%s: a stage of [%lld, %lld] that the reference does not have", d->name,
                     (long long)d->rows, (long long)d->width);
    return;
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
  if (good || v->first[0] != '\0') return;
  (void)snprintf(v->first, sizeof v->first,
                 "%s of %s is the first stage that departs: RMS of the error %.3g, of mirror mode %.3g, ratio %.2f",
                 d->name, operator_of(config, d->name), found, rms(m->value, e->value, count), ratio);
}

static const model_tap *find(const model_record *r, const char *name) {
  int64_t i = 0;
  while (i < r->count && strcmp(r->tap[i].name, name) != 0)
    ++i;
  return i < r->count ? &r->tap[i] : NULL;
}

void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v) {
  static const char few[] = ".router.weights";
  model_record all[3] = {{.tap = NULL}, {.tap = NULL}, {.tap = NULL}};
  int64_t at_exact = 0, at_mirror = 0, seen = 0;
  *v = (taps_verdict){.stages = 0};
  record_pool(exact, few, &all[0]);
  record_pool(mirror, few, &all[1]);
  record_pool(device, few, &all[2]);
  for (int64_t i = 0; i < device->count; ++i) {
    const model_tap *d = &device->tap[i];
    const model_tap *e = next_of(exact, d->name, &at_exact), *m = next_of(mirror, d->name, &at_mirror);
    const bool before = v->first[0] != '\0';
    if (!ends(d->name, few)) {
      compare_stage(config, e, m, d, v);
    } else if (seen < all[2].count && strcmp(all[2].tap[seen].name, d->name) == 0) {
      compare_stage(config, find(&all[0], d->name), find(&all[1], d->name), &all[2].tap[seen], v);
      ++seen;
    }
    if (!before) v->first_at = i;
  }
  if (device->full || exact->full || mirror->full || all[0].full || all[1].full || all[2].full)
    (void)snprintf(v->first, sizeof v->first, "out of memory: stages are missing");
  for (int i = 0; i < 3; ++i)
    record_free(&all[i]);
}
