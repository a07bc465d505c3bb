/* attention_inputs.c: values of q, k and v for generated cases. A value depends on (seed, logical identity) alone: q on
 * (request, position, head), k and v on (content, kv head). */
#include "ref/lib/attention_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/wide.h"
#include "ref/lib/attention.h"

/* The tensor to which a stream of random numbers belongs. */
enum {
  STREAM_Q = 1,
  STREAM_K,
  STREAM_V,
  STREAM_TAIL_Q,
  STREAM_TAIL_K,
  STREAM_TAIL_V,
  STREAM_LIVE,
  STREAM_CODE,
  STREAM_SINK,
  STREAM_TREE,
  STREAM_MASK
};

static uint64_t stream_of(uint64_t tensor, int64_t identity, int64_t position, int64_t head) {
  return tensor << 60 ^ (uint64_t)identity << 36 ^ (uint64_t)position << 8 ^ (uint64_t)head;
}

/* Does splitmix64's finaliser. */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

static uint64_t hash(const assay_fill *fill, uint64_t tensor, int64_t identity, int64_t head) {
  return mix(mix(fill->seed + 0x9E3779B97F4A7C15u * (tensor + 1)) ^ mix((uint64_t)identity << 8 | (uint64_t)head));
}

static double power_of_two_near(double value) {
  int exponent = 0;
  const double fraction = frexp(value, &exponent);
  return ldexp(1, fraction > 0.70710678118654752 ? exponent : exponent - 1);
}

static double scale_of(const assay_fill *fill) {
  return attention_scale(fill->call);
}

static int64_t capacity_of(const assay_fill *fill) {
  return attention_capacity(fill->call);
}

static bool important(const assay_fill *fill, int64_t content) {
  return fill->important != NULL && fill->important(fill->context, content);
}

/* ---- real values ------------------------------------------------------------------------------------- */

static void normals(const assay_fill *fill, uint64_t tensor, int64_t identity, int64_t position, int64_t head,
                    double size, double *value) {
  assay_rng_normals(fill->seed, stream_of(tensor, identity, position, head), value, fill->D);
  if (size != 1)
    for (int64_t d = 0; d < fill->D; ++d)
      value[d] *= size;
  if (fill->values != ASSAY_HEAVY_TAILED) return;
  assay_rng rng = {.seed = fill->seed,
                   .stream = stream_of(tensor + STREAM_TAIL_Q - STREAM_Q, identity, position, head)};
  for (int64_t d = 0; d < fill->D; d += 8) {
    uint64_t random = assay_rng_u64(&rng); /* one byte per channel: four bits choose, the others scale */
    for (int i = 0; i < 8; ++i, random >>= 8)
      if ((random & 15) == 0) value[d + i] *= 8 + 1.6 * (double)(random >> 4 & 15);
  }
}

/* Steering of live keys. Channel 0 of q is +a, and channel 0 of k is +a or -a (a^2 · scale = strength). The other
 * channels give the score a noise of deviation `noise`. Take taps (3/4, -1/4, -1/4). A live key between live ones then
 * has z = strength / 4, and one between dead ones 3/4 · strength, with a deviation of 0.83 · noise. Both are clear of
 * 0, and they lie on different sides of the upper edge 1. */
static const double strength_all = 1.75, noise_all = 0.2;
/* Only some keys are steered; the scores of the others are N(0, 1). */
static const double strength_some = 5;
/* Needles stand out of keys that are 2^-6 as large as usual. */
static const double strength_needle = 8, hay = 0x1p-6;

static bool is_steered(const assay_fill *fill) {
  return fill->values == ASSAY_NEEDLES || fill->density >= 0 || fill->values == ASSAY_NORMAL;
}

static double strength_of(const assay_fill *fill) {
  return fill->values == ASSAY_NEEDLES ? strength_needle : fill->density >= 0 ? strength_all : strength_some;
}

static bool is_live(const assay_fill *fill, int64_t content, int64_t kv_head) {
  if (important(fill, content)) return true;
  const int64_t place = fill->cluster > 1 ? content / fill->cluster : content;
  const double unit = (double)(hash(fill, STREAM_LIVE, place, kv_head) >> 11) * 0x1p-53;
  return unit < fill->density;
}

static void steered_q(const assay_fill *fill, double *value) {
  const double scale = scale_of(fill);
  if (fill->values != ASSAY_NEEDLES && fill->density >= 0)
    for (int64_t d = 1; d < fill->D; ++d)
      value[d] *= noise_all / (scale * sqrt((double)fill->D));
  value[0] = sqrt(strength_of(fill) / scale);
}

static void steered_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  const double a = sqrt(strength_of(fill) / scale_of(fill));
  if (fill->values == ASSAY_NEEDLES) {
    if (important(fill, content)) value[0] = a;
  } else if (fill->density >= 0) {
    value[0] = is_live(fill, content, kv_head) ? a : -a;
  } else if (important(fill, content)) {
    value[0] = a;
  }
}

/* ---- gate: lattice ----------------------------------------------------------------------------------- */

/* q and k are ±1 in all channels except 0, times steps whose product with scale is `unit`. s is then a whole multiple
 * of `unit` with a deviation of about 1. z, with taps that are multiples of 1/16, has at most 8 bits between 0 and 1. D
 * - 1 terms ±1 and a first one ±2^n leave only every second multiple. Channel 0 of q is positive. An important key, and
 * with a density every key, can thus be given its side: 2^n · unit = 2. */
typedef struct lattice_steps {
  double unit, q, k, steer;
} lattice_steps;

static lattice_steps gate_steps(const assay_fill *fill) {
  const double root = sqrt((double)fill->D);
  lattice_steps step = {.unit = root > 11 ? 0x1p-4 : root > 5.6 ? 0x1p-3 : 0x1p-2};
  step.k = fill->k_scale;
  step.q = power_of_two_near(step.unit / (step.k * scale_of(fill)));
  step.steer = 2 / step.unit;
  return step;
}

/* Writes +step or -step by each bit of a word. */
ASSAY_WIDE static void signs_of(uint64_t word, double step, int64_t count, double *value) {
  uint64_t size;
  memcpy(&size, &step, sizeof size);
  for (int64_t d = 0; d < count; ++d) {
    const uint64_t bits = size ^ (~word >> d) << 63;
    memcpy(&value[d], &bits, sizeof bits);
  }
}

static void signs(uint64_t seed, double step, int64_t D, double *value) {
  for (int64_t d = 0; d < D; d += 64) {
    seed = mix(seed + 0x9E3779B97F4A7C15u);
    signs_of(seed, step, D - d < 64 ? D - d : 64, value + d);
  }
}

void gate_fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value) {
  if (fill->values == ASSAY_LATTICE) {
    const double step = gate_steps(fill).q;
    signs(hash(fill, STREAM_Q, request << 28 ^ position, head), step, fill->D, value);
    value[0] = step;
    return;
  }
  normals(fill, STREAM_Q, request, position, head, 1, value);
  if (is_steered(fill)) steered_q(fill, value);
}

void gate_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  if (fill->values == ASSAY_LATTICE) {
    const lattice_steps step = gate_steps(fill);
    signs(hash(fill, STREAM_K, content, kv_head), step.k, fill->D, value);
    if (fill->density >= 0)
      value[0] = is_live(fill, content, kv_head) ? step.k * step.steer : -step.k * step.steer;
    else if (important(fill, content))
      value[0] = step.k * step.steer;
    return;
  }
  normals(fill, STREAM_K, content, 0, kv_head, fill->values == ASSAY_NEEDLES ? hay : 1, value);
  if (is_steered(fill)) steered_k(fill, content, kv_head, value);
}

/* Writes a value per byte: its lowest seven bits choose one of 1 to `range`, the highest one the sign. */
ASSAY_WIDE static void sizes_of(const uint8_t *byte, int32_t range, double step, int64_t count, double *value) {
  for (int64_t d = 0; d < count; ++d) {
    const int32_t size = 1 + ((byte[d] & 127) * range >> 7);
    value[d] = (double)((byte[d] & 128) != 0 ? -size : size) * step;
  }
}

void gate_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  if (fill->values != ASSAY_LATTICE) {
    normals(fill, STREAM_V, content, 0, kv_head, 1, value);
    return;
  }
  /* three significant bits, for e5m2; small where many keys are summed */
  const int32_t range = capacity_of(fill) < 32768 ? 7 : 2;
  uint64_t seed = hash(fill, STREAM_V, content, kv_head), word[8];
  for (int64_t d = 0; d < fill->D; d += 64) {
    const int64_t count = fill->D - d < 64 ? fill->D - d : 64;
    for (int64_t i = 0; 8 * i < count; ++i)
      word[i] = seed = mix(seed + 0x9E3779B97F4A7C15u);
    sizes_of((const uint8_t *)word, range, fill->v_scale, count, value + d); /* little-endian, like the devices */
  }
}

/* ---- softmax: lattice of codes ----------------------------------------------------------------------- */

/* Codes of keys and queries. Key: channel 0 is +c, channel d >= 1 is +c or -c by bit d of its code. Query for a code:
 * channel d >= 1 is a times that bit, channel 0 is -a (D - 1). Then q·k = -2 a c · (number of differing bits). It is
 * exactly 0 for the wanted code and at most -2 a c otherwise, which with a c scale >= 400 is -800. */
enum { MAX_TARGETS = 64, MOST_MATCHES = 32 };

double softmax_fill_sink(const assay_fill *fill, int64_t head) {
  static const double exact[8] = {0, -800, 800, 0, 0, 800, -800, 0};
  const uint64_t all = hash(fill, STREAM_SINK, 0, 0), own = hash(fill, STREAM_SINK, head + 1, 0);
  if (fill->values == ASSAY_LATTICE) return exact[(all + (uint64_t)head) & 7];
  const int64_t B = fill->call->arg[ARG_KV_LEN].shape[0], window = (int64_t)fill->call->param[PARAM_WINDOW];
  int64_t keys = B > 0 ? fill->kv_length(fill->context, (int64_t)((all + (uint64_t)head) % (uint64_t)B)) : 1;
  if (window > 0 && keys > window) keys = window;
  double usual = 0; /* ln of a power of two */
  for (; keys > 1; keys /= 2)
    usual += 0.6931471805599453;
  const double away = 0.75 + 1.25 * (double)(own >> 11 & 0xFFFF) * 0x1p-16;
  return (own & 1) != 0 && fabs(usual - away) > 0.6 ? usual - away : usual + away;
}

enum { FEW_NODES = 64 };

/* Returns the parent of row n of a request's new tokens. A tree of more than 64 nodes goes on as a chain, or with
 * parents anywhere before. */
static int32_t parent_of(const assay_fill *fill, int64_t request, int64_t n) {
  const uint64_t random = hash(fill, STREAM_TREE, request << 24 ^ n, 0);
  if (n >= FEW_NODES && (hash(fill, STREAM_TREE, request << 24, 1) & 1) != 0) return (int32_t)(n - 1);
  if (n == 0 || (random & 7) == 0) return -1;
  if (n >= FEW_NODES) return (int32_t)((random >> 8) % (uint64_t)n);
  const int64_t back = (random & 7) < 4 ? 1 : 1 + (int64_t)((random >> 8) % (uint64_t)(n < 6 ? n : 6));
  return (int32_t)(n - back);
}

void softmax_fill_parents(const assay_fill *fill, double *value, int64_t count) {
  int64_t row = 0;
  for (int64_t request = 0; row < count; ++request) {
    const int64_t rows = fill->kv_length(fill->context, request) - fill->first_position(fill->context, request);
    for (int64_t n = 0; n < rows && row < count; ++n)
      value[row++] = parent_of(fill, request, n);
  }
}

/* Returns a bit of the mask. A request is causal, or sees all, or chooses among all keys or among the new ones. A row
 * that chooses sees its own key, except one row in sixteen that sees nothing. */
static bool mask_bit(const assay_fill *fill, int64_t request, int64_t cached, int64_t n, int64_t t) {
  const uint64_t kind = hash(fill, STREAM_MASK, request, 0) & 7, row = hash(fill, STREAM_MASK, request << 24 ^ n, 1);
  const uint64_t random = hash(fill, STREAM_MASK, (request << 12 ^ n) << 24 ^ t, 2);
  if (kind == 0) return t <= cached + n;
  if (kind == 1) return true;
  if ((row & 15) == 0) return false;
  if (t == cached + n) return true;
  return (kind < 5 && t < cached) || (random & 3) != 0;
}

void softmax_fill_mask(const assay_fill *fill, double *value, int64_t count) {
  const int64_t B = fill->call->arg[ARG_KV_LEN].shape[0];
  for (int64_t i = 0; i < count; ++i)
    value[i] = 0;
  for (int64_t request = 0, begin = 0; request < B; ++request, begin = (begin + 7) / 8 * 8) {
    const int64_t L = fill->kv_length(fill->context, request), P = fill->first_position(fill->context, request);
    for (int64_t n = 0; n < L - P; ++n)
      for (int64_t t = 0; t < L; ++t, ++begin) {
        if (begin >= 32 * count || !mask_bit(fill, request, P, n, t)) continue;
        value[begin / 32] += begin % 32 == 31 ? -0x1p31 : ldexp(1, (int)(begin % 32)); /* a word is signed */
      }
  }
}

/* The codes of a call's keys. */
typedef struct codebook {
  int64_t places;
  bool sink, tree; /* whether the call has sinks; trees or a mask */
} codebook;

/* Without sinks codes repeat: the codebook has half the capacity, but no less than a block, so that a few neighbouring
 * keys differ. With sinks every key has a code of its own: a sink of 0 needs 2^m - 1 keys at the maximum. */
static codebook codebook_of(const assay_fill *fill) {
  const int64_t whole = attention_capacity(fill->call), half = whole / 2, block = attention_block(fill->call);
  const bool sink = assay_find_arg(fill->call, "sink") != NULL;
  const bool tree = assay_find_arg(fill->call, "parent") != NULL || assay_find_arg(fill->call, "mask") != NULL;
  return (codebook){sink && whole > block ? whole : half > block ? half : block, sink, tree};
}

/* Returns how many neighbours share a code in one kv head of four. There are 2, or 3 where every head of its group has
 * a sink of 0. Other sinks admit neither. */
static int64_t alike(const assay_fill *fill, const codebook *book, int64_t kv_head) {
  const int64_t G = fill->H / fill->H_kv;
  for (int64_t h = kv_head * G; h < (kv_head + 1) * G && book->sink; ++h)
    if (softmax_fill_sink(fill, h) != 0) return 1;
  return book->sink ? 3 : 2;
}

/* Returns a key's code. content names a place in the codebook. For one kv head in four, and for all in trees without
 * sinks, neighbours share a code. A row that sees one key too few or too many then shows it, however short the request
 * is. If D = 8 has too few codes for that, a place is drawn instead. The numbers of keys per code then differ, and some
 * are powers of two. For D <= 64 the code has D - 1 bits. */
static uint64_t code_of(const assay_fill *fill, const codebook *book, int64_t content, int64_t kv_head) {
  const uint64_t offset = hash(fill, STREAM_CODE, 0, kv_head);
  if (offset >> 62 == 0 || (book->tree && !book->sink))
    content = (content + (int64_t)(offset >> 61 & 1)) / alike(fill, book, kv_head);
  if (fill->D > 64) return mix((uint64_t)(content % book->places) + offset);
  const uint64_t codes = 1ull << (fill->D - 1);
  const bool scarce = (uint64_t)book->places > codes;
  const uint64_t place = scarce ? hash(fill, STREAM_CODE, content + 1, kv_head) : (uint64_t)(content % book->places);
  return (place * 0x9E3779B97F4A7C15u + offset) & (codes - 1);
}

/* Writes a code as signs. Bits 0..63 of the code are channels 1..64; later channels are further words drawn from it. */
static void code_signs(uint64_t code, double step, int64_t D, double *value) {
  for (int64_t d = 1; d < D; d += 64) {
    if (d > 1) code = mix(code + 0x9E3779B97F4A7C15u);
    signs_of(code, step, D - d < 64 ? D - d : 64, value + d);
  }
}

/* Chooses the steps. a (D - 1) stays below 2^15 for f16. c takes the rest and is a power of two times the fp8 scale. A
 * scale below 2^-6 leaves fp8 too few bits for that; where q is no f16, a takes the rest then. */
static void code_steps(const assay_fill *fill, double *a, double *c) {
  const double product = ldexp(1, (int)ceil(log2(400 / scale_of(fill))));
  const double most = fill->q_dtype == ASSAY_F16 || !(scale_of(fill) < 0x1p-6) ? 32768 : 0x1p40;
  *c = 64 * fill->k_scale;
  *a = power_of_two_near(product / *c);
  while (*a * *c < product)
    *a *= 2;
  while (*a * (double)(fill->D - 1) > most) {
    *a /= 2;
    *c *= 2;
  }
}

/* Returns how many keys the row sees that carry the code; stops counting above MOST_MATCHES. */
static int64_t matches(const assay_fill *fill, const attention *a, int64_t request, int64_t head, int64_t first,
                       const attention_place *place, const codebook *book, uint64_t code) {
  int64_t count = 0;
  const int64_t end = place->bits != NULL ? place->keys - 1 : place->own;
  for (int64_t t = first; t <= end && count <= MOST_MATCHES; ++t)
    count += code_of(fill, book, fill->content(fill->context, request, t), head / (a->H / a->H_kv)) == code &&
             attention_place_sees(a, place, head, t);
  return count;
}

/* Returns candidates in turn: the row's last key, its first, a key at or near an important one, then any. */
static int64_t candidate(const assay_fill *fill, assay_rng *rng, int64_t request, int64_t first, int64_t last) {
  const int64_t kind = assay_rng_range(rng, 0, 7);
  if (kind == 0) return last;
  if (kind == 1) return first;
  const int64_t t = assay_rng_range(rng, first, last);
  if (kind > 4) return t;
  for (int64_t near = 0; near < 64; ++near)
    if (t - near >= first && important(fill, fill->content(fill->context, request, t - near)))
      return kind == 2 && t - near > first ? t - near - 1 : t - near;
  return t;
}

void softmax_fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value) {
  if (fill->values != ASSAY_LATTICE) {
    normals(fill, STREAM_Q, request, position, head, 1, value);
    if (fill->values == ASSAY_NEEDLES) steered_q(fill, value);
    return;
  }
  attention a = attention_of(fill->call);
  a.H = fill->H;
  a.H_kv = fill->H_kv;
  const int64_t cached = fill->first_position(fill->context, request), own = cached + position;
  const codebook book = codebook_of(fill);
  attention_place place = {.cached = cached, .own = own, .last = own};
  const bool masked = a.mask != NULL && own >= 0;
  int32_t *parent = book.tree && !masked && own >= 0 ? malloc((size_t)(position + 1) * sizeof *parent) : NULL;
  for (int64_t n = 0; n <= position && parent != NULL; ++n)
    parent[n] = parent_of(fill, request, n);
  place.parent = parent;
  const int64_t L = fill->kv_length(fill->context, request);
  uint8_t *bits = masked ? calloc((size_t)L / 8 + 1, 1) : NULL;
  for (int64_t t = 0; t < L && bits != NULL; ++t)
    bits[t / 8] |= (uint8_t)(mask_bit(fill, request, cached, position, t) << t % 8);
  place.bits = bits;
  place.keys = place.end_bit = L;
  if (parent != NULL) place.last = attention_position(&a, &place, own);
  const int64_t first = attention_first_key(&a, parent != NULL ? cached : own), kv_head = head / (a.H / a.H_kv);
  const int64_t sinks = book.sink && softmax_fill_sink(fill, head) == 0;
  assay_rng rng = {.seed = fill->seed, .stream = stream_of(STREAM_Q, request, position, head)};
  uint64_t code = 0;
  bool found = false;
  /* Prefers few keys of one code; takes more, up to MOST_MATCHES, where codes are scarce. */
  for (int tries = 0; tries < MAX_TARGETS && own >= 0 && !found; ++tries) {
    const int64_t t = candidate(fill, &rng, request, first, bits != NULL ? L - 1 : own);
    if (!attention_place_sees(&a, &place, head, t)) continue;
    code = code_of(fill, &book, fill->content(fill->context, request, t), kv_head);
    const int64_t count = matches(fill, &a, request, head, first, &place, &book, code);
    found = count <= MOST_MATCHES && ((count + sinks) & (count + sinks - 1)) == 0;
  }
  /* Where no code fits beside a sink of 0, no key at all stands at the maximum. */
  for (int tries = 0; tries < MAX_TARGETS && own >= 0 && !found && sinks > 0; ++tries) {
    code = assay_rng_u64(&rng) & (fill->D > 64 ? ~0ull : (1ull << (fill->D - 1)) - 1);
    found = matches(fill, &a, request, head, first, &place, &book, code) == 0;
  }
  free(parent);
  free(bits);
  double step, key_step;
  code_steps(fill, &step, &key_step);
  code_signs(code, step, fill->D, value);
  value[0] = -step * (double)(fill->D - 1);
}

void softmax_fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  if (fill->values != ASSAY_LATTICE) {
    normals(fill, STREAM_K, content, 0, kv_head, fill->values == ASSAY_NEEDLES ? hay : 1, value);
    if (fill->values == ASSAY_NEEDLES) steered_k(fill, content, kv_head, value);
    return;
  }
  double query_step, step;
  code_steps(fill, &query_step, &step);
  const codebook book = codebook_of(fill);
  code_signs(code_of(fill, &book, content, kv_head), step, fill->D, value);
  value[0] = step;
}

/* Fills 1 to 7: three significant bits for e5m2, and the sum over 32 keys still has 8 bits for bf16. */
void softmax_fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  if (fill->values != ASSAY_LATTICE) {
    normals(fill, STREAM_V, content, 0, kv_head, 1, value);
    return;
  }
  uint64_t random = 0, seed = hash(fill, STREAM_V, content, kv_head);
  for (int64_t d = 0; d < fill->D; ++d, random >>= 8) {
    if (d % 8 == 0) random = seed = mix(seed + 0x9E3779B97F4A7C15u);
    value[d] = (double)(1 + ((random & 255) * 7 >> 8)) * fill->v_scale;
  }
}
