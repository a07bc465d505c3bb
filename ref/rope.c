/* rope: rotary position embedding of q and k. For row n, each head, pair i < R/2 of channels (a, b), with
 * c = cos[positions_n, i] and s = sin[positions_n, i]:
 *
 *   x_a <- x_a c - x_b s          neox: (a, b) = (i, i + R/2)
 *   x_b <- x_b c + x_a s          interleaved: (a, b) = (2i, 2i + 1)
 *
 * With positions_hw a row has three positions: of time, the row of `positions`, and of height and width. Pair i takes
 * the angles of one of them (multimodal rotation), with b = section_h, c = section_w, and a = R/2 - b - c:
 *
 *   contiguous    time, height and width have a, b and c pairs in a row
 *   interleaved   i mod 3 = 1 and i < 3 b: height. i mod 3 = 2 and i < 3 c: width. Else: time.
 *
 * Channels from R on are copied. The table holds theta_i = base^(-2i/R) times the position; any contents of it are used
 * as they are. It writes in place, or into q_out and k_out. A position outside [0, max_pos) is an input error. Source:
 * docs/definitions.md, section 4. The rotation itself is in ref/lib/rope.c. */
#include "ref/lib/rope.h"

#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_Q, ARG_K, ARG_COS, ARG_SIN, ARG_POSITIONS, ARG_Q_OUT, ARG_K_OUT, ARG_HW, ARG_COUNT };
enum { PARAM_STYLE, PARAM_H, PARAM_W, PARAM_SECTIONS, PARAM_COUNT };
enum { TIME, HEIGHT, WIDTH };
enum { NEOX, INTERLEAVED };
enum {
  SPOIL_NONE = -1,
  SPOIL_POSITION_ONE_OFF,
  SPOIL_ROW_FOR_POSITION,
  SPOIL_OTHER_STYLE,
  SPOIL_TURNED_BACK,
  SPOIL_LAST_PAIR_COPIED,
  SPOIL_REST_DROPPED,
  SPOIL_K_NOT_ROTATED,
  SPOIL_ANGLE_OF_PAIR_0,
  SPOIL_HEIGHT_ROW_DROPPED, /* height takes the position of time */
  SPOIL_AXES_TURNED,        /* height and width change places */
  SPOIL_OTHER_SECTIONS      /* contiguous for interleaved, and the other way round */
};

const assay_op *assay_op_rope(void);

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Refuses sections that do not fit R / 2 pairs, or that interleaving cuts. */
static assay_status check_sections(const assay_call *call, int64_t half, assay_error *error) {
  const int64_t b = (int64_t)call->param[PARAM_H], c = (int64_t)call->param[PARAM_W];
  const bool turns = call->param[PARAM_SECTIONS] != 0;
  const int64_t most_b = turns ? (half + 1) / 3 : half, most_c = turns ? half / 3 : half - b;
  if (b > most_b)
    return assay_fail(error, ASSAY_ERR_INPUT, "section_h: found %lld, allowed 0 to %lld for R = %lld", (long long)b,
                      (long long)most_b, (long long)(2 * half));
  if (c > most_c)
    return assay_fail(error, ASSAY_ERR_INPUT, "section_w: found %lld, allowed 0 to %lld for R = %lld", (long long)c,
                      (long long)most_c, (long long)(2 * half));
  return ASSAY_OK;
}

/* Returns the axis whose position turns pair i. */
static int axis_of(const assay_call *call, int64_t i, int32_t spoil) {
  const int64_t half = call->arg[ARG_COS].shape[1], b = (int64_t)call->param[PARAM_H];
  const int64_t c = (int64_t)call->param[PARAM_W];
  if (call->arg[ARG_HW].data == NULL) return TIME;
  if ((call->param[PARAM_SECTIONS] != 0) != (spoil == SPOIL_OTHER_SECTIONS))
    return i % 3 == 1 && i < 3 * b ? HEIGHT : i % 3 == 2 && i < 3 * c ? WIDTH : TIME;
  return i < half - b - c ? TIME : i < half - c ? HEIGHT : WIDTH;
}

/* Refuses an invalid call. Only the table of cosines tells R. */
static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const int64_t half = call->arg[ARG_COS].shape[1], D = call->arg[ARG_Q].shape[2];
  if (half < 1 || half > D / 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "R: found %lld, allowed even numbers from 2 to D = %lld",
                      (long long)(2 * half), (long long)D);
  if (call->arg[ARG_SIN].shape[1] != half)
    return assay_fail(error, ASSAY_ERR_INPUT, "sin: found %lld at axis 1 of its shape, allowed %lld: [max_pos,R/2]",
                      (long long)call->arg[ARG_SIN].shape[1], (long long)half);
  return call->arg[ARG_HW].data != NULL ? check_sections(call, half, error) : ASSAY_OK;
}

static int64_t position_of(const assay_call *call, int64_t n, int axis, int32_t spoil) {
  const int64_t max_pos = call->arg[ARG_COS].shape[0], N = call->arg[ARG_Q].shape[0];
  if (spoil == SPOIL_HEIGHT_ROW_DROPPED && axis == HEIGHT) axis = TIME;
  if (spoil == SPOIL_AXES_TURNED && axis != TIME) axis = HEIGHT + WIDTH - axis;
  const int64_t position = axis == TIME ? plain_integer(&call->arg[ARG_POSITIONS], n)
                                        : plain_integer(&call->arg[ARG_HW], (axis - HEIGHT) * N + n);
  if (spoil == SPOIL_POSITION_ONE_OFF) return (position + 1) % max_pos;
  return spoil == SPOIL_ROW_FOR_POSITION ? n % max_pos : position;
}

static void spoil_head(const rope_head *h, int32_t spoil, bool is_k, double *y) {
  int64_t a, b;
  for (int64_t i = 0; i < h->R / 2; ++i) {
    const double c = h->cosine[i], s = h->sine[i];
    rope_pair(i, h->R, h->interleaved, &a, &b);
    if (spoil == SPOIL_TURNED_BACK) {
      y[a] = h->x[a] * c + h->x[b] * s;
      y[b] = h->x[b] * c - h->x[a] * s;
    }
    if (spoil == SPOIL_ANGLE_OF_PAIR_0) {
      y[a] = h->x[a] * h->cosine[0] - h->x[b] * h->sine[0];
      y[b] = h->x[b] * h->cosine[0] + h->x[a] * h->sine[0];
    }
    if ((spoil == SPOIL_K_NOT_ROTATED && is_k) || (spoil == SPOIL_LAST_PAIR_COPIED && i == h->R / 2 - 1)) {
      y[a] = h->x[a];
      y[b] = h->x[b];
    }
  }
  if (spoil == SPOIL_OTHER_STYLE) rope_rotate(h->x, h->cosine, h->sine, h->R, h->D, !h->interleaved, y);
  for (int64_t d = h->R; spoil == SPOIL_REST_DROPPED && d < h->D; ++d)
    y[d] = 0;
}

static assay_status admit(const assay_call *call, int64_t row, const rope_head *h, assay_error *error) {
  int64_t channel = 0;
  double bits = 0;
  if (rope_exact(h, &channel, &bits)) return ASSAY_OK;
  return rowwise_refuse(call, row, channel, "significant bits of x_a cos and x_b sin, and of their sum", bits, 24,
                        error);
}

/* Loads the angles of a row, those of each axis for its pairs. */
static void load_angles(const assay_call *call, int64_t n, int32_t spoil, double *cosine, double *sine) {
  const assay_tensor *table[] = {&call->arg[ARG_COS], &call->arg[ARG_SIN]};
  const int64_t half = table[0]->shape[1];
  for (int64_t i = 0; i < half; ++i) {
    const int64_t at = position_of(call, n, axis_of(call, i, spoil), spoil) * half + i;
    cosine[i] = assay_load_f64(table[0]->data, table[0]->dtype, at);
    sine[i] = assay_load_f64(table[1]->data, table[1]->dtype, at);
  }
}

/* Rotates all rows and heads of q, or of k. memory: [elements of a row + R]. */
static assay_status rotate(const assay_call *call, int32_t arg, const assay_rows *rows, bool exact, int32_t spoil,
                           assay_expected *expected, double *memory, assay_error *error) {
  const assay_tensor *x = &call->arg[arg];
  const int64_t N = x->shape[0], heads = x->shape[1], D = x->shape[2], R = 2 * call->arg[ARG_COS].shape[1];
  const int64_t width = heads * D, count = rowwise_count(rows, N);
  double *row = memory, *cosine = memory + width, *sine = cosine + R / 2;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = rowwise_index(rows, i);
    plain_load_row(x, n, row);
    load_angles(call, n, spoil, cosine, sine);
    for (int64_t h = 0; h < heads; ++h) {
      const rope_head head = {row + h * D, cosine, sine, R, D, call->param[PARAM_STYLE] == INTERLEAVED};
      double *y = expected->value + i * width + h * D;
      rope_rotate(head.x, cosine, sine, R, D, head.interleaved, y);
      if (spoil != SPOIL_NONE) spoil_head(&head, spoil, arg == ARG_K, y);
      if (expected->sigma != NULL) rope_sigma(&head, x->dtype, expected->sigma + i * width + h * D);
      const assay_status status = exact ? admit(call, n, &head, error) : ASSAY_OK;
      if (status != ASSAY_OK) return status;
    }
  }
  return ASSAY_OK;
}

static assay_status check_heights(const assay_call *call, assay_error *error) {
  const assay_tensor *hw = &call->arg[ARG_HW];
  const int64_t max_pos = call->arg[ARG_COS].shape[0], N = hw->shape[1];
  for (int64_t at = 0; at < 2 * N; ++at) {
    const int64_t found = plain_integer(hw, at);
    if (found < 0 || found >= max_pos)
      return assay_fail(error, ASSAY_ERR_INPUT, "positions_hw: found %lld at [%lld, %lld], allowed 0 to %lld",
                        (long long)found, (long long)(at / N), (long long)(at % N), (long long)(max_pos - 1));
  }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, int32_t spoil,
                            assay_expected *expected, assay_error *error) {
  static const struct { int32_t from, to; } pass[] = {{ARG_Q, ARG_Q_OUT}, {ARG_K, ARG_K_OUT}};
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  const int64_t heads = q->shape[1] > k->shape[1] ? q->shape[1] : k->shape[1];
  double *memory = NULL;
  assay_status status = rope_check_positions(&call->arg[ARG_POSITIONS], call->arg[ARG_COS].shape[0], error);
  if (status == ASSAY_OK && call->arg[ARG_HW].data != NULL) status = check_heights(call, error);
  if (status == ASSAY_OK)
    status = rowwise_reserve(call, heads * q->shape[2] + 2 * call->arg[ARG_COS].shape[1], &memory, error);
  for (int p = 0; p < 2 && status == ASSAY_OK; ++p) {
    assay_expected *here = &expected[rowwise_output(call, pass[p].from)];
    const bool apart = call->arg[pass[p].to].data != NULL;
    assay_expected *to = apart ? &expected[rowwise_output(call, pass[p].to)] : here;
    status = rotate(call, pass[p].from, rows, exact, spoil, to, memory, error);
    if (apart) rowwise_unchanged(&call->arg[pass[p].from], rows, here);
  }
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)seen;
  return compute(call, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values[4];
  const int32_t outputs = rowwise_output(call, ARG_COUNT);
  for (int32_t i = 0; i < outputs; ++i)
    values[i] = (assay_expected){expected[i].value, NULL};
  return compute(call, rows, false, index, values, error);
}

/* Channels from R on are copied. */
static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)output;
  return element % call->arg[ARG_Q].shape[2] >= 2 * call->arg[ARG_COS].shape[1];
}

/* Counts four products and two sums per pair. In place only the rotated channels move. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  double flops = 0, bytes = 0;
  const double ways = call->arg[ARG_HW].data != NULL ? 3 : 1;
  const double R = 2 * (double)call->arg[ARG_COS].shape[1], N = (double)call->arg[ARG_Q].shape[0];
  for (int32_t arg = ARG_Q; arg <= ARG_K; ++arg) {
    const assay_tensor *x = &call->arg[arg];
    const bool apart = call->arg[arg == ARG_Q ? ARG_Q_OUT : ARG_K_OUT].data != NULL;
    const double rows = N * (double)x->shape[1];
    flops += 3 * R * rows;
    bytes += 2 * rows * (apart ? (double)x->shape[2] : R) * (double)assay_dtype_size(x->dtype);
  }
  const double table = (double)call->arg[ARG_COS].shape[0] < N ? (double)call->arg[ARG_COS].shape[0] : N;
  return (assay_cost){flops,
                      bytes + table * R * 4 + ways * N * (double)assay_dtype_size(call->arg[ARG_POSITIONS].dtype)};
}

/* Draws heights and widths. They are alike in one row of four. */
static void fill_heights(const assay_fill *from, double *value, int64_t count) {
  const int64_t max_pos = from->call->arg[ARG_COS].shape[0], N = count / 2;
  for (int64_t n = 0; n < N; ++n) {
    assay_rng rng = {from->seed, 0x68656967, 8 * (uint64_t)n};
    const bool alike = assay_rng_range(&rng, 0, 3) == 0;
    value[n] = (double)assay_rng_range(&rng, 0, max_pos - 1);
    value[N + n] = alike ? value[n] : (double)assay_rng_range(&rng, 0, max_pos - 1);
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_COS || arg == ARG_SIN)
    rope_fill_table(from, from->call->arg[ARG_COS].shape[1], arg == ARG_SIN, value, count);
  else if (arg == ARG_HW)
    fill_heights(from, value, count);
  else if (arg == ARG_POSITIONS)
    rope_fill_positions(from, from->call->arg[ARG_COS].shape[0], value, count);
  else
    plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows: tokens"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"H_kv", 1, 256, 4, 1, "key heads"},
    {"D", 2, 1024, 128, 1, "channels of a head"},
    {"R", 2, 1024, 64, 2, "rotated channels, at most D"},
    {"max_pos", 1, 1 << 24, 64, 1, "positions of the table"},
};

static const assay_arg args[ARG_COUNT] = {
    {"q", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,D", "queries; the result, unless q_out is present",
     true},
    {"k", ASSAY_INOUT, ASSAY_VALUES, false, "=q", "N,H_kv,D", "keys; the result, unless k_out is present", true},
    {"cos", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "cosines of each position", false},
    {"sin", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "sines", false},
    {"positions", ASSAY_IN, ASSAY_VALUES, false, "i32,i64", "N", "of each row, 0 to max_pos - 1", false},
    {"q_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H,D", "the result; q keeps its bits", false},
    {"k_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H_kv,D", "the result; k keeps its bits", false},
    {"positions_hw", ASSAY_IN, ASSAY_VALUES, true, "i32,i64", "2,N", "heights, then widths; positions are times then",
     false},
};

static const assay_param params[PARAM_COUNT] = {
    {"style", ASSAY_ENUM, NEOX, INTERLEAVED, NEOX, "neox,interleaved", "which channels make a pair"},
    {"section_h", ASSAY_INTEGER, 0, 512, 0, NULL, "with positions_hw: pairs that the height turns"},
    {"section_w", ASSAY_INTEGER, 0, 512, 0, NULL, "with positions_hw: pairs that the width turns; the others: time"},
    {"sections", ASSAY_ENUM, 0, 1, 0, "contiguous,interleaved", "pairs of time, height, width: in a row, or in turn"},
};

static const assay_op op = {
    .name = "rope",
    .title = "rotary position embedding of q and k",
    .source = "docs/definitions.md, section 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "position_one_off,row_for_position,other_style,turned_back,last_pair_copied,rest_dropped,k_not_rotated,"
              "angle_of_pair_0,height_row_dropped,axes_turned,other_sections",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .axes = "dtype,style",
    .confirmed_by = "identity at position 0; R(p) R(q) = R(p + q); the norm of a pair; both styles under a permutation "
                    "of channels; multiplication of complex numbers; ONNX node cases (RotaryEmbedding) (ref_rope_test)",
    .extreme_args = "q,k",
    .largest = 0x1p126,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_rope(void) {
  return &op;
}
