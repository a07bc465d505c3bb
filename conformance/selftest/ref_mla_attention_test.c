/* ref_mla_attention_test.c: mla_attention against attention whose keys and values are not absorbed, and against closed
 * forms. Entries of 656 bytes are compared with entries of one type. The last tests show what the operator refuses. */
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"
#include "ref/lib/mla.h"

const assay_op *assay_op_mla_attention(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { B = 2, T = 2, H = 3, BLOCKS = 4, SIZE = 4, WIDTH = 2, C = 512, PE = 64, ENTRY = 576, NOPE = 16, VALUES = 8 };
static const int lengths[B] = {7, 5};
static const int table[B][WIDTH] = {{2, 0}, {3, 1}};

/* Whole numbers from -3 to 3. */
static double number(int a, int b, int c) {
  const unsigned mixed = (unsigned)a * 2654435761u ^ (unsigned)b * 40503u ^ (unsigned)c * 97u;
  return (double)(mixed / 7 % 7) - 3;
}

static double latent(int request, int t, int d) {
  return number(1 + request, t, d);
}

static double rotated(int request, int t, int i) {
  return number(11 + request, t, i);
}

/* Opens a call whose pool is `pool`, of `width` elements an entry. Both requests have T rows. */
static void open_call(linear_call *c, const char *pool, assay_dtype type, int width, double scale) {
  linear_open(c, assay_op_mla_attention());
  linear_tensor(c, "q", ASSAY_F32, 0, B * T, H, ENTRY);
  linear_tensor(c, pool, type, 0, BLOCKS, SIZE, width);
  linear_tensor(c, "cu_q", ASSAY_I32, 0, B + 1, 0, 0);
  linear_tensor(c, "table", ASSAY_I32, 0, B, WIDTH, 0);
  linear_tensor(c, "kv_len", ASSAY_I32, 0, B, 0, 0);
  linear_tensor(c, "out", ASSAY_F32, 0, B * T, H, C);
  linear_tensor(c, "lse", ASSAY_F32, 0, B * T, H, 0);
  for (int b = 0; b < B; ++b) {
    linear_set(c, "kv_len", b, lengths[b]);
    for (int w = 0; w < WIDTH; ++w)
      linear_set(c, "table", b * WIDTH + w, table[b][w]);
  }
  for (int b = 0; b <= B; ++b)
    linear_set(c, "cu_q", b, b * T);
  linear_param(c, "scale", scale);
}

static int slot_of(int request, int t) {
  return table[request][t / SIZE] * SIZE + t % SIZE;
}

static void fill_cache(linear_call *c) {
  for (int b = 0; b < B; ++b)
    for (int t = 0; t < lengths[b]; ++t)
      for (int d = 0; d < ENTRY; ++d)
        linear_set(c, "cache", slot_of(b, t) * ENTRY + d, d < C ? latent(b, t, d) : rotated(b, t, d - C));
}

/* W_UK and W_UV of a head: [NOPE, 512] and [VALUES, 512], mostly zeros. */
static double up_k(int h, int i, int d) {
  return (d + i + h) % 19 == 0 ? number(21 + h, i, d) : 0;
}

static double up_v(int h, int i, int d) {
  return (d + 3 * i + h) % 17 == 0 ? number(31 + h, i, d) : 0;
}

static double query(int row, int h, int i) {
  return number(41 + h, row, i);
}

/* Keys (W_UK c, pe) and values W_UV c, by the textbook; against q W_UK, and W_UV of the result. All is exact but exp.
 */
Test(mla_attention, absorbed_is_not_absorbed) {
  const double scale = 0x1p-7;
  linear_call c;
  open_call(&c, "cache", ASSAY_F32, ENTRY, scale);
  fill_cache(&c);
  for (int row = 0; row < B * T; ++row)
    for (int h = 0; h < H; ++h)
      for (int d = 0; d < ENTRY; ++d) {
        double q = d < C ? 0 : query(row, h, NOPE + d - C);
        for (int i = 0; i < NOPE && d < C; ++i)
          q += query(row, h, i) * up_k(h, i, d);
        linear_set(&c, "q", (row * H + h) * ENTRY + d, q);
      }
  linear_run(&c, &contract, false);
  for (int row = 0; row < B * T; ++row)
    for (int h = 0; h < H; ++h) {
      const int b = row / T, keys = lengths[b] - T + row % T + 1;
      double s[8], sum = 0, out[VALUES] = {0};
      for (int t = 0; t < keys; ++t) {
        s[t] = 0;
        for (int i = 0; i < NOPE; ++i) {
          double k = 0;
          for (int d = 0; d < C; ++d)
            k += up_k(h, i, d) * latent(b, t, d);
          s[t] += query(row, h, i) * k;
        }
        for (int i = 0; i < PE; ++i)
          s[t] += query(row, h, NOPE + i) * rotated(b, t, i);
        s[t] = exp(scale * s[t]);
        sum += s[t];
      }
      for (int t = 0; t < keys; ++t)
        for (int i = 0; i < VALUES; ++i)
          for (int d = 0; d < C; ++d)
            out[i] += s[t] / sum * up_v(h, i, d) * latent(b, t, d);
      for (int i = 0; i < VALUES; ++i) {
        double ours = 0, size = 0;
        for (int d = 0; d < C; ++d) {
          const double y = linear_result(&c, "out")->value[(row * H + h) * C + d];
          ours += up_v(h, i, d) * y;
          size += fabs(up_v(h, i, d) * y);
        }
        cr_assert(fabs(ours - out[i]) <= 1e-12 * (size + 1), "row %d, head %d, value %d: %.17g, %.17g", row, h, i, ours,
                  out[i]);
      }
      cr_assert(fabs(linear_result(&c, "lse")->value[row * H + h] - log(sum)) <= 1e-12 * (1 + fabs(log(sum))));
    }
  linear_close(&c);
}

/* q = 0: the mean of the visible entries, and lse the logarithm of their number. */
Test(mla_attention, zero_queries_give_means) {
  linear_call c;
  open_call(&c, "cache", ASSAY_F32, ENTRY, 1);
  fill_cache(&c);
  linear_run(&c, &contract, false);
  for (int row = 0; row < B * T; ++row) {
    const int b = row / T, keys = lengths[b] - T + row % T + 1;
    for (int d = 0; d < C; ++d) {
      double mean = 0;
      for (int t = 0; t < keys; ++t)
        mean += latent(b, t, d) / keys;
      cr_assert(fabs(linear_result(&c, "out")->value[row * H * C + d] - mean) < 1e-14, "row %d, channel %d", row, d);
    }
    cr_assert(fabs(linear_result(&c, "lse")->value[row * H] - log(keys)) < 1e-14, "row %d", row);
  }
  linear_close(&c);
}

/* Entries of 656 bytes that hold the same numbers give the same results. A row without keys is 0, with lse -inf. */
Test(mla_attention, words_are_entries_and_empty_rows_are_zero) {
  linear_call one, words;
  open_call(&one, "cache", ASSAY_F32, ENTRY, 0.0625);
  open_call(&words, "words", ASSAY_I32, MLA_WORDS, 0.0625);
  fill_cache(&one);
  linear_set(&one, "kv_len", 1, 1); /* T is 2: the first row sees nothing */
  linear_set(&words, "kv_len", 1, 1);
  for (int i = 0; i < B * T * H * ENTRY; ++i) {
    linear_set(&one, "q", i, number(3, i / 91, i));
    linear_set(&words, "q", i, number(3, i / 91, i));
  }
  for (int b = 0; b < B; ++b)
    for (int t = 0; t < lengths[b]; ++t) {
      const double scale[MLA_TILES] = {1, 0.5, 0.25, 2};
      double c[C], pe[PE];
      uint32_t packed[MLA_WORDS];
      for (int d = 0; d < C; ++d) {
        c[d] = latent(b, t, d) * scale[d / 128];
        linear_set(&one, "cache", slot_of(b, t) * ENTRY + d, c[d]);
      }
      for (int i = 0; i < PE; ++i)
        pe[i] = rotated(b, t, i);
      mla_pack(c, scale, pe, packed);
      for (int i = 0; i < MLA_WORDS; ++i)
        linear_set(&words, "words", slot_of(b, t) * MLA_WORDS + i, (double)(int32_t)packed[i]);
    }
  linear_run(&one, &contract, false);
  linear_run(&words, &contract, false);
  for (int i = 0; i < B * T * H * C; ++i)
    cr_assert_eq(linear_result(&one, "out")->value[i], linear_result(&words, "out")->value[i], "element %d", i);
  for (int i = T * H * C; i < (T + 1) * H * C; ++i)
    cr_assert_eq(linear_result(&one, "out")->value[i], 0);
  cr_assert_eq(linear_result(&one, "lse")->value[T * H], -(double)INFINITY);
  linear_close(&one);
  linear_close(&words);
}

/* Rows that are cut into requests another way: 3 and 1, then 0 and 4. Row n of the last T sees L - T + n + 1 keys. */
Test(mla_attention, chunks_of_any_length) {
  static const int cut[][B + 1] = {{0, 3, 4}, {0, 0, 4}, {0, 4, 4}};
  for (size_t i = 0; i < sizeof cut / sizeof cut[0]; ++i) {
    linear_call c;
    open_call(&c, "cache", ASSAY_F32, ENTRY, 1);
    fill_cache(&c);
    for (int b = 0; b <= B; ++b)
      linear_set(&c, "cu_q", b, cut[i][b]);
    linear_run(&c, &contract, false);
    for (int row = 0; row < B * T; ++row) {
      const int b = row >= cut[i][1], rows = cut[i][b + 1] - cut[i][b], keys = lengths[b] - rows + row - cut[i][b] + 1;
      double mean = 0;
      for (int t = 0; t < keys; ++t)
        mean += latent(b, t, 9) / keys;
      cr_assert(fabs(linear_result(&c, "out")->value[row * H * C + 9] - mean) < 1e-14, "cut %zu, row %d", i, row);
    }
    linear_close(&c);
  }
}

Test(mla_attention, refuses_lengths_and_blocks) {
  static const struct {
    const char *name;
    int64_t index;
    double value;
  } wrong[] = {{"cu_q", 0, 1},    {"cu_q", 1, B * T + 1},          {"cu_q", 2, B * T - 1}, {"cu_q", 2, 1},
               {"kv_len", 0, -1}, {"kv_len", 1, WIDTH * SIZE + 1}, {"table", 1, BLOCKS},   {"table", 2, -1}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    linear_call c;
    assay_error error = {""};
    open_call(&c, "cache", ASSAY_F32, ENTRY, 1);
    linear_set(&c, wrong[i].name, wrong[i].index, wrong[i].value);
    cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT, "row %zu", i);
    cr_assert(strncmp(error.text, wrong[i].name, strlen(wrong[i].name)) == 0, "%s", error.text);
    linear_close(&c);
  }
}

/* 0 is no scale, and no factor is made up for it. */
Test(mla_attention, refuses_a_scale_of_0) {
  linear_call c;
  assay_error error = {""};
  open_call(&c, "cache", ASSAY_F32, ENTRY, 0);
  cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT);
  cr_assert(strncmp(error.text, "scale", 5) == 0, "%s", error.text);
  linear_close(&c);
}
