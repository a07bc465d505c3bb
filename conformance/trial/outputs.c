/* outputs.c: gathers what a call wrote as rows in the case's own order, and checks that the bytes between them stay. */
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "trial.h"

static bool is_cache(const assay_arg *arg) {
  return arg->content == ASSAY_K_CACHE || arg->content == ASSAY_V_CACHE;
}

static bool is_integer(assay_dtype dtype) {
  return dtype == ASSAY_I32 || dtype == ASSAY_I64;
}

static trial_output describe(const trial *t, int32_t i) {
  const assay_arg *about = &t->one->op->args[i];
  const assay_tensor *arg = &t->first.arg[i];
  trial_output out = {.arg = i, .width = 1, .dtype = arg->dtype, .inout = about->role == ASSAY_INOUT};
  if (is_cache(about)) {
    out.kind = OUTPUT_CACHE;
    out.rows = t->first.rows;
    out.group = place_channels(&t->first, i);
    out.width = t->first.logical->H_kv * out.group;
    out.exact = true; /* stored codes */
    return out;
  }
  for (int32_t a = 1; a < arg->rank; ++a)
    out.width *= arg->shape[a];
  out.kind = place_row_axis(&t->first, i) == 0 ? OUTPUT_ROWS : OUTPUT_WHOLE;
  out.rows = arg->shape[0];
  out.group = arg->rank > 1 ? arg->shape[arg->rank - 1] : 1;
  /* An output of fixed type (lse) holds values that only f64 represents: it is judged by tier 2 in the exact tier as
   * well. */
  const bool follows = t->one->op->form == ASSAY_PLAIN || about->dtypes[0] == '=' || strchr(about->dtypes, ',') != NULL;
  out.exact = is_integer(arg->dtype) || (t->one->tier == TIER_EXACT && follows);
  return out;
}

void outputs_list(trial *t) {
  const assay_op *op = t->one->op;
  for (int32_t i = 0; i < op->arg_count && t->count < ASSAY_MAX_OUTPUTS; ++i)
    if (op->args[i].role != ASSAY_IN && t->first.arg[i].data != NULL) t->output[t->count++] = describe(t, i);
}

int64_t outputs_judged(const trial *t, int32_t output) {
  return t->output[output].kind == OUTPUT_WHOLE ? t->output[output].rows : t->rows.count;
}

int64_t outputs_row(const trial *t, int32_t output, int64_t r) {
  return t->output[output].kind == OUTPUT_WHOLE || t->row_index == NULL ? r : t->row_index[r];
}

bool outputs_make(const trial *t, outputs *buffers) {
  *buffers = (outputs){{NULL}};
  for (int32_t o = 0; o < t->count; ++o) {
    const int64_t bytes = t->output[o].rows * t->output[o].width * assay_dtype_size(t->output[o].dtype);
    buffers->bits[o] = calloc(bytes > 0 ? (size_t)bytes : 1, 1);
    if (buffers->bits[o] == NULL) return false;
  }
  return true;
}

void outputs_free(outputs *buffers) {
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o)
    free(buffers->bits[o]);
  *buffers = (outputs){{NULL}};
}

/* ---- from an arena to rows, and from one arena to another ------------------------------------------- */

/* A copy of runs of an output's elements. Element 0 may be out of reach; only sums are addresses. */
typedef struct transfer {
  unsigned char *to;
  const unsigned char *from;
  int64_t bias, element; /* bytes from the arena's begin to element 0 */
  bool to_arena;         /* from arena to arena; else to dense rows */
} transfer;

static void copy_run(void *context, int64_t at, int64_t dense, int64_t count) {
  const transfer *c = context;
  const int64_t start = c->bias + at * c->element;
  memcpy(c->to + (c->to_arena ? start : dense * c->element), c->from + start, (size_t)(count * c->element));
}

/* Visits the new tokens' channels in a cache, chunk by chunk. */
static void cache_runs(const image *img, int32_t arg, run_visit visit, void *context) {
  const logical *l = img->logical;
  const cache_strides s = place_strides(img, arg);
  const int64_t run = s.channel == 1 ? s.x : 1, channels = place_channels(img, arg);
  for (int64_t row = 0; row < img->rows; ++row) {
    const int64_t slot = place_slot(img, row);
    if (slot < 0) continue; /* nothing is written for a pad row */
    const int64_t base = slot / l->block_size * s.block + slot % l->block_size * s.token;
    for (int64_t h = 0; h < l->H_kv; ++h)
      for (int64_t d = 0; d < channels; d += run)
        visit(context, base + h * s.head + d / s.x * s.chunk + d % s.x * s.channel,
              (img->row_of[row] * l->H_kv + h) * channels + d, run);
  }
}

static void output_runs(const trial *t, const image *img, int32_t o, run_visit visit, void *context) {
  if (t->output[o].kind == OUTPUT_CACHE)
    cache_runs(img, t->output[o].arg, visit, context);
  else
    place_runs(img, t->output[o].arg, visit, context);
}

static transfer transfer_of(const trial *t, const image *img, int32_t o, const unsigned char *from, unsigned char *to) {
  const int32_t arg = t->output[o].arg;
  return (transfer){.to = to,
                    .from = from,
                    .bias = img->extent[arg].offset + img->bias[arg],
                    .element = assay_dtype_size(t->output[o].dtype)};
}

void outputs_gather(const trial *t, const image *img, const unsigned char *after, outputs *got) {
  for (int32_t o = 0; o < t->count; ++o) {
    transfer c = transfer_of(t, img, o, after, got->bits[o]);
    output_runs(t, img, o, copy_run, &c);
  }
}

typedef struct scattering {
  unsigned char *to;
  const unsigned char *from;
  int64_t bias, element, shift, elements; /* shift: in elements */
} scattering;

/* Copies a run whose source may go on at the first element: a vector without rows is one run. */
static void scatter_run(void *context, int64_t at, int64_t dense, int64_t count) {
  const scattering *s = context;
  const int64_t from = (dense + s->shift) % s->elements, left = s->elements - from, first = count < left ? count : left;
  unsigned char *const to = s->to + s->bias + at * s->element;
  memcpy(to, s->from + from * s->element, (size_t)(first * s->element));
  memcpy(to + first * s->element, s->from, (size_t)((count - first) * s->element));
}

void outputs_scatter(const trial *t, const image *img, int32_t o, const unsigned char *bits, int64_t shift) {
  const trial_output *out = &t->output[o];
  const transfer where = transfer_of(t, img, o, bits, NULL);
  scattering s = {img->host, bits, where.bias, where.element, shift * out->width, out->rows * out->width};
  if (s.elements > 0) output_runs(t, img, o, scatter_run, &s);
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static bool has_rest(const trial *t, int32_t o) {
  const assay_arg *about = &t->one->op->args[t->output[o].arg];
  return t->output[o].kind == OUTPUT_CACHE || about->strided;
}

static bool same_rest(const trial *t, const image *img, int32_t o, const unsigned char *expected,
                      const unsigned char *after, case_result *result) {
  const span s = img->extent[t->output[o].arg];
  const bool cache = t->output[o].kind == OUTPUT_CACHE;
  int64_t changed = 0, first = -1;
  if (memcmp(expected + s.offset, after + s.offset, (size_t)s.bytes) == 0) return true;
  for (int64_t i = s.offset; i < s.offset + s.bytes; ++i) {
    if (expected[i] == after[i]) continue;
    if (first < 0) first = i - s.offset;
    ++changed;
  }
  const int64_t element = assay_dtype_size(t->output[o].dtype);
  verdict_set(result, VERDICT_FAIL, "guard",
              "%s: the call changed what is %s, first element %lld of its allocation "
              "of %lld (%s); %lld bytes changed",
              t->one->op->args[t->output[o].arg].name, cache ? "no new token's" : "between its rows",
              (long long)(first / element), (long long)(s.bytes / element), assay_dtype_name(t->output[o].dtype),
              (long long)changed);
  return false;
}

bool outputs_rest(const trial *t, const image *img, const unsigned char *after, case_result *result) {
  bool any = false, good = true;
  for (int32_t o = 0; o < t->count; ++o)
    any = any || has_rest(t, o);
  if (!any) return true;
  unsigned char *expected = malloc((size_t)img->arena_bytes);
  if (expected == NULL) {
    verdict_set(result, VERDICT_FAIL, "launch", "judge: out of memory");
    return false;
  }
  memcpy(expected, img->host, (size_t)img->arena_bytes);
  for (int32_t o = 0; o < t->count; ++o) { /* K and V may share an allocation */
    transfer c = transfer_of(t, img, o, after, expected);
    c.to_arena = true;
    output_runs(t, img, o, copy_run, &c);
  }
  for (int32_t o = 0; o < t->count && good; ++o)
    if (has_rest(t, o)) good = same_rest(t, img, o, expected, after, result);
  free(expected);
  return good;
}
