/* kv_test.c: block manager and prefix cache, by hand and against a naive model. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/rng.h"
#include "kv_model.h"

static assay_error error;
static assay_kv *kv;
static assay_kv_copy copies[16];
static int64_t copy_count, slots[512];

static void make(int64_t num_blocks, int64_t block_size, int64_t max_requests, int64_t max_blocks) {
  const assay_kv_config config = {num_blocks, block_size, max_requests, max_blocks, 64, 0};
  assay_kv_destroy(kv);
  copy_count = 0;
  error.text[0] = '\0';
  cr_assert_eq(assay_kv_create(&config, &kv, &error), ASSAY_OK, "%s", error.text);
}

static void tidy(void) {
  assay_error problem = {""};
  cr_expect_eq(assay_kv_check(kv, &problem), ASSAY_OK, "%s", problem.text);
  assay_kv_destroy(kv);
}

static assay_kv_stats stats(void) {
  assay_kv_stats s;
  assay_kv_get_stats(kv, &s);
  return s;
}

static int32_t open_with(const int32_t *prompt, int64_t n, int64_t expected_hit) {
  int32_t request;
  int64_t hit;
  cr_assert_eq(assay_kv_open(kv, prompt, n, &request, &hit, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(hit, expected_hit, "hit %lld, not %lld", (long long)hit, (long long)expected_hit);
  return request;
}

static assay_status append(int32_t request, int64_t n) {
  error.text[0] = '\0';
  return assay_kv_reserve_append(kv, request, n, slots, copies, &copy_count, &error);
}

static void step(void) {
  copy_count = 0;
  cr_assert_eq(assay_kv_step_done(kv, assay_kv_step_begin(kv), &error), ASSAY_OK, "%s", error.text);
}

/* Opens, reserves, computes and commits tokens [0, n). */
static int32_t computed(const int32_t *tokens, int64_t n, int64_t expected_hit) {
  const int32_t request = open_with(tokens, n, expected_hit);
  cr_assert_eq(append(request, n - expected_hit), ASSAY_OK, "%s", error.text);
  step();
  cr_assert_eq(assay_kv_commit(kv, request, tokens + expected_hit, n - expected_hit, &error), ASSAY_OK, "%s",
               error.text);
  return request;
}

static void release(int32_t request) {
  cr_assert_eq(assay_kv_release(kv, request, &error), ASSAY_OK, "%s", error.text);
}

static int32_t block_of(int32_t request, int64_t j) {
  return assay_kv_table(kv, request, NULL)[j];
}

static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

Test(kv, slots_and_tables_for_upload, .fini = tidy) {
  make(6, 4, 4, 5);
  const int32_t a = open_with(NULL, 0, 0), b = open_with(NULL, 0, 0), empty = open_with(NULL, 0, 0);
  cr_assert_eq(append(a, 3), ASSAY_OK);
  cr_assert_eq(append(b, 1), ASSAY_OK);
  cr_assert_eq(append(a, 6), ASSAY_OK);
  const int32_t first = block_of(a, 0), second = block_of(a, 1), third = block_of(a, 2);
  const int64_t wanted[6] = {first * 4 + 3, second * 4, second * 4 + 1, second * 4 + 2, second * 4 + 3, third * 4};
  cr_expect_arr_eq(slots, wanted, sizeof wanted);
  const int32_t rows[5] = {b, -1, a, empty, a};
  int32_t table[5 * 4], kv_len[5];
  memset(table, 7, sizeof table);
  cr_assert_eq(assay_kv_tables(kv, rows, 5, 4, table, kv_len, &error), ASSAY_OK);
  const int32_t a_row[4] = {first, second, third, -1}, b_row[4] = {block_of(b, 0), -1, -1, -1};
  const int32_t none[4] = {-1, -1, -1, -1}, lengths[5] = {1, 0, 9, 0, 9};
  cr_expect_arr_eq(table, b_row, sizeof none);
  cr_expect_arr_eq(table + 4, none, sizeof none);
  cr_expect_arr_eq(table + 8, a_row, sizeof none);
  cr_expect_arr_eq(table + 12, none, sizeof none);
  cr_expect_arr_eq(table + 16, a_row, sizeof none);
  cr_expect_arr_eq(kv_len, lengths, sizeof lengths);
  memset(table, 7, sizeof table);
  cr_expect_eq(assay_kv_tables(kv, rows, 5, 2, table, kv_len, &error), ASSAY_ERR_INPUT);
  cr_expect_str_eq(error.text, "kv_tables: max_blocks: found 2, request 0 has 3 blocks");
  cr_expect_eq(table[0], 0x07070707, "written in spite of the error");
}

Test(kv, hit_leaves_a_token_to_compute, .fini = tidy) {
  make(8, 4, 4, 4);
  release(computed(ids, 12, 0));
  cr_expect_eq(stats().idle, 3);
  for (int64_t n = 0; n <= 13; ++n) {
    const int64_t most = n == 0 ? 0 : (n - 1) / 4 * 4;
    release(open_with(ids, n, most));
  }
  int32_t other[12];
  memcpy(other, ids, sizeof other);
  other[4] = 99; /* the third block is the same, after another second */
  release(open_with(other, 12, 4));
}

Test(kv, identical_prompts_in_one_step, .fini = tidy) {
  make(8, 4, 4, 4);
  int32_t r[3];
  for (int i = 0; i < 3; ++i) {
    r[i] = open_with(ids, 6, 0);
    cr_assert_eq(append(r[i], 6), ASSAY_OK);
  }
  cr_expect_eq(assay_kv_commit(kv, r[0], ids, 6, &error), ASSAY_ERR_INPUT);
  cr_expect_str_eq(error.text, "kv_commit: n: found 6, allowed 0 to 0: of 6 tokens with slots 0 are committed, and 6 "
                               "wait for their step to begin");
  step();
  for (int i = 0; i < 3; ++i)
    cr_assert_eq(assay_kv_commit(kv, r[i], ids, 6, &error), ASSAY_OK);
  cr_expect(stats().keys == 1 && stats().duplicates == 2, "the first keeps the key, every one its own block");
  cr_expect(block_of(r[0], 0) != block_of(r[1], 0) && block_of(r[1], 0) != block_of(r[2], 0));
  const int32_t more = open_with(ids, 6, 4);
  cr_expect_eq(block_of(more, 0), block_of(r[0], 0));
  /* A block after a duplicate gets its key after the block that has it. */
  cr_assert_eq(append(r[2], 2), ASSAY_OK);
  step();
  cr_assert_eq(assay_kv_commit(kv, r[2], ids + 6, 2, &error), ASSAY_OK);
  release(more);
  const int32_t longer = open_with(ids, 9, 8);
  cr_expect(block_of(longer, 0) == block_of(r[0], 0) && block_of(longer, 1) == block_of(r[2], 1));
}

/* Blocks of two prompts, and the shared beginning of one used again: its end is the oldest. */
Test(kv, least_recently_used_is_evicted, .fini = tidy) {
  make(6, 4, 4, 4);
  const int32_t other[12] = {21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32};
  const int32_t a = computed(ids, 12, 0), b = computed(other, 12, 0);
  int32_t expected[6] = {block_of(a, 2), block_of(b, 2), block_of(b, 1),
                         block_of(b, 0), block_of(a, 1), block_of(a, 0)};
  release(a);
  release(b);
  release(open_with(ids, 9, 8));
  const int32_t new = open_with(NULL, 0, 0);
  for (int64_t j = 0; j < 4; ++j) {
    cr_assert_eq(append(new, 4), ASSAY_OK);
    cr_expect_eq(block_of(new, j), expected[j], "block %d", (int)j);
  }
  cr_expect_eq(stats().evicted, 4);
  cr_expect_eq(assay_kv_evict(kv, 1), 1);
  cr_expect_eq(assay_kv_block_state(kv, expected[4]), ASSAY_KV_FREE);
  cr_expect_eq(assay_kv_evict(kv, 9), 1);
  (void)open_with(ids, 12, 0);
}

/* Fork at every place in a block, then fork of the fork: each writer gets its own last block, the last one keeps it. */
Test(kv, fork_and_copy_on_write, .fini = tidy) {
  for (int64_t length = 4; length < 8; ++length) {
    make(8, 4, 3, 4);
    int32_t child, grandchild;
    const int32_t parent = computed(ids, length, 0);
    cr_assert_eq(assay_kv_fork(kv, parent, &child, &error), ASSAY_OK);
    cr_assert_eq(assay_kv_fork(kv, child, &grandchild, &error), ASSAY_OK);
    const int32_t last = block_of(parent, (length - 1) / 4), requests[3] = {child, parent, grandchild};
    cr_expect_eq(assay_kv_count(kv, last), 3);
    for (int i = 0; i < 3; ++i) {
      const int64_t before = copy_count;
      const bool shared = length % 4 != 0 && i < 2;
      cr_assert_eq(append(requests[i], 1), ASSAY_OK, "%s", error.text);
      cr_expect_eq(copy_count - before, shared, "length %d, writer %d", (int)length, i);
      if (shared) cr_expect(copies[before].source == last && copies[before].target == slots[0] / 4);
      cr_expect_eq(assay_kv_count(kv, slots[0] / 4), 1);
      cr_expect_eq(slots[0] % 4, length % 4);
    }
    cr_expect_eq(assay_kv_count(kv, block_of(parent, 0)), 3);
    cr_expect_eq(assay_kv_fork(kv, parent, &child, &error), ASSAY_ERR_INPUT);
    cr_expect_str_eq(error.text,
                     length == 4 ? "kv_fork: request 0: 1 of its 5 tokens are not committed yet" : error.text);
  }
}

Test(kv, queued_steps_hold_their_blocks, .fini = tidy) {
  make(4, 4, 3, 4);
  const int32_t a = open_with(ids, 8, 0);
  cr_assert_eq(append(a, 8), ASSAY_OK);
  const int64_t first = assay_kv_step_begin(kv);
  cr_assert_eq(assay_kv_commit(kv, a, ids, 8, &error), ASSAY_OK);
  const int64_t second = assay_kv_step_begin(kv);
  release(a); /* preempted, with two steps queued */
  cr_expect(stats().held == 2 && stats().idle == 2 && stats().queued_steps == 2);
  const int32_t b = open_with(NULL, 0, 0);
  cr_expect_eq(append(b, 12), ASSAY_ERR_MEMORY);
  cr_expect_str_eq(error.text, "kv_reserve_append: pool exhausted: 12 tokens more need 3 blocks, 2 can be had (of 4: 0 "
                               "used, 2 held by queued steps)");
  cr_expect_eq(assay_kv_length(kv, b), 0);
  cr_expect_eq(assay_kv_evict(kv, 4), 0);
  release(open_with(ids, 9, 8)); /* reading them again is no reuse */
  cr_assert_eq(assay_kv_step_done(kv, first, &error), ASSAY_OK);
  cr_expect_eq(append(b, 12), ASSAY_ERR_MEMORY);
  cr_assert_eq(assay_kv_step_done(kv, second, &error), ASSAY_OK);
  cr_expect_eq(append(b, 12), ASSAY_OK);
  cr_expect_eq(assay_kv_step_done(kv, second, &error), ASSAY_ERR_INPUT);
  cr_expect_str_eq(error.text, "kv_step_done: step: found 2, queued are 3 to 2");
}

/* A clone's source, left by all before the copies run, is not the target of another one. */
Test(kv, copies_of_one_step_do_not_meet, .fini = tidy) {
  make(3, 4, 3, 3);
  int32_t child;
  const int32_t parent = computed(ids, 2, 0);
  cr_assert_eq(assay_kv_fork(kv, parent, &child, &error), ASSAY_OK);
  cr_assert_eq(append(child, 1), ASSAY_OK);
  cr_expect_eq(copy_count, 1);
  release(parent);
  release(child);
  const int32_t b = open_with(NULL, 0, 0);
  cr_expect_eq(append(b, 12), ASSAY_ERR_MEMORY);
  cr_expect_eq(append(b, 4), ASSAY_OK);
  step();
  cr_expect_eq(append(b, 8), ASSAY_OK);
}

Test(kv, bad_input, .fini = tidy) {
  static const struct {
    assay_kv_config config;
    const char *text;
  } bad[] = {
      {{0, 4, 4, 4, 64, 0}, "kv_create: num_blocks: found 0, allowed 1 to 2147483647"},
      {{(int64_t)1 << 31, 4, 4, 4, 64, 0}, "kv_create: num_blocks: found 2147483648, allowed 1 to 2147483647"},
      {{4, 0, 4, 4, 64, 0}, "kv_create: block_size: found 0, allowed 1 to 256"},
      {{4, 257, 4, 4, 64, 0}, "kv_create: block_size: found 257, allowed 1 to 256"},
      {{4, 4, -1, 4, 64, 0}, "kv_create: max_requests: found -1, allowed 1 to 2147483647"},
      {{4, 16, 4, 134217728, 64, 0}, "kv_create: max_blocks: found 134217728, allowed 1 to 134217727"},
      {{4, 4, 4, 4, 65, 0}, "kv_create: hash_bits: found 65, allowed 0 to 64"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    assay_error text = {""};
    assay_kv *none = (assay_kv *)&text;
    cr_expect_eq(assay_kv_create(&bad[i].config, &none, &text), ASSAY_ERR_INPUT);
    cr_expect_null(none);
    cr_expect_str_eq(text.text, bad[i].text);
  }
  make(8, 4, 2, 3);
  int32_t request, child;
  int64_t hit;
  const int32_t a = computed(ids, 5, 0);
#define REFUSED(call, status, message)                                                                                 \
  do {                                                                                                                 \
    error.text[0] = '\0';                                                                                              \
    cr_expect_eq(call, status);                                                                                        \
    cr_expect_str_eq(error.text, message);                                                                             \
  } while (0)
  REFUSED(assay_kv_open(kv, ids, 13, &request, &hit, &error), ASSAY_ERR_INPUT, "kv_open: n: found 13, allowed 0 to 12");
  REFUSED(assay_kv_open(kv, ids, -1, &request, &hit, &error), ASSAY_ERR_INPUT, "kv_open: n: found -1, allowed 0 to 12");
  REFUSED(assay_kv_open(kv, NULL, 3, &request, &hit, &error), ASSAY_ERR_INPUT, "kv_open: prompt: none, but n is 3");
  REFUSED(append(1, 1), ASSAY_ERR_INPUT, "kv_reserve_append: request 1 is not open");
  REFUSED(append(-1, 1), ASSAY_ERR_INPUT, "kv_reserve_append: request -1 is not open");
  REFUSED(append(2, 1), ASSAY_ERR_INPUT, "kv_reserve_append: request 2 is not open");
  REFUSED(append(a, -1), ASSAY_ERR_INPUT, "kv_reserve_append: n: found -1, allowed 0 to 7: 5 of 12 tokens");
  REFUSED(append(a, INT64_MAX), ASSAY_ERR_INPUT,
          "kv_reserve_append: n: found 9223372036854775807, allowed 0 to 7: 5 of 12 tokens");
  cr_expect_eq(append(a, 0), ASSAY_OK);
  cr_assert_eq(assay_kv_fork(kv, a, &child, &error), ASSAY_OK);
  REFUSED(assay_kv_reserve_append(kv, a, 1, slots, NULL, NULL, &error), ASSAY_ERR_INPUT,
          "kv_reserve_append: copies: none, but request 0 shares its last block");
  REFUSED(assay_kv_fork(kv, a, &child, &error), ASSAY_ERR_MEMORY, "kv_fork: max_requests: all 2 are open");
  REFUSED(assay_kv_open(kv, ids, 5, &request, &hit, &error), ASSAY_ERR_MEMORY, "kv_open: max_requests: all 2 are open");
  release(child);
  REFUSED(assay_kv_release(kv, child, &error), ASSAY_ERR_INPUT, "kv_release: request 1 is not open");
  REFUSED(assay_kv_step_done(kv, 0, &error), ASSAY_ERR_INPUT, "kv_step_done: step: found 0, queued are 2 to 1");
  cr_expect(assay_kv_length(kv, 1) == -1 && assay_kv_table(kv, 1, &hit) == NULL && hit == -1);
  cr_expect(assay_kv_count(kv, -1) == -1 && assay_kv_count(kv, 8) == -1);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 64 bits, 8 bits, 2 bits so that most look-ups collide, and no index at all. */
Test(kv, against_the_naive_model, .timeout = 60) {
  enum { RUNS = 192, EACH = 8000 };
  static const int64_t bits[4] = {64, 8, 2, 0};
  kv_run total = {0};
  const double start = seconds();
  for (uint64_t seed = 0; seed < RUNS; ++seed) {
    const assay_kv_config config = {.num_blocks = 3 + (int64_t)seed % 6,
                                    .block_size = 1 + (int64_t)(seed / 6) % 4,
                                    .max_requests = 2 + (int64_t)seed % 5,
                                    .max_blocks = 2 + (int64_t)(seed / 24) % 4,
                                    .hash_bits = seed % 16 == 15 ? 0 : bits[seed / 2 % 3]};
    kv_run run;
    kv_model_run(&config, 2 + (int32_t)seed % 2, 1000 + seed, EACH, ALL_RULES, &run);
    cr_assert_eq(run.broken, 0, "seed %d, operation %lld: %s", (int)seed, (long long)run.operations, run.text);
    const int64_t met[] = {run.operations, run.hit_blocks, run.clones,    run.evictions,  run.refused,
                           run.exhausted,  run.revived,    run.held,      run.fork_at[0], run.fork_at[1],
                           run.fork_at[2], run.collisions, run.duplicates};
    int64_t *const sum[] = {&total.operations, &total.hit_blocks, &total.clones,     &total.evictions,
                            &total.refused,    &total.exhausted,  &total.revived,    &total.held,
                            &total.fork_at[0], &total.fork_at[1], &total.fork_at[2], &total.collisions,
                            &total.duplicates};
    for (size_t i = 0; i < sizeof met / sizeof *met; ++i)
      *sum[i] += met[i];
  }
  cr_log_info("%lld operations in %.2f s: %lld blocks hit (%lld idle), %lld clones, %lld evictions, %lld calls refused "
              "(%lld exhausted), forks at 0, inside, at the end %lld %lld %lld, %lld collisions, %lld duplicates, "
              "%.2f blocks held on average",
              (long long)total.operations, seconds() - start, (long long)total.hit_blocks, (long long)total.revived,
              (long long)total.clones, (long long)total.evictions, (long long)total.refused, (long long)total.exhausted,
              (long long)total.fork_at[0], (long long)total.fork_at[1], (long long)total.fork_at[2],
              (long long)total.collisions, (long long)total.duplicates, (double)total.held / (double)total.operations);
  cr_expect_geq(total.operations, 200000);
  cr_expect(total.hit_blocks > 5000 && total.revived > 2000 && total.clones > 2000 && total.evictions > 2000);
  cr_expect(total.exhausted > 2000 && total.collisions > 2000 && total.duplicates > 500 && total.held > 10000);
  cr_expect(total.fork_at[0] > 1000 && total.fork_at[1] > 1000 && total.fork_at[2] > 1000);
}

/* A pool of the size an engine has: bookkeeping is microseconds a request, and no call is slow because of its size. */
Test(kv, big_pool, .fini = tidy, .timeout = 60) {
  enum { PROMPT = 512, BATCH = 128, ROUNDS = 8, DECODE = 64 };
  static int32_t prompt[PROMPT + DECODE];
  int32_t r[BATCH];
  int64_t appended = 0;
  make(1 << 16, 16, BATCH, 256);
  assay_rng rng = {.seed = 11, .stream = 1};
  const double start = seconds();
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < BATCH; ++i) {
      for (int t = 0; t < PROMPT + DECODE; ++t)
        prompt[t] = t < 128 ? t : (int32_t)assay_rng_range(&rng, 0, 151935);
      const int64_t hit = round == 0 && i == 0 ? 0 : 128;
      r[i] = computed(prompt, PROMPT, hit);
      appended += PROMPT - hit;
    }
    for (int t = 0; t < DECODE; ++t) {
      for (int i = 0; i < BATCH; ++i)
        cr_assert_eq(append(r[i], 1), ASSAY_OK, "%s", error.text);
      step();
      for (int i = 0; i < BATCH; ++i)
        cr_assert_eq(assay_kv_commit(kv, r[i], &prompt[PROMPT + t], 1, &error), ASSAY_OK, "%s", error.text);
      appended += BATCH;
    }
    for (int i = 0; i < BATCH; ++i)
      release(r[i]);
  }
  cr_log_info("%lld tokens reserved, committed and released in %.3f s: %.0f ns each", (long long)appended,
              seconds() - start, 1e9 * (seconds() - start) / (double)appended);
  cr_expect(stats().used == 0 && stats().idle == 8 + ROUNDS * BATCH * (36 - 8));
}
