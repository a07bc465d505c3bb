/* ref_mla_test.c: mla_append against codes found by search and scales found by logarithms of exact numbers, and what it
 * refuses. */
#include <criterion/criterion.h>
#include <math.h>

#include "linear_fixture.h"

const assay_op *assay_op_mla_append(void);

static const assay_contract contract = {.qk_lanes = 1, .pv_lanes = 1, .lanes = 1};

enum { ROWS = 5, BLOCKS = 2, SIZE = 4, C = 512, PE = 64, WORDS = 164 };

/* Numbers of many sizes, with the largest of a tile at, just below and just above 448 times a power of two. */
static double number(int row, int i) {
  const int tile = i / 128, e = (row * 3 + tile * 5) % 30 - 18;
  const double size = 1 + (double)((i * 37 + row * 11) % 251);
  const double top[] = {448, 447.5, 449, 300};
  return ldexp(i % 128 == 77 ? top[(row + tile) % 4] : i % 2 != 0 ? -size : size, e);
}

static double rotated(int row, int i) {
  return (row * 64 + i) * 0x1p-3;
}

static void open_append(linear_call *c, const char *pool, assay_dtype type, int width) {
  linear_open(c, assay_op_mla_append());
  linear_tensor(c, "c", ASSAY_F32, 8, ROWS, C, 0);
  linear_tensor(c, "pe", ASSAY_F32, 0, ROWS, PE, 0);
  linear_tensor(c, "slots", ASSAY_I64, 0, ROWS, 0, 0);
  linear_tensor(c, pool, type, 0, BLOCKS, SIZE, width);
  for (int i = 0; i < ROWS * C; ++i)
    linear_set(c, "c", i, number(i / C, i % C));
  for (int i = 0; i < ROWS * PE; ++i)
    linear_set(c, "pe", i, rotated(i / PE, i % PE));
  for (int n = 0; n < ROWS; ++n)
    linear_set(c, "slots", n, n == 3 ? -1 : (n * 3 + 1) % (BLOCKS * SIZE));
}

static float float_of(double word) {
  const uint32_t bits = (uint32_t)(int32_t)word;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Returns the value of an e4m3 code by its definition. */
static double value_of(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  const double size = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
  return (code & 128) != 0 ? -size : size;
}

/* Returns the code nearest to x, and of two the even one, by a search over all of them. */
static int nearest(double x) {
  int best = 0;
  for (int code = 0; code < 255; ++code) {
    if ((code & 127) == 127) continue;
    const double here = fabs(value_of(code) - x), there = fabs(value_of(best) - x);
    if (here < there || (here == there && (code & 1) == 0 && (best & 1) != 0)) best = code;
  }
  return best;
}

Test(mla_append, words_are_nearest_codes_under_the_least_scales) {
  linear_call c;
  open_append(&c, "words", ASSAY_I32, WORDS);
  linear_run(&c, &contract, true);
  const double *word = linear_result(&c, "words")->value;
  for (int n = 0; n < ROWS; ++n) {
    if (n == 3) continue;
    const double *entry = word + (n * 3 + 1) % (BLOCKS * SIZE) * WORDS;
    for (int tile = 0; tile < 4; ++tile) {
      double largest = 0;
      int e = 0;
      for (int i = 0; i < 128; ++i)
        largest = fmax(largest, fabs(number(n, tile * 128 + i)));
      if (frexp(fmax(largest, 448 * 1e-4) / 448, &e) == 0.5) --e; /* a power of two itself */
      const double scale = ldexp(1, e);
      cr_assert_eq((double)float_of(entry[128 + tile]), scale, "row %d, tile %d", n, tile);
      for (int i = 0; i < 128; ++i) {
        const int at = tile * 128 + i, code = (int)((uint32_t)(int32_t)entry[at / 4] >> 8 * (at % 4) & 255);
        cr_assert_eq(value_of(code), value_of(nearest(number(n, at) / scale)), "row %d, channel %d", n, at);
      }
    }
    for (int i = 0; i < PE; ++i) {
      const uint32_t half = (uint32_t)(int32_t)entry[132 + i / 2] >> 16 * (i % 2) & 0xFFFF;
      const double stored = (double)float_of((double)(int32_t)(half << 16)), wanted = rotated(n, i);
      cr_assert(fabs(stored - wanted) <= 0x1p-8 * wanted, "row %d, pe %d: %g", n, i, stored);
    }
  }
  linear_close(&c);
}

Test(mla_append, copies_keep_what_no_slot_names) {
  linear_call c;
  open_append(&c, "cache", ASSAY_F32, C + PE);
  linear_run(&c, &contract, true);
  const assay_expected *cache = linear_result(&c, "cache");
  for (int slot = 0; slot < BLOCKS * SIZE; ++slot) {
    int row = -1;
    for (int n = 0; n < ROWS; ++n)
      if (n != 3 && (n * 3 + 1) % (BLOCKS * SIZE) == slot) row = n;
    for (int i = 0; i < C + PE; ++i) {
      const int64_t at = (int64_t)slot * (C + PE) + i;
      if (row < 0)
        cr_assert(cache->sigma[at] == ASSAY_UNCHANGED);
      else
        cr_assert_eq(cache->value[at], i < C ? number(row, i) : rotated(row, i - C), "slot %d, element %d", slot, i);
    }
  }
  linear_close(&c);
}

Test(mla_append, refuses_slots) {
  static const struct {
    int64_t index;
    double value;
  } wrong[] = {{0, BLOCKS * SIZE}, {2, -2}, {1, 1}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    linear_call c;
    assay_error error = {""};
    open_append(&c, "words", ASSAY_I32, WORDS);
    linear_set(&c, "slots", wrong[i].index, wrong[i].value);
    cr_assert(linear_try(&c, &contract, false, &error) == ASSAY_ERR_INPUT, "row %zu", i);
    cr_assert(strncmp(error.text, "slots", 5) == 0, "%s", error.text);
    linear_close(&c);
  }
}
