/* sampler_fill.c: rows for the generator. A recipe is drawn for each row. Arguments that the case leaves out have the
 * value that switches them off. It uses integers and exact arithmetic only. */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/sampler_call.h"

enum { STREAM_RECIPE = 0x736D70, STREAM_HISTORY = 0x736D71, STREAM_LOGITS = 0x736D72 };
enum { STREAM_MAGNITUDE = 0x736D73, STREAM_ENDS = 0x736D74, STREAM_BORDER = 0x736D75, STREAM_MOST = 0x736D76 };
enum { POOL = 6, SHORT_HISTORY = 24, LONG_HISTORY = 2048, ALIGNED_TRIES = 1 << 14 };

static const double far_below = -8000; /* in f16 too; also after any penalty and temperature of the exact tier */

/* The shape of a row's logits. */
typedef enum look {
  LOOK_BY_VALUES, /* as the case's values say */
  LOOK_TIES,      /* in steps of 1/4 */
  LOOK_TWO_VALUES,
  LOOK_ALL_EQUAL,
  LOOK_HALF_BANNED,
  LOOK_FEW_LEFT, /* all banned except up to three */
  LOOK_NAN,      /* this and the next looks are for special values: one NaN */
  LOOK_NAN_AMONG_BANNED,
  LOOK_INFINITE, /* one +Inf */
  LOOK_ALL_BANNED,
  LOOK_HUGE,    /* +-1e38, or the largest number and the lowest */
  LOOK_ZEROS,   /* zeros of both signs */
  LOOK_TINY,    /* subnormals */
  LOOK_LATTICE, /* exact tier, greedy: eighths */
  LOOK_DYADIC,  /* exact tier: 2^bits of one value, the others far below */
  LOOK_TAIL     /* one value, all others a step of `spread` below */
} look;

typedef struct recipe {
  look look;
  double offset, spread, boost; /* boost: for tokens of the history */
  double banned, huge;          /* logits of banned tokens, and of LOOK_HUGE */
  int bits;                     /* LOOK_DYADIC */
  int32_t pool[POOL];           /* tokens of the history */
  sampler_row row;
} recipe;

static int64_t draw(assay_rng *rng, int64_t low, int64_t high) {
  return assay_rng_range(rng, low, high);
}

static double pick(assay_rng *rng, const double *list, int64_t count) {
  return list[draw(rng, 0, count - 1)];
}
#define PICK(rng, ...)                                                                                                 \
  pick(rng, (const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static bool has(const assay_fill *fill, int32_t arg) {
  return fill->call->arg[arg].data != NULL;
}

static int64_t power(int bits) {
  return (int64_t)1 << bits;
}

/* ---- parameters -------------------------------------------------------------------------------------- */

static void draw_identity(assay_rng *rng, sampler_row *row) {
  const bool wide = draw(rng, 0, 3) > 0;
  row->seed = (uint64_t)draw(rng, wide ? -(1LL << 52) : 0, wide ? 1LL << 52 : 1000);
  row->request = (uint64_t)draw(rng, wide ? -(1LL << 52) : 0, wide ? 1LL << 52 : 1000);
  row->step = (uint32_t)(draw(rng, 0, 7) == 0 ? 0x7FFFFFFF : draw(rng, 0, 100000));
}

/* Draws what engines are asked for by default, over logits of which one in 16 stands out. */
static void draw_served(assay_rng *rng, recipe *r) {
  r->look = LOOK_BY_VALUES;
  r->spread = 2;
  r->row.temperature = PICK(rng, 0.6, 0.7, 0.8, 1);
  r->row.top_k = (int64_t)PICK(rng, 20, 40, 50, 64);
  r->row.top_p = PICK(rng, 0.8, 0.9, 0.95);
  r->row.min_p = PICK(rng, 0.02, 0.05, 0.1);
}

static void draw_calibrated(assay_rng *rng, const assay_fill *fill, int64_t V, recipe *r) {
  static const look common[] = {LOOK_BY_VALUES,  LOOK_BY_VALUES, LOOK_BY_VALUES,   LOOK_TIES,
                                LOOK_TWO_VALUES, LOOK_ALL_EQUAL, LOOK_HALF_BANNED, LOOK_FEW_LEFT};
  static const look special[] = {
      LOOK_NAN,  LOOK_NAN_AMONG_BANNED, LOOK_INFINITE,  LOOK_ALL_BANNED, LOOK_HUGE, LOOK_ZEROS,
      LOOK_TINY, LOOK_FEW_LEFT,         LOOK_ALL_EQUAL, LOOK_BY_VALUES};
  sampler_row *row = &r->row;
  const int64_t drawn = draw(rng, 0, 1 << 20);
  r->look = fill->values == ASSAY_SPECIAL  ? special[drawn % 10]
            : fill->values == ASSAY_NORMAL ? common[drawn % 8]
                                           : common[drawn % 16 < 12 ? 0 : 6];
  r->offset = PICK(rng, 0, 0, 12, -12);
  r->spread = PICK(rng, 0.5, 1, 2, 4);
  r->boost = PICK(rng, 0, 1, 2, 3);
  row->temperature = PICK(rng, 0, 1, 1, 0.5, 0.7, 1.3, 2, 5, 0.01);
  switch (draw(rng, 0, 9)) {
  case 0:
    row->top_k = 0;
    break;
  case 1:
    row->top_k = 1;
    break;
  case 2:
    row->top_k = V - 1;
    break;
  case 3:
    row->top_k = V + draw(rng, 0, 1);
    break;
  case 4:
    row->top_k = 1 << 30;
    break;
  default:
    row->top_k = draw(rng, 2, V < 64 ? V + 1 : 64);
  }
  row->top_p = PICK(rng, 1, 0x1.fffffep-1, 0.95, 0.9, 0.8, 0.6, 0.5, 0.3, 1e-6);
  row->min_p = PICK(rng, 0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1);
  row->repetition = PICK(rng, 1, 1.1, 1.3, 2, 0.8);
  row->frequency = PICK(rng, 0, 0.25, 0.6, -0.3, 1.5);
  row->presence = PICK(rng, 0, 0.5, 1.2, -0.4, 2);
  if (fill->values == ASSAY_NEEDLES && V > 1 << 16) draw_served(rng, r); /* smaller rows stay as lists have them */
}

/* Draws exact rows: greedy rows of eighths, and rows of 2^bits equal logits, of which powers of two are kept. In some
 * of the latter u · 2^bits is whole, where only "exceeds" is right. The step is searched for such a u where the search
 * is quick. */
static void draw_exact(assay_rng *rng, const assay_fill *fill, int64_t V, recipe *r) {
  sampler_row *row = &r->row;
  const bool greedy = has(fill, ARG_TEMPERATURE) && draw(rng, 0, 3) == 0;
  const bool aligned = draw(rng, 0, 1) == 1;
  int most = 0, kept;
  while (power(most + 1) <= V)
    ++most;
  r->look = greedy ? LOOK_LATTICE : LOOK_DYADIC;
  r->bits = (int)draw(rng, aligned && most >= 12 ? 12 : 0, most);
  r->offset = PICK(rng, 0, 2, 4, -16);
  row->temperature = greedy ? 0 : PICK(rng, 1, 2, 0.5);
  row->repetition = PICK(rng, 1, 2, 4, 0.5);
  row->frequency = PICK(rng, 0, 0.25, 0.5, -0.25);
  row->presence = PICK(rng, 0, 0.25, 1, -0.5);
  kept = r->bits;
  const int64_t k_form = draw(rng, 0, 4);
  row->top_k = k_form == 0 ? 0 : k_form == 1 ? power(kept) : k_form == 2 ? V + 1 : power(kept) + draw(rng, 0, 5);
  if (k_form == 4) row->top_k = power((int)draw(rng, aligned && kept >= 12 ? 12 : 0, kept));
  if (has(fill, ARG_TOP_K))
    while (row->top_k > 0 && power(kept) > row->top_k)
      --kept;
  const int cut = (int)draw(rng, 0, aligned && kept >= 12 ? kept - 12 : kept);
  row->top_p =
      1.0 / (double)power(cut) - (draw(rng, 0, 1) == 1 ? 0x1p-24 / (double)power(cut) : 0); /* or the f32 below */
  if (has(fill, ARG_TOP_P)) kept -= cut;
  row->min_p = PICK(rng, 0, 0.25, 1);
  if (greedy || !aligned || kept < 12) return;
  for (uint32_t i = 0; i < ALIGNED_TRIES; ++i) {
    const assay_philox x =
        assay_philox4x32(row->seed, row->step + i, 0, (uint32_t)row->request, (uint32_t)(row->request >> 32));
    if ((x.x[0] >> 8 & ((1u << (24 - kept)) - 1)) != 0) continue;
    row->step += i;
    return;
  }
}

/* Returns a power of two at which a type of integers or of numbers ends, or a neighbour of it, of either sign. */
static int64_t at_an_end(assay_rng *rng) {
  static const int end[] = {7, 8, 15, 16, 24, 31, 31, 32, 32, 48, 53, 62};
  const int64_t size = power(end[draw(rng, 0, (int64_t)(sizeof end / sizeof end[0]) - 1)]) + draw(rng, -1, 1);
  return draw(rng, 0, 1) == 1 ? size : -size;
}

/* Draws what a number loses on its way through another type. Seeds and requests have 64 bits, steps have the sign bit,
 * and temperatures begin with the least subnormal number. Ties show whether a small temperature still draws. */
static void draw_extremes(const assay_fill *fill, int64_t b, recipe *r) {
  assay_rng rng = {fill->seed, STREAM_MAGNITUDE + ((uint64_t)b << 24), 0};
  const uint64_t shape = assay_rng_u64(&rng);
  r->row.seed = assay_rng_u64(&rng) | 1;
  r->row.request = assay_rng_u64(&rng) | 1;
  r->row.step = (uint32_t)assay_rng_u64(&rng) | 0x80000001u;
  if ((shape & 0x10) != 0) { /* from a stream of their own, which moves no other draw */
    assay_rng ends = {fill->seed, STREAM_ENDS + ((uint64_t)b << 24), 0};
    r->row.seed = (uint64_t)at_an_end(&ends);
    r->row.request = (uint64_t)at_an_end(&ends);
    r->row.step = (uint32_t)at_an_end(&ends);
  }
  if ((shape & 3) != 0 || fill->magnitude == ASSAY_SMALL) r->look = (shape & 4) != 0 ? LOOK_ALL_EQUAL : LOOK_TIES;
  if (fill->magnitude == ASSAY_SMALL || (shape & 8) != 0)
    r->row.temperature = PICK(&rng, 0x1p-149, 0x1p-140, 0x1p-127, 0x1p-126, 1e-30, 1e-12, 1e-8, 1e-6, 9.9e-6, 1e-5);
}

/* Draws numbers at the ends of the parameters, with logits beside which they show. One row in eight is such a row, or
 * every second one of about 1500 tokens. A tail of many light tokens is cut by a small min_p, and its last tokens by a
 * top_p just below 1. A small or large temperature comes with logits as close or as far apart. Long outputs have a
 * frequency that leaves ids with different counts a chance. Draws come from streams of their own. */
static void draw_borders(const assay_fill *fill, int64_t b, int64_t V, recipe *r) {
  assay_rng rng = {fill->seed, STREAM_BORDER + ((uint64_t)b << 24), 0};
  if (fill->values != ASSAY_NORMAL) return;
  if (has(fill, ARG_OUTPUT) && fill->call->arg[ARG_OUTPUT].shape[1] >= 512 && V < 8)
    r->row.frequency *= 4.0 / (double)power(63 - __builtin_clzll((uint64_t)fill->call->arg[ARG_OUTPUT].shape[1]));
  if (draw(&rng, 0, V > 1024 && V < 2048 ? 1 : 7) != 0) return;
  const bool heat = draw(&rng, 0, 1) == 1 && has(fill, ARG_TEMPERATURE);
  r->look = LOOK_TAIL;
  r->offset = 0;
  r->row.temperature = heat ? PICK(&rng, 0x1p-14, 0x1p-10, 0x1p10, 0x1p14) : 1;
  r->spread = PICK(&rng, 5, 7, 8) * (has(fill, ARG_TEMPERATURE) ? r->row.temperature : 1);
  r->row.min_p = draw(&rng, 0, 1) == 0 ? 0 : PICK(&rng, 0x1p-9, 0x1p-10, 0x1p-12);
  r->row.top_p = draw(&rng, 0, 1) == 0 ? 1 : PICK(&rng, 0.9990234375, 0.99951171875, 0.99609375);
  if (V > 1025 && draw(&rng, 0, 1) == 0) r->row.top_k = draw(&rng, 1025, V);
}

/* Draws what bans a token: -Inf, or the lowest number of the type, as engines have both. Huge logits are 1e38 or the
 * largest number. Repetition must leave them in f32. */
static void draw_ends(const assay_fill *fill, int64_t b, recipe *r) {
  assay_rng rng = {fill->seed, STREAM_MOST + ((uint64_t)b << 24), 0};
  const assay_dtype type = fill->call->arg[ARG_LOGITS].dtype;
  const double most = type == ASSAY_F32 ? 0x1.FFFFFEp127 : type == ASSAY_F16 ? 65504 : 0x1.FEp127;
  const bool lowest = draw(&rng, 0, 1) == 1, largest = draw(&rng, 0, 1) == 1;
  r->banned = lowest && fill->values != ASSAY_LATTICE && r->row.repetition <= 1 ? -most : -(double)INFINITY;
  r->huge = largest && r->row.repetition == 1 ? most : 1e38;
}

static recipe recipe_of(const assay_fill *fill, int64_t b) {
  const int64_t V = fill->call->arg[ARG_LOGITS].shape[1];
  assay_rng rng = {fill->seed, STREAM_RECIPE + ((uint64_t)b << 24), 0};
  recipe r = {.row = sampler_row_neutral};
  draw_identity(&rng, &r.row);
  if (r.row.step > 0x7F000000u && fill->values == ASSAY_LATTICE) r.row.step = 0;
  for (int i = 0; i < POOL; ++i)
    r.pool[i] = (int32_t)draw(&rng, 0, V - 1);
  if (draw(&rng, 0, 1) == 1) r.pool[0] = 0;
  if (draw(&rng, 0, 1) == 1) r.pool[1] = (int32_t)V - 1;
  if (fill->values == ASSAY_LATTICE)
    draw_exact(&rng, fill, V, &r);
  else
    draw_calibrated(&rng, fill, V, &r);
  if (fill->magnitude != ASSAY_USUAL)
    draw_extremes(fill, b, &r);
  else
    draw_borders(fill, b, V, &r);
  if (!has(fill, ARG_REPETITION)) r.row.repetition = 1;
  if (!has(fill, ARG_FREQUENCY)) r.row.frequency = 0;
  if (!has(fill, ARG_PRESENCE)) r.row.presence = 0;
  draw_ends(fill, b, &r);
  return r;
}

/* ---- histories --------------------------------------------------------------------------------------- */

/* Fills a history of a drawn length with tokens of the pool, and some of any kind. -1 stands after its end, and now and
 * then inside it. Histories of the exact tier are short, so that counts stay small. A long list has one token of the
 * pool at its very end alone. */
static void fill_history(const assay_fill *fill, const recipe *r, int64_t b, int32_t arg, double *token) {
  const int64_t V = fill->call->arg[ARG_LOGITS].shape[1], capacity = fill->call->arg[arg].shape[1];
  assay_rng rng = {fill->seed, STREAM_HISTORY + ((uint64_t)arg << 20) + ((uint64_t)b << 28), 0};
  const bool exact = fill->values == ASSAY_LATTICE;
  const int64_t length = draw(&rng, 0, exact && capacity > SHORT_HISTORY ? SHORT_HISTORY : capacity);
  const bool holes = draw(&rng, 0, 7) == 0;
  for (int64_t i = 0; i < capacity; ++i) {
    const uint64_t word = assay_rng_u64(&rng);
    const uint64_t pool = capacity >= LONG_HISTORY ? POOL - 1 : POOL;
    token[i] = word % 8 == 0 ? (double)(word / 64 % (uint64_t)V) : (double)r->pool[word / 8 % pool];
    if (pool < POOL && i + 1 == length) token[i] = (double)r->pool[POOL - 1];
    if (i >= length || (holes && word >> 61 == 0)) token[i] = -1;
  }
}

/* Counts the occurrences among the outputs, and whether a token was seen at all. */
static assay_status count_history(const assay_fill *fill, const recipe *r, int64_t b, int32_t *times,
                                  unsigned char *seen, assay_error *error) {
  const int64_t V = fill->call->arg[ARG_LOGITS].shape[1];
  for (int64_t i = 0; i < V; ++i)
    times[i] = seen[i] = 0;
  for (int32_t arg = ARG_PROMPT; arg <= ARG_OUTPUT; ++arg) {
    if (!has(fill, arg)) continue;
    const int64_t capacity = fill->call->arg[arg].shape[1];
    double *token = malloc((size_t)capacity * sizeof *token);
    if (token == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory for a history");
    fill_history(fill, r, b, arg, token);
    for (int64_t i = 0; i < capacity; ++i) {
      if (token[i] < 0) continue;
      seen[(int64_t)token[i]] = 1;
      times[(int64_t)token[i]] += arg == ARG_OUTPUT;
    }
    free(token);
  }
  return ASSAY_OK;
}

/* ---- logits ------------------------------------------------------------------------------------------ */

static double in_steps(double value, double step) {
  return (double)(int64_t)(value / step) * step;
}

static double looked(const recipe *r, assay_rng *rng, double value) {
  const double spread = r->offset + r->spread * value;
  const uint64_t word = assay_rng_u64(rng);
  switch (r->look) {
  case LOOK_TIES:
    return in_steps(spread, 0.25);
  case LOOK_TWO_VALUES:
    return r->offset + (word % 2 == 0 ? 0 : r->spread);
  case LOOK_ALL_EQUAL:
    return r->offset;
  case LOOK_TAIL:
    return r->offset - r->spread;
  case LOOK_HALF_BANNED:
    return word % 2 == 0 ? spread : r->banned;
  case LOOK_FEW_LEFT:
    return r->banned;
  case LOOK_NAN_AMONG_BANNED:
  case LOOK_ALL_BANNED:
    return -(double)INFINITY;
  case LOOK_HUGE:
    return word % 3 == 0 ? spread : word % 3 == 1 ? r->huge : -r->huge;
  case LOOK_ZEROS:
    return word % 2 == 0 ? 0.0 : -0.0;
  case LOOK_TINY:
    return (double)(word % 64) * (word % 128 < 64 ? 0x1p-149 : -0x1p-149);
  case LOOK_LATTICE:
    return value == 0 && word % 2 == 0 ? -0.0 : value;
  case LOOK_DYADIC:
    return word % 8 == 0 ? r->banned : far_below - (double)(word / 8 % 8) * 64;
  case LOOK_BY_VALUES:
  case LOOK_NAN:
  case LOOK_INFINITE:
    break;
  }
  return spread;
}

/* Returns the exact logit that becomes `value` after the penalties of a token, seen or not, `times` of them in the
 * outputs. */
static double before_penalties(const sampler_row *row, double value, bool seen, int32_t times) {
  if (times > 0) value += row->frequency * times + row->presence;
  return !seen ? value : value > 0 ? value * row->repetition : value / row->repetition;
}

static int64_t common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}

static void fill_row(const recipe *r, assay_rng *rng, int64_t V, const int32_t *times, const unsigned char *seen,
                     double *value) {
  for (int64_t i = 0; i < V; ++i)
    value[i] = looked(r, rng, value[i]);
  for (int i = 0; i < POOL && r->look == LOOK_BY_VALUES; ++i)
    if (seen[r->pool[i]] != 0) value[r->pool[i]] = r->offset + r->spread * (r->boost + 0.125 * i);
  if (r->look == LOOK_FEW_LEFT)
    for (int64_t i = draw(rng, 0, 2); i >= 0; --i)
      value[draw(rng, 0, V - 1)] = r->offset + (double)i * 0.5;
  if (r->look == LOOK_TAIL) value[draw(rng, 0, V - 1)] = r->offset;
  if (r->look == LOOK_NAN || r->look == LOOK_NAN_AMONG_BANNED) value[draw(rng, 0, V - 1)] = (double)NAN;
  if (r->look == LOOK_INFINITE) value[draw(rng, 0, V - 1)] = (double)INFINITY;
  if (r->look != LOOK_DYADIC) return;
  int64_t step = draw(rng, 1, V), place = draw(rng, 0, V - 1);
  while (common_divisor(step, V) != 1)
    ++step;
  for (int64_t i = 0; i < power(r->bits); ++i, place = (place + step) % V) {
    value[place] = before_penalties(&r->row, r->offset, seen[place] != 0, times[place]);
    if (value[place] == 0 && (place & 1) != 0) value[place] = -0.0;
  }
}

static assay_status fill_logits(const assay_fill *fill, double *value, assay_error *error) {
  const assay_tensor *t = &fill->call->arg[ARG_LOGITS];
  const int64_t B = t->shape[0], V = t->shape[1];
  int32_t *times = malloc((size_t)V * sizeof *times);
  unsigned char *seen = malloc((size_t)V);
  assay_status status = ASSAY_OK;
  if (times == NULL || seen == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory for %lld logits", (long long)V);
  assay_fill drawn = *fill;
  if (fill->values == ASSAY_SPECIAL) drawn.values = ASSAY_NORMAL;
  if (status == ASSAY_OK) plain_fill(&drawn, ARG_LOGITS, value, B * V);
  for (int64_t b = 0; b < B && status == ASSAY_OK; ++b) {
    const recipe r = recipe_of(fill, b);
    assay_rng rng = {fill->seed, STREAM_LOGITS + ((uint64_t)b << 24), 0};
    status = count_history(fill, &r, b, times, seen, error);
    if (status == ASSAY_OK) fill_row(&r, &rng, V, times, seen, value + b * V);
  }
  free(times);
  free(seen);
  return status;
}

static double parameter(const sampler_row *row, int32_t arg) {
  switch (arg) {
  case ARG_SEED:
    return (double)(int64_t)row->seed;
  case ARG_STEP:
    return (double)(int32_t)row->step;
  case ARG_REQUEST:
    return (double)(int64_t)row->request;
  case ARG_REPETITION:
    return row->repetition;
  case ARG_FREQUENCY:
    return row->frequency;
  case ARG_PRESENCE:
    return row->presence;
  case ARG_TEMPERATURE:
    return row->temperature;
  case ARG_TOP_K:
    return (double)row->top_k;
  case ARG_TOP_P:
    return row->top_p;
  default:
    return row->min_p;
  }
}

assay_status sampler_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_LOGITS) return fill_logits(fill, value, error);
  const int64_t B = fill->call->arg[arg].shape[0];
  for (int64_t b = 0; b < B; ++b) {
    const recipe r = recipe_of(fill, b);
    if (arg == ARG_PROMPT || arg == ARG_OUTPUT)
      fill_history(fill, &r, b, arg, value + b * (count / B));
    else
      value[b] = parameter(&r.row, arg);
  }
  return ASSAY_OK;
}

bool sampler_fill_wide(const assay_fill *fill, int32_t arg, int64_t *value, int64_t count) {
  if (fill->magnitude == ASSAY_USUAL || (arg != ARG_SEED && arg != ARG_REQUEST)) return false;
  for (int64_t b = 0; b < count; ++b) {
    const recipe r = recipe_of(fill, b);
    value[b] = (int64_t)(arg == ARG_SEED ? r.row.seed : r.row.request);
  }
  return true;
}
