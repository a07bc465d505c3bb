/* ref_sampler_test.c: the sampler's reference against a formulation that sorts, against closed forms and against the
 * frequencies of its own draws; what rounding may reach, against f32 samplers written in three ways. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/sampler_bound.h"
#include "ref/lib/sampler_call.h"
#include "ref/lib/sampler_spoil.h"

const assay_op *assay_op_sampler(void);

enum { LARGEST_V = 152064, HISTORY = 32 };

static double logit[LARGEST_V];
static int32_t prompt[HISTORY], output[HISTORY];
static assay_rng rng;

static double pick(const double *list, int64_t count) {
  return list[assay_rng_range(&rng, 0, count - 1)];
}
#define PICK(...) pick((const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static double stored(double value) {
  return assay_round_f64(value, ASSAY_F32);
}

/* A row with ties (steps of 1/4 and coarser) or without, in f32; `banned` of 16 tokens banned. */
static sampler_row draw_row(int64_t V) {
  sampler_row row = sampler_row_neutral;
  const double step = PICK(0, 0, 0.25, 1, 8), spread = PICK(0.25, 1, 3), offset = PICK(0, 0, 5, -5);
  const int64_t bans = assay_rng_range(&rng, 0, 3) == 0 ? assay_rng_range(&rng, 0, 15) : 0;
  assay_rng_normals(rng.seed, 1000 + rng.index, logit, V);
  for (int64_t i = 0; i < V; ++i) {
    logit[i] = stored(offset + spread * logit[i]);
    if (step > 0) logit[i] = step * rint(logit[i] / step);
    if (bans > 0 && i != V / 2 && assay_rng_range(&rng, 0, 15) < bans) logit[i] = -(double)INFINITY;
  }
  for (int i = 0; i < HISTORY; ++i) {
    prompt[i] = (int32_t)assay_rng_range(&rng, -1, V < 13 ? V - 1 : 12);
    output[i] = (int32_t)assay_rng_range(&rng, -1, V < 13 ? V - 1 : 12);
  }
  row.V = V;
  row.logit = logit;
  row.prompt = prompt;
  row.output = output;
  row.prompt_count = assay_rng_range(&rng, 0, HISTORY);
  row.output_count = assay_rng_range(&rng, 0, HISTORY);
  row.repetition = stored(PICK(1, 1, 1.2, 2, 0.7));
  row.frequency = stored(PICK(0, 0, 0.3, 1, -0.2));
  row.presence = stored(PICK(0, 0, 0.4, 1, -0.5));
  row.temperature = stored(PICK(0, 1, 1, 0.6, 1.7, 0.02));
  row.top_k = (int64_t)PICK(0, 1, 2, 5, 40, (double)(V - 1), (double)V, (double)(V + 1), 1 << 30);
  row.top_p = stored(PICK(1, 0x1.fffffep-1, 0.99, 0.9, 0.5, 0.1, 1e-7));
  row.min_p = stored(PICK(0, 0, 0.01, 0.2, 0.5, 1));
  row.seed = assay_rng_u64(&rng);
  row.request = assay_rng_u64(&rng);
  row.step = (uint32_t)assay_rng_u64(&rng);
  return row;
}

/* ---- the second formulation: sort everything, then walk ---------------------------------------------- */

typedef struct candidate {
  double value, mass;
  int32_t id;
  bool kept;
} candidate;

static int descending(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->value != y->value ? (x->value < y->value ? 1 : -1) : x->id - y->id;
}

static int by_id(const void *a, const void *b) {
  return ((const candidate *)a)->id - ((const candidate *)b)->id;
}

static int32_t by_sorting(const sampler_row *row) {
  candidate *c = malloc((size_t)row->V * sizeof *c);
  for (int32_t id = 0; id < row->V; ++id)
    c[id] = (candidate){row->logit[id], 0, id, true};
  bool seen[13] = {false};
  int times[13] = {0};
  for (int64_t i = 0; i < row->prompt_count; ++i)
    if (row->prompt[i] >= 0) seen[row->prompt[i]] = true;
  for (int64_t i = 0; i < row->output_count; ++i)
    if (row->output[i] >= 0) {
      seen[row->output[i]] = true;
      ++times[row->output[i]];
    }
  for (int32_t id = 0; id < row->V && id < 13; ++id) {
    double *l = &c[id].value;
    if (seen[id]) *l = *l > 0 ? *l / row->repetition : *l * row->repetition;
    if (times[id] > 0) *l -= row->frequency * times[id] + row->presence;
  }
  qsort(c, (size_t)row->V, sizeof *c, descending);
  int32_t token = c[0].id;
  if (row->temperature > 0) {
    const int64_t k = row->top_k == 0 || row->top_k > row->V ? row->V : row->top_k;
    double whole = 0, before = 0;
    for (int64_t i = 0; i < k; ++i)
      whole += c[i].mass = exp((c[i].value - c[0].value) / row->temperature);
    for (int64_t i = 0; i < row->V; ++i) { /* in while the mass before it is below p */
      c[i].kept = i < k && (i == 0 || before < row->top_p * whole) && c[i].mass >= row->min_p * c[0].mass;
      before += c[i].mass;
    }
    qsort(c, (size_t)row->V, sizeof *c, by_id);
    double total = 0, running = 0;
    for (int64_t i = 0; i < row->V; ++i)
      total += c[i].kept ? c[i].mass : 0;
    const assay_philox x =
        assay_philox4x32(row->seed, row->step, 0, (uint32_t)row->request, (uint32_t)(row->request >> 32));
    const double u = (double)(x.x[0] >> 8) / 16777216.0;
    for (token = 0; token < row->V; ++token) {
      running += c[token].kept ? c[token].mass : 0;
      if (running > u * total) break;
    }
  }
  free(c);
  return token;
}

Test(sampler, agrees_with_sorting) {
  static const int64_t sizes[] = {1,   2,   3,    5,    12,   13,    31,    32,    33,     100,    255,
                                  256, 257, 1000, 4095, 5003, 16384, 32000, 50257, 128256, 151936, LARGEST_V};
  sampler_scratch scratch;
  assay_error error = {0};
  cr_assert(sampler_scratch_make(LARGEST_V, &scratch, &error) == ASSAY_OK);
  rng = (assay_rng){.seed = 11};
  int64_t last = 0, rows = 0;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s)
    for (int turn = 0; turn < (sizes[s] > 20000 ? 12 : sizes[s] > 2000 ? 60 : 600); ++turn) {
      const sampler_row row = draw_row(sizes[s]);
      int32_t token;
      cr_assert(sampler_token(&row, &scratch, &token) == SAMPLER_OK);
      const int32_t wanted = by_sorting(&row);
      cr_assert(token == wanted, "V %d turn %d: %d, sorting: %d (T %g, k %d, p %.9g, m %g)", (int)row.V, turn, token,
                wanted, row.temperature, (int)row.top_k, row.top_p, row.min_p);
      last += token == row.V - 1;
      ++rows;
    }
  cr_assert(rows > 8000 && last > 100);
  sampler_scratch_free(&scratch);
}

/* ---- closed forms ------------------------------------------------------------------------------------ */

static int32_t token_of(const sampler_row *row) {
  sampler_scratch scratch;
  assay_error error = {0};
  int32_t token;
  cr_assert(sampler_scratch_make(row->V, &scratch, &error) == ASSAY_OK);
  cr_assert(sampler_token(row, &scratch, &token) == SAMPLER_OK);
  sampler_scratch_free(&scratch);
  return token;
}

/* Equal logits: of n that are kept, the lowest ids, each takes 1/n of u. top-p keeps ceil(p V). */
Test(sampler, equal_logits) {
  rng = (assay_rng){.seed = 12};
  for (int turn = 0; turn < 4000; ++turn) {
    const int64_t V = 1 << assay_rng_range(&rng, 0, 10);
    sampler_row row = sampler_row_neutral;
    for (int64_t i = 0; i < V; ++i)
      logit[i] = i % 2 == 0 ? 0.0 : -0.0;
    row.V = V;
    row.logit = logit;
    row.top_k = turn % 3 == 0 ? assay_rng_range(&rng, 1, V) : 0;
    row.top_p = turn % 2 == 0 ? 1 : (double)assay_rng_range(&rng, 1, 64) / 64;
    row.min_p = turn % 5 == 0 ? 1 : 0;
    row.temperature = turn % 7 == 0 ? 0.01 : 1;
    row.seed = row.request = (uint64_t)turn;
    const int64_t after_k = row.top_k > 0 ? row.top_k : V;
    const int64_t kept = (int64_t)ceil(row.top_p * (double)after_k);
    const int32_t wanted = (int32_t)(sampler_uniform(row.seed, row.step, row.request) * (double)kept);
    const int32_t token = token_of(&row);
    cr_assert(token == wanted, "turn %d: %d, not %d of %d", turn, token, wanted, (int)kept);
  }
}

/* Eight equal masses, whose sums are exact: p at, just below and just above every running sum. The token that crosses p
 * is in, and ties go by id. */
Test(sampler, shortest_prefix) {
  static const double mass[] = {1, 1, 1, 1, 1, 1, 1, 1};
  int32_t order[8];
  for (int j = 1; j <= 8; ++j)
    for (int nudge = -1; nudge <= 1; ++nudge) {
      if (j == 8 && nudge > 0) continue;
      for (int i = 0; i < 8; ++i)
        order[i] = 7 - i;
      const double p = (double)j / 8 + nudge * 0x1p-24;
      const int64_t kept = sampler_prefix(mass, mass, order, 8, p);
      cr_assert(kept == j + (nudge > 0), "p %.9g keeps %d", p, (int)kept);
      for (int i = 0; i < kept; ++i)
        cr_assert(order[i] < kept, "ties go by id");
    }
}

/* u · 4096 whole, where "exceeds" decides: found by search. */
Test(sampler, draw_on_the_edge) {
  enum { V = 4096 };
  sampler_row row = sampler_row_neutral;
  for (int i = 0; i < V; ++i)
    logit[i] = 1;
  row.V = V;
  row.logit = logit;
  int found = 0;
  for (row.request = 0; row.request < 100000; ++row.request) {
    const double u = sampler_uniform(0, 0, row.request);
    if (u * V != floor(u * V)) continue;
    ++found;
    cr_assert(token_of(&row) == (int32_t)(u * V), "u %.9g gives %d", u, token_of(&row));
  }
  cr_assert(found > 8 && found < 60, "%d", found);
}

Test(sampler, uniform_is_philox) {
  /* Random123's answers: x0 = 6627e8d5 for zeros, 408f276d for ones (counter word 1 is 0 here, so only the first). */
  cr_assert(sampler_uniform(0, 0, 0) == (double)0x6627e8 * 0x1p-24);
  for (uint64_t i = 1; i < 100; ++i) {
    const uint64_t seed = i << 32 | (100 - i), request = i << 40 | i;
    const assay_philox x = assay_philox4x32(seed, (uint32_t)i * 3, 0, (uint32_t)i, (uint32_t)(i << 8));
    cr_assert(sampler_uniform(seed, (uint32_t)i * 3, request) == (double)(x.x[0] >> 8) * 0x1p-24);
  }
}

/* ---- errors ------------------------------------------------------------------------------------------ */

Test(sampler, codes_of_rows) {
  static const struct {
    double l[3];
    sampler_code code;
    int32_t greedy;
  } list[] = {
      {{1, NAN, 2}, SAMPLER_NOT_FINITE, -1},
      {{1, INFINITY, 2}, SAMPLER_NOT_FINITE, -1},
      {{-INFINITY, NAN, -INFINITY}, SAMPLER_NOT_FINITE, -1},
      {{-INFINITY, -INFINITY, -INFINITY}, SAMPLER_ALL_BANNED, -1},
      {{-INFINITY, -1e38, -INFINITY}, SAMPLER_OK, 1},
      {{-0.0, 0.0, -0.0}, SAMPLER_OK, 0},
      {{1, 2, 2}, SAMPLER_OK, 1},
  };
  sampler_scratch scratch;
  assay_error error = {0};
  cr_assert(sampler_scratch_make(3, &scratch, &error) == ASSAY_OK);
  for (size_t i = 0; i < sizeof list / sizeof list[0]; ++i) {
    sampler_row row = sampler_row_neutral;
    int32_t token = 77;
    row.V = 3;
    row.logit = list[i].l;
    row.temperature = 0;
    cr_assert(sampler_token(&row, &scratch, &token) == list[i].code && token == list[i].greedy, "row %d: %d", (int)i,
              token);
    row.temperature = 1;
    cr_assert(sampler_token(&row, &scratch, &token) == list[i].code);
    cr_assert((token == -1) == (list[i].code != SAMPLER_OK));
  }
  static const double good[3] = {1, 2, 3};
  static const int32_t history[2][1] = {{3}, {-2}};
  for (int i = 0; i < 17; ++i) {
    sampler_row row = sampler_row_neutral;
    int32_t token = 77;
    row.V = 3;
    row.logit = good;
    double *const real[] = {&row.repetition, &row.repetition, &row.repetition, &row.temperature, &row.temperature,
                            &row.top_p,      &row.top_p,      &row.top_p,      &row.top_p,       &row.min_p,
                            &row.min_p,      &row.min_p,      &row.frequency,  &row.presence};
    static const double wrong[] = {0, -1, NAN, -0.5, INFINITY, 0, -1, 0x1.000002p0, NAN, -0.1, 1.5, NAN, INFINITY, NAN};
    if (i < 14) *real[i] = wrong[i];
    if (i == 14) row.top_k = -1;
    if (i > 14) row.output = history[i - 15];
    if (i > 14) row.output_count = 1;
    cr_assert(sampler_token(&row, &scratch, &token) == (i < 15 ? SAMPLER_PARAMETER : SAMPLER_HISTORY), "%d", i);
    cr_assert(token == -1);
  }
  sampler_scratch_free(&scratch);
}

/* A call by hand: the reference names what is wrong in it. */
typedef struct batch {
  float logits[2 * 4], repetition[2], temperature[2], top_p[2], min_p[2], frequency[2];
  int32_t step[2], top_k[2], output[2 * 3], token[2], status[2];
  int64_t seed[2], request[2];
  assay_tensor arg[ARG_COUNT];
} batch;

static void put(batch *b, int32_t arg, void *data, assay_dtype dtype, int64_t width) {
  b->arg[arg] = (assay_tensor){data, dtype, width > 0 ? 2 : 1, {2, width}, {width > 0 ? width : 1, 1}};
}

static batch *batch_make(void) {
  static batch b;
  b = (batch){.logits = {1, 2, 3, 4, 4, 3, 2, 1},
              .repetition = {1, 1},
              .temperature = {1, 1},
              .top_p = {1, 1},
              .output = {0, -1, -1, 3, 2, -1}};
  put(&b, ARG_LOGITS, b.logits, ASSAY_F32, 4);
  put(&b, ARG_SEED, b.seed, ASSAY_I64, 0);
  put(&b, ARG_STEP, b.step, ASSAY_I32, 0);
  put(&b, ARG_REQUEST, b.request, ASSAY_I64, 0);
  put(&b, ARG_REPETITION, b.repetition, ASSAY_F32, 0);
  put(&b, ARG_FREQUENCY, b.frequency, ASSAY_F32, 0);
  put(&b, ARG_TEMPERATURE, b.temperature, ASSAY_F32, 0);
  put(&b, ARG_TOP_K, b.top_k, ASSAY_I32, 0);
  put(&b, ARG_TOP_P, b.top_p, ASSAY_F32, 0);
  put(&b, ARG_MIN_P, b.min_p, ASSAY_F32, 0);
  put(&b, ARG_OUTPUT, b.output, ASSAY_I32, 3);
  put(&b, ARG_TOKEN, b.token, ASSAY_I32, 0);
  put(&b, ARG_STATUS, b.status, ASSAY_I32, 0);
  return &b;
}

static assay_status run(batch *b, double *token, double *status, assay_error *error) {
  const assay_call call = {assay_op_sampler(), b->arg, NULL};
  assay_expected expected[2] = {{token, NULL}, {status, NULL}};
  const assay_status checked = call.op->check(&call, error);
  return checked != ASSAY_OK ? checked : call.op->reference(&call, NULL, NULL, false, expected, NULL, error);
}

static void refused(batch *b, const char *name, const char *found) {
  double token[2], status[2];
  assay_error error = {0};
  cr_assert(run(b, token, status, &error) == ASSAY_ERR_INPUT, "taken, although %s is wrong", name);
  cr_assert(strncmp(error.text, name, strlen(name)) == 0 && strstr(error.text, found) != NULL &&
                strstr(error.text, "allowed") != NULL,
            "%s", error.text);
}

Test(sampler, contents_are_refused_by_name) {
  double token[2], status[2];
  assay_error error = {0};
  cr_assert(run(batch_make(), token, status, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(token[0] >= 0 && token[0] < 4 && status[0] == 0 && status[1] == 0);
#define WRONG(field, value, name, found)                                                                               \
  do {                                                                                                                 \
    batch *b = batch_make();                                                                                           \
    b->field = value;                                                                                                  \
    refused(b, name, found);                                                                                           \
  } while (0)
  WRONG(repetition[1], 0, "repetition:", "row 1");
  WRONG(temperature[0], -1, "temperature:", "found -1 in row 0");
  WRONG(temperature[0], (float)NAN, "temperature:", "nan");
  WRONG(top_k[1], -3, "top_k:", "found -3");
  WRONG(top_p[0], 0, "top_p:", "found 0");
  WRONG(top_p[0], 1.0000001f, "top_p:", "found 1.0000001");
  WRONG(min_p[1], -0.5f, "min_p:", "found -0.5");
  WRONG(frequency[1], (float)INFINITY, "frequency:", "inf");
  WRONG(output[4], 4, "output:", "found token 4 at [1, 1]");
  WRONG(output[1], -7, "output:", "found token -7 at [0, 1]");
  WRONG(arg[ARG_TOP_K].dtype, ASSAY_F32, "top_k:", "f32");
  WRONG(arg[ARG_STATUS].shape[0], 1, "status:", "found 1");
  batch *b = batch_make();
  b->logits[3] = -3e38f;
  b->output[0] = 3;
  b->repetition[0] = 2;
  refused(b, "logits:", "penalties");
}

/* A broken row is its own business. */
Test(sampler, broken_rows_leave_others_alone) {
  double token[2], status[2], alone[2], good[2];
  assay_error error = {0};
  cr_assert(run(batch_make(), alone, good, &error) == ASSAY_OK);
  batch *b = batch_make();
  b->logits[2] = (float)NAN;
  cr_assert(run(b, token, status, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(token[0] == -1 && status[0] == SAMPLER_NOT_FINITE && token[1] == alone[1] && status[1] == 0);
  for (int i = 4; i < 8; ++i)
    b->logits[i] = -(float)INFINITY;
  cr_assert(run(b, token, status, &error) == ASSAY_OK && token[1] == -1 && status[1] == SAMPLER_ALL_BANNED);
}
