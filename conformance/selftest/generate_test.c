/* generate_test.c: images: guards, padding, tables, dead bytes, draws that hold the same values elsewhere. */
#include <criterion/criterion.h>
#include <math.h>

#include "conformance/generate/image.h"
#include "conformance/generate/logical.h"
#include "core/dtype.h"
#include "fake.h"

static void make(const assay_case *one, draw choice, image *img) {
  assay_error error = {""};
  cr_assert_eq(image_make(one, &choice, NULL, img, &error), ASSAY_OK, "%s", error.text);
}

static const draw plain = {.dead = DEAD_NAN, .poison = 5};

Test(generate, allocations_are_aligned_and_apart) {
  assay_case one = fake_case(TIER_CALIBRATED);
  one.q_pad = 24;
  one.kv_pad = 8;
  image img;
  make(&one, plain, &img);
  int64_t end = 0;
  for (int32_t i = 0; i < fake_op.arg_count; ++i) {
    if (img.arg[i].data == NULL) continue;
    cr_expect_eq(img.extent[i].offset % 256, 0);
    cr_expect_geq(img.extent[i].offset - end, GUARD_BYTES);
    for (int64_t b = end; b < img.extent[i].offset; ++b) {
      const uint16_t half = poison_half(5);
      cr_assert_eq(img.host[b], (unsigned char)(b % 2 == 0 ? half & 0xFF : half >> 8));
    }
    end = img.extent[i].offset + img.extent[i].bytes;
  }
  cr_expect_geq(img.arena_bytes - end, GUARD_BYTES);
  cr_expect_eq((uintptr_t)img.host % 256, 0);
  cr_expect_eq(img.arg[FAKE_ARG_Q].stride[0], 4 * 16 + 24);
  const float *q = img.arg[FAKE_ARG_Q].data;
  cr_expect(isnan(q[64]), "padding of q is dead");
  cr_expect(!isnan(q[63]));
  cr_expect(isnan(q[2 * 88]), "the query of a row that sees nothing is dead");
  image_free(&img);
  case_free(&one);
}

Test(generate, poison_is_nan_in_every_type) {
  unsigned char bytes[7];
  for (int p = 0; p < 256; ++p) {
    poison_fill(bytes, 7, (uint8_t)p);
    cr_assert(assay_is_nan(assay_load_f64(bytes, ASSAY_F32, 0)));
    cr_assert(assay_is_nan(assay_load_f64(bytes, ASSAY_F16, 1)));
    cr_assert(assay_is_nan(assay_load_f64(bytes, ASSAY_BF16, 2)));
  }
}

/* Tokens that no row sees hold the dead pattern, all others do not. */
static void look_at_pool(case_dead dead, int layout, int kv_pad) {
  assay_case one = fake_case(TIER_CALIBRATED);
  fake_set_param(&one, "layout", layout);
  one.kv_pad = kv_pad;
  image img;
  make(&one, (draw){.dead = dead, .poison = 1}, &img);
  const span pool = img.extent[FAKE_ARG_V];
  int64_t odd = 0;
  for (int64_t i = 0; i < pool.bytes / 4; ++i) {
    const float v = ((const float *)(img.host + pool.offset))[i];
    odd += dead == DEAD_NAN       ? isnan(v) != 0
           : dead == DEAD_INF     ? isinf(v) != 0
           : dead == DEAD_LARGEST ? fabsf(v) > 1e38f
                                  : v == 0;
  }
  const int64_t visible = 5 + 16 + 37, each = 2 * 16; /* tokens; elements of one */
  const int64_t both = kv_pad < 0 ? 2 : 1;            /* K lies in the same allocation */
  cr_expect_eq(odd, pool.bytes / 4 - visible * each * both, "dead %d, layout %d, pad %d", (int)dead, layout, kv_pad);
  image_free(&img);
  case_free(&one);
}

Test(generate, dead_bytes_are_everywhere_else) {
  for (int dead = DEAD_NAN; dead <= DEAD_ZERO; ++dead)
    for (int layout = 0; layout < 3; ++layout)
      for (int pad = -1; pad < 17; pad += 8)
        if (dead != DEAD_STALE) look_at_pool((case_dead)dead, layout, pad);
}

Test(generate, table_tails_are_out_of_range) {
  assay_case one = fake_case(TIER_CALIBRATED);
  image img;
  make(&one, plain, &img);
  const assay_tensor *table = &img.arg[FAKE_ARG_TABLE];
  const int32_t *entry = table->data;
  for (int64_t b = 0; b < 4; ++b)
    for (int64_t j = 0; j < table->shape[1]; ++j) {
      const bool inside = entry[b * table->shape[1] + j] >= 0 && entry[b * table->shape[1] + j] < img.pool_blocks;
      cr_expect_eq(inside, j < (one.kv_len[b] + 7) / 8);
    }
  image_free(&img);
  case_free(&one);
}

Test(generate, huge_numbers_reach_the_same_bytes) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    assay_case one = fake_case(TIER_CALIBRATED);
    one.seed = seed;
    one.tables = TABLES_HUGE;
    image img;
    make(&one, plain, &img);
    const assay_tensor *v = &img.arg[FAKE_ARG_V];
    const int32_t block = ((const int32_t *)img.arg[FAKE_ARG_TABLE].data)[0];
    cr_expect_gt((int64_t)block * v->stride[0], INT32_MAX);
    cr_expect_geq(block, img.first_block);
    cr_expect_lt(block, v->shape[0]);
    const uintptr_t at = (uintptr_t)v->data + (uintptr_t)(block * v->stride[0] * 4);
    cr_expect_geq(at, (uintptr_t)img.host + (uintptr_t)img.extent[FAKE_ARG_V].offset);
    cr_expect_lt(at, (uintptr_t)img.host + (uintptr_t)(img.extent[FAKE_ARG_V].offset + img.extent[FAKE_ARG_V].bytes));
    image_free(&img);
    case_free(&one);
  }
}

Test(generate, shared_prefixes_are_the_same_blocks) {
  assay_case one = fake_case(TIER_CALIBRATED);
  one.share_with[3] = 1;
  one.share_tokens[3] = 11; /* one whole block of 8 */
  image img;
  make(&one, plain, &img);
  const int64_t width = img.arg[FAKE_ARG_TABLE].shape[1];
  const int32_t *entry = img.arg[FAKE_ARG_TABLE].data;
  cr_expect_eq(entry[3 * width], entry[1 * width]);
  cr_expect_neq(entry[3 * width + 1], entry[1 * width + 1]);
  cr_expect_eq(img.logical->identities, 1 + 2 + 0 + 4);
  image_free(&img);
  case_free(&one);
}

Test(generate, draws_hold_the_same_values_elsewhere) {
  assay_error error = {""};
  assay_case one = fake_case(TIER_CALIBRATED);
  one.mode = MODE_MIXED;
  memcpy(one.new_len, (int32_t[]){5, 1, 0, 7}, 16);
  image first, other, again;
  make(&one, plain, &first);
  const draw moved = {.dead = DEAD_STALE, .placement = 3, .order = 9, .poison = 7};
  cr_assert_eq(image_vary(&first, &moved, NULL, &other, &error), ASSAY_OK, "%s", error.text);
  make(&one, moved, &again);
  cr_expect_eq(other.arena_bytes, again.arena_bytes);
  cr_expect_eq(memcmp(other.host, again.host, (size_t)other.arena_bytes), 0,
               "a draw does not depend on how it is reached");
  cr_expect_neq(other.request_of_slot[0], 0);
  bool numbers_differ = false;
  for (int64_t i = 0; i < first.logical->identities; ++i)
    numbers_differ |= first.physical[i] != other.physical[i];
  cr_expect(numbers_differ);
  const float *a = first.arg[FAKE_ARG_Q].data, *b = other.arg[FAKE_ARG_Q].data;
  const int32_t *cu = other.arg[FAKE_ARG_CU_Q].data;
  cr_expect_eq(cu[4], 13);
  for (int64_t row = 0; row < 13; ++row)
    cr_expect_eq(memcmp(b + row * 64, a + other.row_of[row] * 64, 256), 0);
  image_free(&first);
  image_free(&other);
  image_free(&again);
  case_free(&one);
}

Test(generate, scales) {
  assay_case one = fake_case(TIER_EXACT);
  one.kv_dtype = ASSAY_E4M3;
  fake_set_param(&one, "scale_per_head", 1);
  image img;
  make(&one, plain, &img);
  const float *k = img.arg[3].data, *v = img.arg[4].data;
  int exponent = 0;
  for (int h = 0; h < 2; ++h)
    cr_expect_eq(fabsf(frexpf(k[h], &exponent)), 0.5f);
  cr_expect_neq(k[0], k[1]);
  cr_expect_neq(k[0], v[0]);
  image_free(&img);
  one.values = ASSAY_NORMAL;
  make(&one, plain, &img);
  k = img.arg[3].data, v = img.arg[4].data;
  cr_expect_neq(fabsf(frexpf(k[0], &exponent)), 0.5f);
  cr_expect_neq(fabsf(frexpf(v[0], &exponent)), 0.5f);
  cr_expect_neq(k[0], v[0]);
  image_free(&img);
  case_free(&one);
}

Test(generate, last_numbers_have_slots_beyond_31_bits) {
  assay_case one = fake_case(TIER_CALIBRATED);
  one.tables = TABLES_LAST;
  image img;
  make(&one, plain, &img);
  const int64_t last = img.first_block + img.pool_blocks;
  cr_expect_lt(last, INT32_MAX);
  cr_expect_gt(last, INT32_MAX - 16);
  cr_expect_gt((int64_t)((const int32_t *)img.arg[FAKE_ARG_TABLE].data)[0] * 8, INT32_MAX);
  image_free(&img);
  case_free(&one);
}

Test(generate, rebase_moves_every_address) {
  assay_case one = fake_case(TIER_EXACT);
  one.tables = TABLES_HUGE;
  image img;
  make(&one, plain, &img);
  assay_tensor arg[ASSAY_MAX_ARGS];
  const assay_call call = image_rebase(&img, img.host + 4096, arg);
  for (int32_t i = 0; i < fake_op.arg_count; ++i)
    cr_expect_eq((uintptr_t)call.arg[i].data, img.arg[i].data == NULL ? 0 : (uintptr_t)img.arg[i].data + 4096);
  image_free(&img);
  case_free(&one);
}

Test(generate, skipped_v_is_nan_only_where_nobody_needs_it) {
  assay_error error = {""};
  assay_case one = fake_case(TIER_EXACT);
  image first, other;
  make(&one, plain, &first);
  const int64_t slots = first.pool_blocks * 8;
  unsigned char *needed = calloc((size_t)slots, 2);
  const int64_t home = (int64_t)first.physical[first.logical->block_identity[0]] * 8; /* request 0, token 0 */
  needed[home * 2 + 1] = 1;
  const draw moved = {.dead = DEAD_ZERO, .dead_v = true, .placement = 2, .poison = 7};
  cr_assert_eq(image_vary(&first, &moved, needed, &other, &error), ASSAY_OK, "%s", error.text);
  const int64_t block = other.physical[other.logical->block_identity[0]];
  const float *v = (const float *)other.arg[FAKE_ARG_V].data + block * other.arg[FAKE_ARG_V].stride[0];
  cr_expect(isnan(v[0]), "head 0 is not needed");
  cr_expect(!isnan(v[16]), "head 1 is");
  cr_expect(isnan(v[32 + 16]), "token 1 is not");
  free(needed);
  image_free(&first);
  image_free(&other);
  case_free(&one);
}
