/* mla_fill.c: requests of mla_attention and what the generator puts into its arguments. A request has blocks of its
 * own. Entries that no request owns, and table entries past a request's last block, are dead.
 *
 * The exact tier steers every score twice. A query row is of one class by its place in its request and its head. It has
 * -A in the latent channel r of its class and +A in the rotated channel of its class. A live key of the class has
 * pe = c_r there: its score is exactly 0. A dead key has 0 there: its score is -A c_r scale, far below. pe is 256 times
 * as large, and its factor 256 times as small, so that e4m3 cannot hold it. */
#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/mla.h"
#include "ref/lib/plain.h"

enum { ROW_CLASSES = 8, HEAD_CLASSES = 8, MOST_DOUBLINGS = 3, ROTATED = 256 };

typedef struct batch {
  const assay_fill *fill;
  int64_t N, B, P, S, W, budget; /* budget: blocks that a request may own */
} batch;

static batch batch_of(const assay_fill *fill) {
  const assay_tensor *arg = fill->call->arg, *pool = mla_pool(fill->call);
  batch b = {.fill = fill,
             .N = arg[MLA_Q].shape[0],
             .B = arg[MLA_LENGTHS].shape[0],
             .P = pool->shape[0],
             .S = pool->shape[1],
             .W = arg[MLA_TABLE].shape[1]};
  if (b.P < 1) b.P = 1; /* no pool: the call is refused */
  b.budget = b.B > 0 ? b.P / b.B : 0;
  if (b.budget > b.W) b.budget = b.W;
  return b;
}

enum { LONG = 32 }; /* blocks: so many make a request long, as in benches */

static bool is_long(const batch *b) {
  return b->budget >= LONG && b->S >= LONG / 2;
}

/* Returns the first row of a request. Where B divides N all have the same number of rows, in half of the cases and in
 * benches. In the others each begins anywhere in its share of the rows, or in that of the request before. */
static int64_t begin_of(const batch *b, int64_t request) {
  if (request == 0) return 0;
  if (request >= b->B) return b->N;
  assay_rng all = {b->fill->seed, 0x6D6C6375, 0}, own = {b->fill->seed, 0x6D6C6375, 8 * (uint64_t)request};
  const int64_t even = request * b->N / b->B, before = (request - 1) * b->N / b->B;
  if (b->N % b->B == 0 && (is_long(b) || assay_rng_range(&all, 0, 1) != 0)) return even;
  return assay_rng_range(&own, before, even);
}

static int64_t rows_of(const batch *b, int64_t request) {
  return begin_of(b, request + 1) - begin_of(b, request);
}

/* Draws L of a request. Long tables, as benches have them, are filled. */
static int64_t length_of(const batch *b, int64_t request) {
  assay_rng rng = {b->fill->seed, 0x6D6C656E, 8 * (uint64_t)request};
  const int64_t most = b->budget * b->S, kind = assay_rng_range(&rng, 0, 7);
  const int64_t any = assay_rng_range(&rng, 0, most), blocks = assay_rng_range(&rng, 0, b->budget);
  const int64_t near = blocks * b->S + assay_rng_range(&rng, -1, 1);
  if (is_long(b)) return most;
  if (kind == 0) return any < rows_of(b, request) ? any : 0;
  if (kind < 4) return near < 1 ? (most > 0 ? 1 : 0) : near > most ? most : near;
  return kind == 4 ? most : any;
}

/* Blocks are numbered by an affine map modulo P. */
static int64_t factor_of(const batch *b) {
  static const int64_t factor[] = {7919, 104729, 1299709, 1};
  int64_t i = 0;
  while (factor[i] > 1 && b->P % factor[i] == 0)
    ++i;
  return factor[i];
}

static int64_t shift_of(const batch *b) {
  assay_rng rng = {b->fill->seed, 0x6D626C6F, 0};
  return assay_rng_range(&rng, 0, b->P - 1);
}

/* Returns entry j of a request's table. Past the last block it is anything. */
static double table_entry(const batch *b, int64_t request, int64_t j) {
  static const double dead[] = {-1, 2147483647, -2147483647, 1 << 30};
  if (j * b->S >= length_of(b, request)) return dead[(request + j) % 4];
  return (double)(((request * b->budget + j) % b->P * (factor_of(b) % b->P) + shift_of(b)) % b->P);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* The live keys of a class in a request: `count` keys from `start` on, `step` apart, modulo `seen`. All rows of the
 * class see them. `trap`: the key after the last one that the class's only row sees is alive as well. */
typedef struct live_keys {
  int64_t seen, count, start, step;
  bool trap;
} live_keys;

static live_keys live_of(const batch *b, int64_t request, int64_t class) {
  const int64_t L = length_of(b, request);
  const int64_t T = rows_of(b, request);
  int64_t row = class / HEAD_CLASSES;
  while (row < T && L - T + row < 0)
    row += ROW_CLASSES;
  live_keys k = {0};
  if (row >= T) return k;
  assay_rng rng = {b->fill->seed, 0x6D6C6976, 256 * (uint64_t)request + 4 * (uint64_t) class};
  k.seen = L - T + row + 1;
  int64_t most = 0;
  while (most < MOST_DOUBLINGS && 4 << most <= k.seen)
    ++most;
  k.count = (int64_t)1 << assay_rng_range(&rng, 0, most);
  k.step = k.seen / k.count;
  k.start = assay_rng_range(&rng, 0, 1) != 0 ? k.seen - 1 : assay_rng_range(&rng, 0, k.seen - 1);
  k.trap = row + ROW_CLASSES >= T && k.seen < L;
  return k;
}

static bool is_live(const live_keys *k, int64_t t) {
  if (t >= k->seen) return k->trap && t == k->seen;
  const int64_t behind = (t - k->start + k->seen) % k->seen;
  return behind % k->step == 0 && behind / k->step < k->count;
}

static int64_t channel_of(int64_t class) {
  return (class * 101 + 37) % MLA_C;
}

/* Fills an entry of the exact tier: 8 to 15 times a power of two, which differs from tile to tile and key to key. */
static void exact_entry(const batch *b, int64_t request, int64_t t, double *entry) {
  assay_rng rng = {b->fill->seed, 0x6D6C6578, 128 * ((uint64_t)request << 32 | (uint64_t)t)};
  for (int i = 0; i < MLA_C; i += 16) {
    const uint64_t bits = assay_rng_u64(&rng);
    for (int k = 0; k < 16; ++k) {
      const int tile = (i + k) / MLA_TILE, e = (tile + (int)(request % 3)) % 3 + (int)(t % 2) - 3;
      entry[i + k] = ldexp((double)(8 + (bits >> 4 * k & 7)), e);
    }
  }
  for (int64_t class = 0; class < MLA_PE; ++class) {
    const live_keys k = live_of(b, request, class);
    entry[MLA_C + class] = k.seen > 0 && is_live(&k, t) ? ROTATED * entry[channel_of(class)] : 0;
  }
}

static void exact_query(const batch *b, int64_t row, int64_t head, double *q) {
  int64_t request = 0;
  while (begin_of(b, request + 1) <= row)
    ++request;
  const int64_t class = (row - begin_of(b, request)) % ROW_CLASSES * HEAD_CLASSES + head % HEAD_CLASSES;
  const double size = 1024 / b->fill->call->param[MLA_SCALE];
  for (int i = 0; i < MLA_ENTRY; ++i)
    q[i] = 0;
  q[channel_of(class)] = -size;
  q[MLA_C + class] = size / ROTATED;
}

/* ---- scores far from 0 ------------------------------------------------------------------------------- */

enum { BASE = 16 }; /* in the last channel of every key of a request whose scores are moved */

/* Tells whether the scores of a request are moved, in the calibrated tier. Weights stay as they are then, and lse
 * moves. A running maximum that begins at a finite number has no weight left for scores far below it. */
static bool is_moved(const batch *b, int64_t request) {
  assay_rng rng = {b->fill->seed, 0x6D6C6D76, 4 * (uint64_t)request};
  return b->fill->values == ASSAY_NORMAL && assay_rng_range(&rng, 0, 3) == 0;
}

/* Returns what a query has in the last channel, so that all scores of a row and head move by the same distance. Every
 * second head keeps its scores: far ones have wide limits, and a lost key of little weight would hide there. */
static double moving_channel(const batch *b, int64_t row, int64_t head, double usual) {
  static const double distance[] = {-150, 150, -400, 400, -1000, 1000, -1100, 1100};
  int64_t request = 0;
  while (begin_of(b, request + 1) <= row)
    ++request;
  assay_rng rng = {b->fill->seed, 0x6D6C6D77, 4 * (uint64_t)(row << 16 | head)};
  const double moved = distance[assay_rng_range(&rng, 0, 7)] / (BASE * b->fill->call->param[MLA_SCALE]);
  return is_moved(b, request) && (row + head) % 2 != 0 && fabs(moved) < 32768 ? moved : usual;
}

/* ---- pools ------------------------------------------------------------------------------------------- */

static void number_entry(const batch *b, int64_t request, int64_t t, double *entry) {
  const uint64_t stream = 0x6D6C7661 + ((uint64_t)request << 32);
  assay_rng rng = {b->fill->seed, 0x6D6C6B69, 4 * ((uint64_t)request << 32 | (uint64_t)t)};
  assay_rng_normals(b->fill->seed, stream + ((uint64_t)t << 44) + ((uint64_t)t >> 20), entry, MLA_ENTRY);
  const uint64_t kind = assay_rng_u64(&rng);
  for (int i = 0; i < MLA_ENTRY && b->fill->values == ASSAY_HEAVY_TAILED; ++i)
    if ((i * 29 + (int)(kind & 1023)) % 64 == 0) entry[i] *= 8;
  for (int i = 0; i < MLA_C; ++i) /* tiles have different scales */
    entry[i] = ldexp(entry[i], (int)((uint64_t)(i / MLA_TILE) + kind / 16) % 3 - 1);
  for (int i = 0; i < MLA_ENTRY && b->fill->values == ASSAY_NEEDLES; ++i)
    if (kind % 8 != 0) entry[i] *= 0.125;
  if (is_moved(b, request)) entry[MLA_ENTRY - 1] = BASE;
}

/* Packs an entry with scales that fit its tiles. One entry in four has scales that are no powers of two, where the tier
 * allows them. */
static void pack_entry(const batch *b, int64_t t, const double *entry, double *word) {
  uint32_t packed[MLA_WORDS];
  double scale[MLA_TILES];
  for (int g = 0; g < MLA_TILES; ++g) {
    const bool whole = b->fill->values == ASSAY_LATTICE || t % 4 != 3;
    scale[g] = mla_scale(mla_amax(entry + g * MLA_TILE, MLA_TILE)) * (whole ? 1 : 1.4375);
  }
  mla_pack(entry, scale, entry + MLA_C, packed);
  for (int i = 0; i < MLA_WORDS; ++i)
    word[i] = (double)(int32_t)packed[i];
}

/* Fills the pool. A slot that no request owns holds NaN, infinities or the largest numbers. */
static void fill_pool(const batch *b, int32_t arg, double *value, int64_t count) {
  static const double dead[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 65504};
  const int64_t width = arg == MLA_WORDS_ARG ? MLA_WORDS : MLA_ENTRY;
  for (int64_t i = 0; i < count; ++i)
    value[i] = arg == MLA_WORDS_ARG ? (i % 3 != 0 ? -1 : 0x7F800000) : dead[i / width % 4];
  for (int64_t request = 0; request < b->B; ++request)
    for (int64_t t = 0; t < length_of(b, request); ++t) {
      double entry[MLA_ENTRY];
      const int64_t slot = (int64_t)table_entry(b, request, t / b->S) * b->S + t % b->S;
      if (b->fill->values == ASSAY_LATTICE)
        exact_entry(b, request, t, entry);
      else
        number_entry(b, request, t, entry);
      if (arg == MLA_WORDS_ARG)
        pack_entry(b, t, entry, value + slot * width);
      else
        for (int i = 0; i < MLA_ENTRY; ++i)
          value[slot * width + i] = entry[i];
    }
}

assay_status mla_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  const batch b = batch_of(fill);
  const int64_t H = fill->call->arg[MLA_Q].shape[1];
  (void)error;
  if (arg == MLA_CACHE || arg == MLA_WORDS_ARG) {
    fill_pool(&b, arg, value, count);
    return ASSAY_OK;
  }
  if (arg == MLA_Q && fill->values != ASSAY_LATTICE) {
    plain_fill(fill, (uint64_t)arg, value, count);
    for (int64_t i = 0; i < count / MLA_ENTRY; ++i) {
      double *const last = value + (i + 1) * MLA_ENTRY - 1;
      *last = moving_channel(&b, i / H, i % H, *last);
    }
    return ASSAY_OK;
  }
  for (int64_t i = 0; i < count; i += arg == MLA_Q ? MLA_ENTRY : 1) {
    if (arg == MLA_Q) exact_query(&b, i / MLA_ENTRY / H, i / MLA_ENTRY % H, value + i);
    if (arg == MLA_CU) value[i] = (double)begin_of(&b, i);
    if (arg == MLA_TABLE) value[i] = table_entry(&b, i / b.W, i % b.W);
    if (arg == MLA_LENGTHS) value[i] = (double)length_of(&b, i);
  }
  return ASSAY_OK;
}
