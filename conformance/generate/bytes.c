/* bytes.c: the contents of the arena. Everything starts as poison, which guards and outputs keep. Inputs start as dead
 * bytes; only the elements on which some result may depend are then written over them. */
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "place.h"
#include "conformance/text/text.h"

enum { PATTERN_ELEMENTS = 509 };

void poison_fill(void *bytes, int64_t count, uint8_t poison) {
  const uint16_t half = poison_half(poison);
  unsigned char *at = bytes;
  if (count >= 2) memcpy(at, &half, sizeof half);
  int64_t done = count >= 2 ? 2 : 0;
  for (; done > 0 && 2 * done <= count; done *= 2)
    memcpy(at + done, at, (size_t)done);
  if (done > 0) memcpy(at + done, at, (size_t)(count - done));
  if (count == 1) at[0] = (unsigned char)(half & 0xFF);
}

static bool is_cache(const image *img, int32_t arg) {
  const assay_content content = img->origin->op->args[arg].content;
  return img->arg[arg].data != NULL && (content == ASSAY_K_CACHE || content == ASSAY_V_CACHE);
}

/* Fills everything with poison except the caches, which bytes_values() fills whole. */
void bytes_guards(image *img) {
  int64_t from = 0;
  for (int32_t i = 0; i < img->origin->op->arg_count; ++i) {
    const span s = img->extent[i];
    if (!is_cache(img, i) || s.offset < from) continue;
    poison_fill(img->host + from, s.offset - from, img->chosen.poison);
    from = (s.offset + s.bytes) / 2 * 2;
  }
  poison_fill(img->host + from, img->arena_bytes - from, img->chosen.poison);
}

/* ---- dead bytes -------------------------------------------------------------------------------------- */

/* Returns a bit pattern by kind. e4m3 has no infinity and takes its NaN. The caller sets the sign. */
static uint32_t dead_bits(assay_dtype dtype, case_dead kind) {
  static const struct {
    assay_dtype dtype;
    uint32_t nan, inf, largest;
  } table[] = {
      {ASSAY_F32, 0x7FC00000u, 0x7F800000u, 0x7F7FFFFFu},
      {ASSAY_F16, 0x7E00u, 0x7C00u, 0x7BFFu},
      {ASSAY_BF16, 0x7FC0u, 0x7F80u, 0x7F7Fu},
      {ASSAY_E4M3, 0x7Fu, 0x7Fu, 0x7Eu},
      {ASSAY_E5M2, 0x7Fu, 0x7Cu, 0x7Bu},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i)
    if (table[i].dtype == dtype)
      return kind == DEAD_NAN       ? table[i].nan
             : kind == DEAD_INF     ? table[i].inf
             : kind == DEAD_LARGEST ? table[i].largest
                                    : 0;
  return 0;
}

/* A pattern of `bytes` bytes that dead bytes repeat. */
typedef struct dead_pattern {
  unsigned char byte[PATTERN_ELEMENTS * 8];
  int64_t bytes;
} dead_pattern;

/* Makes dead elements of mixed signs. Stale ones look like the values of an earlier call. */
static void make_pattern(dead_pattern *dead, assay_dtype dtype, case_dead kind, uint64_t seed) {
  const int64_t element = assay_dtype_size(dtype);
  const int sign = (int)(8 * element - 1);
  unsigned char *pattern = dead->byte;
  assay_rng rng = {seed, STREAM_STALE, 0};
  uint64_t word = 0;
  dead->bytes = PATTERN_ELEMENTS * element;
  if (kind == DEAD_ZERO) {
    memset(pattern, 0, sizeof dead->byte);
    return;
  }
  if (kind == DEAD_STALE) {
    double value[PATTERN_ELEMENTS];
    assay_rng_normals(seed, STREAM_STALE, value, PATTERN_ELEMENTS);
    assay_store_f64_row(pattern, dtype, 0, 1, PATTERN_ELEMENTS, value);
  }
  for (int64_t i = 0; i < PATTERN_ELEMENTS && kind != DEAD_STALE; ++i) {
    if (i % 64 == 0) word = assay_rng_u64(&rng);
    const uint32_t bits = dead_bits(dtype, kind) | (uint32_t)(word >> (i % 64) & 1) << sign;
    if (element == 2) /* little-endian, as the devices are */
      memcpy(pattern + 2 * i, &bits, 2);
    else
      memcpy(pattern + i * element, &bits, (size_t)element);
  }
}

/* Fills bytes [from, to) of an argument of dead bytes that begins at `start`. */
static void fill_pattern(unsigned char *start, int64_t from, int64_t to, const dead_pattern *pattern) {
  for (int64_t at = from, phase = from % pattern->bytes; at < to; phase = 0) {
    const int64_t room = pattern->bytes - phase, part = to - at < room ? to - at : room;
    memcpy(start + at, pattern->byte + phase, (size_t)part);
    at += part;
  }
}

static void fill_dead(void *to, int64_t bytes, assay_dtype dtype, case_dead kind, uint64_t seed) {
  dead_pattern pattern;
  make_pattern(&pattern, dtype, kind, seed);
  fill_pattern(to, 0, bytes, &pattern);
}

/* Returns a table entry that no kernel may follow: out of range on either side, or, if stale, a block of another
 * request. */
static int32_t dead_entry(const image *img, assay_rng *rng) {
  const int64_t end = img->first_block + img->pool_blocks;
  const uint64_t random = assay_rng_u64(rng);
  const int64_t inside = img->first_block + (int64_t)((random >> 8) % (uint64_t)img->pool_blocks);
  if (img->chosen.dead == DEAD_ZERO) return (int32_t)img->first_block;
  if (img->chosen.dead == DEAD_STALE) return (int32_t)inside;
  switch (random % 5) {
  case 0:
    return -1;
  case 1:
    return INT32_MAX;
  case 2:
    return INT32_MIN;
  case 3:
    return (int32_t)end;
  default:
    return (int32_t)(end > INT32_MAX - 1000000 ? INT32_MAX - 1 : end + (int64_t)((random >> 8) % 1000000));
  }
}

/* ---- small arguments --------------------------------------------------------------------------------- */

static void write_table(image *img, int32_t *table, int64_t width) {
  const logical *l = img->logical;
  assay_rng rng = {l->origin->seed ^ (uint64_t)img->chosen.dead << 32, STREAM_TAIL, 0};
  for (int64_t slot = 0; slot < l->B; ++slot) {
    const int32_t request = img->request_of_slot[slot];
    const int64_t first = l->block_start[request], used = l->block_start[request + 1] - first;
    for (int64_t j = 0; j < width; ++j)
      table[slot * width + j] =
          j < used ? (int32_t)(img->first_block + img->physical[l->block_identity[first + j]]) : dead_entry(img, &rng);
  }
}

/* Writes one gamma per head: never 0, of both signs, neighbours never equal. Lattice: powers of two. In half of the
 * cases of mixed magnitude all are 2^-24 times as large. */
static void write_gamma(const logical *l, float *gamma) {
  const uint64_t random = logical_hash(l->origin, STREAM_GAMMA);
  const bool tiny = l->origin->magnitude == ASSAY_MIXED && (random >> 60 & 1) != 0;
  for (int64_t h = 0; h < l->H; ++h) {
    const uint64_t turn = (random & 3) + (uint64_t)h;
    const double size = l->origin->values == ASSAY_LATTICE
                            ? (double[]){0.5, 1.0, 2.0}[turn % 3]
                            : 0.53 + 0.17 * (double)(turn % 7) + 0.0009 * (double)(random >> 8 & 63);
    gamma[h] = (float)(((random >> (16 + h % 32) & 1) != 0 ? -size : size) * (tiny ? 0x1p-24 : 1));
  }
}

/* Gives slopes both signs, and every third one a magnitude that leaves its term without effect or with all of it. */
static void other_slopes(const logical *l, float *slope) {
  static const float factor[] = {-1.0f, 1.0f, -4.0f, 0x1p-140f, -0.0f, -0x1p-30f, 8.0f};
  const uint64_t random = logical_hash(l->origin, STREAM_MAGNITUDE ^ 1);
  for (int64_t h = 0; h < l->H; ++h)
    slope[h] *= factor[(random + (uint64_t)h) % (sizeof factor / sizeof factor[0])];
}

/* Writes 2^(-8(h + 1)/H), the fraction of the exponent taken linearly: distinct, positive, without libm. */
static void write_slopes(const logical *l, float *slope) {
  for (int64_t h = 0; h < l->H; ++h) {
    const int64_t whole = 8 * (h + 1) / l->H, rest = 8 * (h + 1) % l->H;
    double value = 1.0 - 0.5 * (double)rest / (double)l->H;
    for (int64_t i = 0; i < whole; ++i)
      value *= 0.5;
    slope[h] = (float)value;
  }
  if (l->origin->magnitude != ASSAY_USUAL) other_slopes(l, slope);
}

/* Writes w_0 = 1 - sigma/F, the others -sigma/F, then adds skew·j to w_j. */
static void write_taps(const logical *l, float *tap) {
  for (int64_t j = 0; j < l->F; ++j)
    tap[j] = (float)((j == 0 ? 1.0 : 0.0) - l->origin->sigma / (double)l->F + l->origin->tap_skew * (double)j);
}

void bytes_small(image *img) {
  const logical *l = img->logical;
  const assay_op *op = l->origin->op;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *t = &img->arg[i];
    if (t->data == NULL) continue;
    void *to = img->host + img->extent[i].offset;
    int32_t *number = to;
    bool first_scale = true;
    switch (op->args[i].content) {
    case ASSAY_BLOCK_TABLE:
      write_table(img, number, t->shape[1]);
      break;
    case ASSAY_KV_LEN:
      for (int64_t b = 0; b < l->B; ++b)
        number[b] = l->length[img->request_of_slot[b]];
      break;
    case ASSAY_CU_Q:
      number[0] = 0;
      for (int64_t b = 0; b < l->B; ++b)
        number[b + 1] = number[b] + l->fresh[img->request_of_slot[b]];
      break;
    case ASSAY_CU_K:
      for (int64_t b = 0; b <= l->B; ++b)
        number[b] = (int32_t)(img->first_block + img->first_row[b]);
      break;
    case ASSAY_KV_SCALE: /* the first is K's, the second V's */
      for (int32_t j = 0; j < i; ++j)
        first_scale = first_scale && op->args[j].content != ASSAY_KV_SCALE;
      memcpy(to, first_scale ? l->k_scale : l->v_scale, (size_t)l->kv_scales * sizeof(float));
      break;
    case ASSAY_TAPS:
      write_taps(l, to);
      break;
    case ASSAY_GAMMA:
      write_gamma(l, to);
      break;
    case ASSAY_SLOPES:
      write_slopes(l, to);
      break;
    case ASSAY_SLOTS:
      for (int64_t row = 0; row < img->rows; ++row)
        ((int64_t *)to)[row] = place_slot(img, row);
      break;
    case ASSAY_QUERY:
    case ASSAY_K_CACHE:
    case ASSAY_V_CACHE:
    case ASSAY_RESULT:
    case ASSAY_VALUES:
    case ASSAY_K_NEW:
    case ASSAY_V_NEW:
    case ASSAY_QKV_NEW:
      break;
    }
  }
}

/* ---- q, K, V ----------------------------------------------------------------------------------------- */

/* A piece of a row of new tokens: `heads` heads of some channels. A row has one, two or three pieces side by side. */
typedef struct row_piece {
  const unsigned char *code; /* [N, heads, channels] in the case's order */
  int64_t heads, channels;
} row_piece;

static void write_rows(image *img, int32_t arg, const row_piece *piece, int32_t count) {
  const logical *l = img->logical;
  const assay_tensor *t = &img->arg[arg];
  const int64_t element = assay_dtype_size(t->dtype);
  unsigned char *to = img->host + img->extent[arg].offset;
  for (int64_t row = 0; row < img->rows; ++row) {
    const int32_t request = img->request_of_row[row];
    const int64_t last = (int64_t)l->length[request] - l->fresh[request] + img->position_of_row[row];
    unsigned char *at = to + (img->rows > 1 ? row * t->stride[0] : 0) * element;
    if (last < 0) continue; /* sees no key: its query is dead */
    for (int32_t p = 0; p < count; ++p) {
      const int64_t bytes = piece[p].heads * piece[p].channels * element;
      memcpy(at, piece[p].code + img->row_of[row] * bytes, (size_t)bytes);
      at += bytes;
    }
  }
}

static void write_new_rows(image *img, int32_t arg, assay_content content) {
  const logical *l = img->logical;
  const row_piece q = {l->q, l->H, l->D}, k = {l->k_new, l->H_kv, l->D}, v = {l->v_new, l->H_kv, l->D_v};
  const row_piece all[3] = {q, k, v};
  if (content == ASSAY_QUERY) write_rows(img, arg, &q, 1);
  if (content == ASSAY_K_NEW) write_rows(img, arg, &k, 1);
  if (content == ASSAY_V_NEW) write_rows(img, arg, &v, 1);
  if (content == ASSAY_QKV_NEW) write_rows(img, arg, all, 3);
}

void place_runs(const image *img, int32_t arg, run_visit visit, void *context) {
  const assay_tensor *t = &img->arg[arg];
  const int32_t axis = place_row_axis(img, arg), last = t->rank - 1;
  int64_t runs = 1, index[ASSAY_MAX_RANK] = {0}, step[ASSAY_MAX_RANK];
  for (int32_t a = last, size = 0; a >= 0; --a, ++size)
    step[a] = a == last ? 1 : step[a + 1] * t->shape[a + 1];
  /* The last axis is one run, unless the rows run along it. */
  const int64_t length = last >= 0 && axis != last ? t->shape[last] : 1;
  for (int32_t a = 0; a <= last; ++a)
    runs *= a == last && axis != last ? 1 : t->shape[a];
  if (length == 0) runs = 0;
  for (int64_t n = 0; n < runs; ++n) {
    int64_t at = 0, dense = 0;
    for (int32_t a = 0; a <= last; ++a) {
      const int64_t own = a == axis ? img->row_of[index[a]] : index[a];
      at += t->shape[a] > 1 ? index[a] * t->stride[a] : 0;
      dense += own * step[a];
    }
    visit(context, at, dense, length);
    for (int32_t a = axis != last ? last - 1 : last; a >= 0 && ++index[a] == t->shape[a]; --a)
      index[a] = 0;
  }
}

typedef struct values_copy {
  unsigned char *to;
  const unsigned char *from;
  int64_t element;
} values_copy;

static void copy_run(void *context, int64_t at, int64_t dense, int64_t count) {
  const values_copy *c = context;
  memcpy(c->to + at * c->element, c->from + dense * c->element, (size_t)(count * c->element));
}

/* Tells whether a cache's allocation consists of whole blocks, with all heads and channels of their tokens. Tokens that
 * are written need no dead bytes first then. */
static bool tokens_are_rows(const image *img, int32_t arg) {
  const cache_strides s = place_strides(img, arg);
  const int64_t row = img->logical->H_kv * place_channels(img, arg);
  return img->logical->filled && !img->contiguous && s.token == row && s.block == row * img->logical->block_size &&
         img->extent[arg].bytes == img->pool_blocks * s.block * assay_dtype_size(img->arg[arg].dtype);
}

/* Writes dead bytes to all of a cache that write_cache() leaves alone. */
static void fill_dead_tokens(image *img, int32_t arg, const dead_pattern *pattern) {
  const logical *l = img->logical;
  const int64_t element = assay_dtype_size(img->arg[arg].dtype);
  const int64_t token = l->H_kv * place_channels(img, arg) * element, block = token * l->block_size;
  unsigned char *start = img->host + img->extent[arg].offset;
  unsigned char *owned = calloc((size_t)img->pool_blocks + 1, 1);
  for (int64_t id = 0; id < l->identities && owned != NULL; ++id) {
    const int64_t place = img->physical[id];
    owned[place] = 1;
    for (int64_t off = 0; off < l->block_size; ++off)
      if (l->visible[id * l->block_size + off] == 0)
        fill_pattern(start, place * block + off * token, place * block + (off + 1) * token, pattern);
  }
  for (int64_t place = 0; place < img->pool_blocks; ++place)
    if (owned == NULL || !owned[place]) fill_pattern(start, place * block, (place + 1) * block, pattern);
  free(owned);
}

static void fill_dead_arg(image *img, int32_t arg) {
  const uint64_t seed =
      img->origin->seed ^ img->chosen.placement ^ (uint64_t)arg << 48 ^ (uint64_t)img->chosen.poison << 56;
  dead_pattern pattern;
  make_pattern(&pattern, img->arg[arg].dtype, img->chosen.dead, seed);
  if (is_cache(img, arg) && tokens_are_rows(img, arg))
    fill_dead_tokens(img, arg, &pattern);
  else
    fill_pattern(img->host + img->extent[arg].offset, 0, img->extent[arg].bytes, &pattern);
}

/* Writes the bits of a mask, which the case's order has side by side, request by request in the image's order. Spare
 * bytes, and the bits after a request's last one, are dead. */
static void write_mask(image *img, int32_t arg) {
  const logical *l = img->logical;
  unsigned char *to = img->host + img->extent[arg].offset, *end = to + img->extent[arg].bytes;
  assay_rng rng = {l->origin->seed ^ (uint64_t)img->chosen.poison << 32 ^ img->chosen.placement, STREAM_MASK_SPARE, 0};
  for (unsigned char *at = to; at < end; ++at)
    *at = (unsigned char)assay_rng_range(&rng, 0, 255);
  for (int64_t slot = 0; slot < l->B; ++slot) {
    const int64_t request = img->request_of_slot[slot], bytes = logical_mask_bytes(l, request);
    const int64_t tail = (int64_t)l->fresh[request] * l->length[request] % 8;
    const unsigned char *from = l->values[arg];
    for (int64_t i = 0; i < request; ++i)
      from += logical_mask_bytes(l, i);
    const unsigned char dead = to[bytes > 0 ? bytes - 1 : 0];
    memcpy(to, from, (size_t)bytes);
    if (tail > 0) to[bytes - 1] = (unsigned char)(to[bytes - 1] | (dead & (0xFF << tail)));
    to += bytes + place_mask_spare(l, request);
  }
}

static void write_mask_starts(image *img, int32_t arg) {
  const logical *l = img->logical;
  int64_t *to = (int64_t *)(void *)(img->host + img->extent[arg].offset);
  to[0] = 0;
  for (int64_t slot = 0; slot < l->B; ++slot) {
    const int64_t request = img->request_of_slot[slot];
    to[slot + 1] = to[slot] + logical_mask_bytes(l, request) + place_mask_spare(l, request);
  }
}

static void write_plain_values(image *img, int32_t arg) {
  values_copy c = {img->host + img->extent[arg].offset, img->logical->values[arg],
                   assay_dtype_size(img->arg[arg].dtype)};
  place_runs(img, arg, copy_run, &c);
}

/* Writes one token and head of a cache: channels from packed codes to chunks of the layout. */
static void write_channels(unsigned char *to, const cache_strides *s, const unsigned char *code, int64_t D,
                           int64_t element) {
  for (int64_t chunk = 0; chunk < D / s->x; ++chunk) {
    unsigned char *at = to + chunk * s->chunk * element;
    const unsigned char *from = code + chunk * s->x * element;
    if (s->channel == 1) {
      memcpy(at, from, (size_t)(s->x * element));
    } else if (element == 2) {
      for (int64_t d = 0; d < s->x; ++d)
        memcpy(at + d * s->channel * 2, from + d * 2, 2);
    } else {
      for (int64_t d = 0; d < s->x; ++d)
        memcpy(at + d * s->channel * element, from + d * element, (size_t)element);
    }
  }
}

/* The contents of a cache and where they go. needed: v_needed in the numbering of `home` (places under placement 0);
 * NULL means all visible tokens. */
typedef struct cache_write {
  const image *img;
  cache_strides s;
  const unsigned char *code, *needed;
  const int32_t *home;
  unsigned char *pool;
  int64_t element, channels; /* bytes of an element; channels of a head */
  bool dense;
  unsigned char nan[256 * 8];
} cache_write;

/* Writes at once as many tokens as follow each other from `off` on. Returns their number. */
static int64_t write_tokens(const cache_write *w, int64_t id, int64_t off) {
  const logical *l = w->img->logical;
  const int64_t row = l->H_kv * w->channels, content = id * l->block_size + off;
  int64_t count = 1;
  while (off + count < l->block_size && l->visible[content + count] != 0)
    ++count;
  memcpy(w->pool + (w->img->physical[id] * w->s.block + off * w->s.token) * w->element,
         w->code + content * row * w->element, (size_t)(count * row * w->element));
  return count;
}

static void write_blocks(void *context, int64_t begin, int64_t end) {
  const cache_write *w = context;
  const logical *l = w->img->logical;
  for (int64_t id = begin; id < end; ++id)
    for (int64_t off = 0; off < l->block_size; ++off) {
      const int64_t content = id * l->block_size + off;
      if (l->visible[content] == 0) continue;
      if (w->dense) {
        off += write_tokens(w, id, off) - 1;
        continue;
      }
      for (int64_t h = 0; h < l->H_kv; ++h) {
        const bool dead = w->needed != NULL && w->needed[place_slot_at(w->img, w->home[id], off) * l->H_kv + h] == 0;
        write_channels(w->pool + (w->img->physical[id] * w->s.block + off * w->s.token + h * w->s.head) * w->element,
                       &w->s, dead ? w->nan : w->code + (content * l->H_kv + h) * w->channels * w->element, w->channels,
                       w->element);
      }
    }
}

static void write_cache(image *img, int32_t arg, const unsigned char *code, const unsigned char *needed,
                        const int32_t *home) {
  const logical *l = img->logical;
  const cache_strides s = place_strides(img, arg);
  const int64_t element = assay_dtype_size(l->kv_dtype), channels = place_channels(img, arg);
  const int64_t nan_bytes = channels * element;
  cache_write w = {
      .img = img, .s = s, .code = code, .needed = needed, .home = home, .element = element, .channels = channels};
  w.pool = (unsigned char *)((uintptr_t)img->arg[arg].data + (uintptr_t)(img->first_block * s.block * element));
  w.dense = needed == NULL && tokens_are_rows(img, arg) && s.channel == 1 && s.x == channels &&
            (l->H_kv == 1 || s.head == channels);
  fill_dead(w.nan, nan_bytes < (int64_t)sizeof w.nan ? nan_bytes : (int64_t)sizeof w.nan, l->kv_dtype, DEAD_NAN,
            l->origin->seed);
  threads_for(l->identities, 1024, write_blocks, &w);
}

assay_status bytes_values(image *img, const unsigned char *v_needed, assay_error *error) {
  const logical *l = img->logical;
  const assay_op *op = l->origin->op;
  int32_t *home = malloc(((size_t)l->identities + 1) * sizeof *home);
  if (home == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory");
  assay_status status = place_home(img, home, error);
  for (int32_t i = 0; status == ASSAY_OK && i < op->arg_count; ++i) {
    const assay_content content = op->args[i].content;
    const bool rows =
        content == ASSAY_QUERY || content == ASSAY_K_NEW || content == ASSAY_V_NEW || content == ASSAY_QKV_NEW;
    const bool values = rows || content == ASSAY_K_CACHE || content == ASSAY_V_CACHE || content == ASSAY_VALUES;
    if (!values || img->arg[i].data == NULL) continue;
    const bool whole = img->arg[i].dtype == ASSAY_I32 || img->arg[i].dtype == ASSAY_I64; /* no dead integers */
    if (!whole && (content != ASSAY_V_CACHE || l->origin->kv_pad >= 0)) /* interleaved: K's filling covered V */
      fill_dead_arg(img, i);
    if (!l->filled) continue; /* a refuse case has no values */
    if (rows) write_new_rows(img, i, content);
    if (place_axis(img, i, "mask_words") >= 0)
      write_mask(img, i);
    else if (strcmp(op->args[i].name, "mask_ptr") == 0)
      write_mask_starts(img, i);
    else if (content == ASSAY_VALUES)
      write_plain_values(img, i);
    if (content == ASSAY_K_CACHE) write_cache(img, i, l->k, NULL, home);
    if (content == ASSAY_V_CACHE) write_cache(img, i, l->v, img->chosen.dead_v ? v_needed : NULL, home);
  }
  free(home);
  return status;
}
