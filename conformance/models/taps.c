/* taps.c: compares composite results, as docs/judging.md defines it. */
#include "taps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

static const double factor = 1.5;
/* The floor as a share of a value's RMS per layer that it has gone through. It stands for f32 rounding inside operators
 * where nothing that is stored rounds as coarsely. 16-bit types do not notice it. */
static const double floor_share = 6e-7;
/* In f32 the sums inside an operator round as coarsely as a store does, and mirror mode leaves them out. A product of
 * 64 terms alone is off by 4.2 to 4.6 times its mirror's error. Later steps enlarge both alike, and a sharp softmax
 * makes more of them than the floor. Clean f32 models reach 0.8 of the limit (docs/decisions/0017-f32-models.md). */
static const double inner_factor = 5;

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

/* Tells whether a stage has few independent values in a step: some for each expert or head of a row, or one. A row of
 * latent attention has one rotated key for all heads. The error of a row's gate is in all of the row that it
 * multiplies. */
static bool is_few(const char *name) {
  static const char *const few[] = {".router.weights", ".delta.g",       ".delta.beta",     ".attn.k_pe",
                                    ".shared.gate",    ".shared.weight", ".shared.weighted"};
  bool found = false;
  for (size_t i = 0; i < sizeof few / sizeof *few; ++i)
    found = found || ends(name, few[i]);
  return found;
}

static const model_tap *find(const model_record *r, const char *name) {
  int64_t i = 0;
  while (i < r->count && strcmp(r->tap[i].name, name) != 0)
    ++i;
  return i < r->count ? &r->tap[i] : NULL;
}

void record_pool(const model_record *r, const model_record *like, bool few_only, model_record *pooled) {
  pooled->full = pooled->full || r->full;
  for (int64_t i = 0; i < r->count; ++i) {
    const model_tap *from = &r->tap[i];
    int64_t n = 0;
    if ((few_only && !is_few(from->name)) || find(like, from->name) == NULL) continue;
    while (n < pooled->count && strcmp(pooled->tap[n].name, from->name) != 0)
      ++n;
    if (n == pooled->count)
      keep(pooled, from->name, from->rows, from->width, from->value);
    else
      add_rows(pooled, &pooled->tap[n], from);
  }
}

/* ---- who made a stage ------------------------------------------------------------------------------------ */

/* Returns who made a product. */
static const char *product_of(const assay_model_config *c, const char *name) {
  if (!c->fp8_weights || ends(name, ".router") || ends(name, "shared.gate")) return "gemm";
  return strstr(name, ".experts.") != NULL ? "group_quant, fp8_grouped_gemm" : "group_quant, fp8_block_gemm";
}

static const char *operator_of(const assay_model_config *c, const char *name) {
  static const char *const norm[ASSAY_ARCH_COUNT] = {"layer_norm", "rms_norm", "uclip_norm", "rms_norm",
                                                     "rms_norm",   "rms_norm", "rms_norm",   "rms_norm"};
  static const char *const act[ASSAY_ARCH_COUNT] = {"bias_gelu_new", "swiglu", "reglu",  "swiglu",
                                                    "swiglu",        "geglu",  "swiglu", "swiglu"};
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
             {"attn.q_a", "gemm"},
             {"attn.q_b", "gemm"},
             {"attn.kv_a", "gemm"},
             {"attn.k_pe", "rope"},
             {"attn.q_norm", "qk_norm"},
             {"attn.k_norm", "qk_norm"},
             {".residual", "bias_residual"},
             {".router", "gemm"},
             {"router.ids", "moe_router"},
             {"router.weights", "moe_router"},
             {"moe.out", "moe_combine"},
             {"attn.gate", "gemm"},
             {"attn.gated", "swiglu"},
             {"delta.in", "gemm"},
             {"delta.conv", "causal_conv1d"},
             {"delta.g", "delta_gates"},
             {"delta.beta", "delta_gates"},
             {"delta.out", "gated_delta_rule"},
             {"shared.gate", "gemm"},
             {"shared.weight", "delta_gates"},
             {"shared.weighted", "moe_combine"}};
  const bool latent = c->arch == ASSAY_DEEPSEEK_V3;
  if (ends(name, ".act")) return act[c->arch];
  if (latent && ends(name, "attn.q_norm")) return "rms_norm";
  if (latent && ends(name, "attn.out")) return "mla_append, grouped_gemm, mla_attention, softmax_attention";
  if (ends(name, "attn.out"))
    return c->arch == ASSAY_ASYNCT ? "kv_append, gate_attention" : "kv_append, softmax_attention";
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i)
    if (ends(name, row[i].end)) return strcmp(row[i].op, "gemm") == 0 ? product_of(c, name) : row[i].op;
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

/* Returns how often a layer counts. A norm of heads divides each head by its own size. The same error before it is a
 * larger one after it where a head is small. With gain G_h of head h, an error e becomes e · RMS(G). Relative to the
 * values it grows by RMS(in) · RMS(G) / RMS(out). A layer counts so often, and once at least. All numbers are the exact
 * run's. */
static double weight_of(const assay_model_config *config, const model_record *exact, int64_t layer) {
  char in[ASSAY_MODEL_NAME], out[ASSAY_MODEL_NAME];
  double sum_in = 0, sum_out = 0, gains = 0;
  int64_t heads = 0;
  const int64_t D = config->linear_value_size;
  if (!assay_model_is_linear(config, layer)) return 1;
  (void)snprintf(in, sizeof in, "layers.%d.delta.out", (int)layer);
  (void)snprintf(out, sizeof out, "layers.%d.delta.norm", (int)layer);
  for (int64_t i = 0; i + 1 < exact->count; ++i) {
    const model_tap *x = &exact->tap[i], *y = &exact->tap[i + 1]; /* the norm follows at once */
    if (strcmp(x->name, in) != 0 || strcmp(y->name, out) != 0) continue;
    for (int64_t at = 0; at < x->rows * x->width; at += D, ++heads) {
      const double head_in = rms(x->value + at, NULL, D), head_out = rms(y->value + at, NULL, D);
      sum_in += head_in * head_in;
      sum_out += head_out * head_out;
      if (head_in > 0) gains += head_out * head_out / (head_in * head_in);
    }
  }
  const double growth = sum_out > 0 ? sqrt(sum_in / sum_out) * sqrt(gains / (double)heads) : 1;
  return growth > 1 ? growth : 1;
}

/* Tells whether a stage comes before the norm of heads of its layer. */
static bool is_before_norm(const char *name) {
  return ends(name, ".attn.pre") ||
         (strstr(name, ".delta.") != NULL && !ends(name, ".delta.norm") && !ends(name, ".delta.proj"));
}

/* Returns the number of layers that a stage has gone through, its own included, each counted as weight_of says. */
static double depth_of(const assay_model_config *config, const model_record *exact, const char *name) {
  int layer = (int)config->layers - 1;
  double depth = 0;
  if (strcmp(name, "embed") == 0) return 1;
  (void)sscanf(name, "layers.%d.", &layer);
  for (int64_t l = 0; l <= layer; ++l)
    depth += l == layer && is_before_norm(name) ? 1 : weight_of(config, exact, l);
  return depth;
}

/* Returns the RMS that a stage may be off after `depth` layers. */
static double allowed(const assay_model_config *config, double depth, const double *exact, const double *mirror,
                      int64_t count) {
  const bool f32 = config->act_dtype == ASSAY_F32 && config->kv_dtype == ASSAY_F32 && !config->fp8_weights;
  const double stored = rms(mirror, exact, count), least = floor_share * depth * rms(exact, NULL, count);
  return factor * stored + (f32 && inner_factor * stored > least ? inner_factor * stored : least);
}

bool taps_within(const assay_model_config *config, double depth, const double *exact, const double *mirror,
                 const double *device, int64_t count, double *ratio, double *found) {
  const double most = allowed(config, depth, exact, mirror, count);
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

enum { MOST_EXPERTS = 1024 };

/* Returns the sum of the two largest scores of a group. */
static double group_score(const double *score, int64_t group, int64_t size) {
  double first = -INFINITY, second = -INFINITY;
  for (int64_t e = group * size; e < (group + 1) * size; ++e) {
    if (score[e] > first) {
      second = first;
      first = score[e];
    } else if (score[e] > second) {
      second = score[e];
    }
  }
  return size > 1 ? first + second : first;
}

/* Turns logits of deepseek_v3 into what its router chooses by: sigmoid + bias, and -inf outside the best groups. Groups
 * of chosen experts go before others whose scores are at most `near` larger. The group `hidden` does as well, unless it
 * is -1. The router may have kept that group without choosing one of its experts. */
static void grouped_scores(const assay_model_config *c, const double *bias, const double *found, int64_t k, double near,
                           int64_t hidden, const double *x, double *score) {
  const int64_t G = c->groups, size = c->experts / G;
  double of_group[MOST_EXPERTS], raised[MOST_EXPERTS];
  for (int64_t e = 0; e < c->experts; ++e)
    score[e] = 1 / (1 + exp(-x[e])) + bias[e];
  for (int64_t g = 0; g < G; ++g)
    raised[g] = of_group[g] = group_score(score, g, size);
  for (int64_t j = 0; j < k; ++j)
    raised[(int64_t)found[j] / size] = of_group[(int64_t)found[j] / size] + near;
  if (hidden >= 0) raised[hidden] = of_group[hidden] + near;
  for (int64_t g = 0; g < G; ++g) {
    int64_t before = 0;
    for (int64_t other = 0; other < G; ++other)
      before += raised[other] > raised[g] || (raised[other] == raised[g] && other < g);
    for (int64_t e = g * size; e < (g + 1) * size && before >= c->groups_used; ++e)
      score[e] = -(double)INFINITY;
  }
}

/* Returns the first choice of a row that is not one of the best and worse by more than `most`; k: there is none. */
static int64_t wrong_choice(const double *x, const double *found, const int64_t *best, int64_t k, double most) {
  int64_t j = 0;
  while (j < k && ((int64_t)found[j] == best[j] || fabs(x[(int64_t)found[j]] - x[best[j]]) <= most))
    ++j;
  return j;
}

/* Tells whether the choices follow if the router has kept some group of which it has chosen no expert. */
static bool by_hidden_group(const assay_model_config *c, const double *bias, const double *x, const double *found,
                            int64_t k, double most) {
  const int64_t E = c->experts, size = E / c->groups;
  double score[MOST_EXPERTS];
  int64_t best[64], seen = 0;
  for (int64_t g = 0; g < c->groups; ++g) {
    bool any = false;
    for (int64_t j = 0; j < k; ++j)
      any = any || (int64_t)found[j] / size == g;
    seen += any;
  }
  for (int64_t g = 0; g < c->groups && seen < c->groups_used; ++g) {
    grouped_scores(c, bias, found, k, 2 * most, g, x, score);
    best_of(score, E, k, best);
    if (wrong_choice(score, found, best, k, most) == k) return true;
  }
  return false;
}

/* Holds the choices of one row against the exact logits. bias: of the scores of deepseek_v3, else NULL. A logit's error
 * moves a sigmoid by a quarter at most, and the score of a group by a half. */
static void check_row(const assay_model_config *c, const double *bias, const model_tap *logits, const model_tap *ids,
                      int64_t n, double most, routes_verdict *v) {
  const int64_t E = logits->width, k = ids->width;
  const double *x = logits->value + n * E, *found = ids->value + n * k;
  double score[MOST_EXPERTS];
  int64_t best[64];
  bool same = true;
  ++v->rows;
  if (!are_experts(found, k, E)) {
    if (v->wrong[0] == '\0')
      (void)snprintf(v->wrong, sizeof v->wrong, "%s: row %lld: found %g ..., allowed %lld different experts of %lld",
                     ids->name, (long long)n, found[0], (long long)k, (long long)E);
    return;
  }
  const bool grouped = bias != NULL && E == c->experts && E <= MOST_EXPERTS;
  if (grouped) {
    most /= 4;
    grouped_scores(c, bias, found, k, 2 * most, -1, x, score);
    x = score;
  }
  best_of(x, E, k, best);
  for (int64_t j = 0; j < k; ++j)
    same = same && (int64_t)found[j] == best[j];
  const int64_t j = wrong_choice(x, found, best, k, most);
  if (j < k && v->wrong[0] == '\0' && !(grouped && by_hidden_group(c, bias, logits->value + n * E, found, k, most)))
    (void)snprintf(v->wrong, sizeof v->wrong,
                   "%s: row %lld, choice %lld: found expert %lld for %lld, whose %s are %.3g apart, allowed %.3g",
                   ids->name, (long long)n, (long long)j, (long long)found[j], (long long)best[j],
                   bias != NULL ? "scores" : "logits", fabs(x[(int64_t)found[j]] - x[best[j]]), most);
  v->differ += !same;
}

/* Loads the bias of a router's scores. Returns NULL where the family has none. */
static const double *bias_of(const assay_model_config *c, const assay_model_weights *weights, const char *router,
                             double *bias) {
  char name[ASSAY_MODEL_NAME + 8];
  (void)snprintf(name, sizeof name, "%s.bias", router);
  const int32_t i = assay_model_weight_index(c, name);
  if (c->arch != ASSAY_DEEPSEEK_V3 || i < 0 || c->experts > MOST_EXPERTS) return NULL;
  assay_load_f64_row(weights->tensor[i].data, weights->tensor[i].dtype, 0, 1, c->experts, bias);
  return bias;
}

void routes_check(const assay_model_config *config, const assay_model_weights *weights, const model_record *exact,
                  const model_record *mirror, const model_record *device, routes_verdict *v) {
  int64_t at_exact = 0, at_mirror = 0;
  double of_layer[MOST_EXPERTS];
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
    const double *bias = bias_of(config, weights, d->name, of_layer);
    const double most = 4 * allowed(config, depth_of(config, exact, e->name), e->value, m->value, e->rows * e->width);
    for (int64_t n = 0; n < ids->rows; ++n) {
      const bool before = v->wrong[0] != '\0';
      check_row(config, bias, e, ids, n, most, v);
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
static void compare_stage(const assay_model_config *config, double depth, const model_tap *e, const model_tap *m,
                          const model_tap *d, taps_verdict *v) {
  double ratio = INFINITY, found = 0;
  if (e == NULL || m == NULL || e->rows != d->rows || e->width != d->width || m->rows != d->rows) {
    if (v->first[0] == '\0')
      (void)snprintf(v->first, sizeof v->first, "%s: a stage of [%lld, %lld] that the reference does not have", d->name,
                     (long long)d->rows, (long long)d->width);
    return;
  }
  const int64_t count = d->rows * d->width;
  const bool good = taps_within(config, depth, e->value, m->value, d->value, count, &ratio, &found);
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

/* Tells whether a device gives the stage whatever its forms are. */
static bool is_always_given(const char *name) {
  return strcmp(name, "embed") == 0 || strcmp(name, "logits") == 0 || ends(name, "attn.residual") ||
         ends(name, "mlp.residual");
}

/* Names the first stage of the reference that the device did not give as often, among those that it always gives. */
static void find_missing(const model_record *exact, const model_record *device, taps_verdict *v) {
  for (int64_t i = 0; i < exact->count && v->first[0] == '\0'; ++i) {
    const char *name = exact->tap[i].name;
    int64_t wanted = 0, found = 0;
    for (int64_t n = 0; n < exact->count && is_always_given(name); ++n)
      wanted += strcmp(exact->tap[n].name, name) == 0;
    for (int64_t n = 0; n < device->count && wanted > 0; ++n)
      found += strcmp(device->tap[n].name, name) == 0;
    if (found >= wanted) continue;
    (void)snprintf(v->first, sizeof v->first, "%s: the device gave %lld of %lld stages", name, (long long)found,
                   (long long)wanted);
    v->first_at = device->count;
  }
}

void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v) {
  model_record all[3] = {{.tap = NULL}, {.tap = NULL}, {.tap = NULL}};
  int64_t at_exact = 0, at_mirror = 0, seen = 0;
  *v = (taps_verdict){.stages = 0};
  record_pool(exact, exact, true, &all[0]);
  record_pool(mirror, mirror, true, &all[1]);
  record_pool(device, device, true, &all[2]);
  for (int64_t i = 0; i < device->count; ++i) {
    const model_tap *d = &device->tap[i];
    const model_tap *e = next_of(exact, d->name, &at_exact), *m = next_of(mirror, d->name, &at_mirror);
    const bool before = v->first[0] != '\0';
    const double depth = depth_of(config, exact, d->name);
    if (!is_few(d->name)) {
      compare_stage(config, depth, e, m, d, v);
    } else if (seen < all[2].count && strcmp(all[2].tap[seen].name, d->name) == 0) {
      compare_stage(config, depth, find(&all[0], d->name), find(&all[1], d->name), &all[2].tap[seen], v);
      ++seen;
    }
    if (!before) v->first_at = i;
  }
  find_missing(exact, device, v);
  if (device->full || exact->full || mirror->full || all[0].full || all[1].full || all[2].full)
    (void)snprintf(v->first, sizeof v->first, "out of memory: stages are missing");
  for (int i = 0; i < 3; ++i)
    record_free(&all[i]);
}
