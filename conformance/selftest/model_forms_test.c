/* model_forms_test.c: a prompt's logits do not depend on how it is computed. The ways are one prefill, decode steps,
 * and chunks of any size. Other requests run beside it, a prefix is cached, it is a fork, threads are few or many. */
#include <criterion/criterion.h>
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "model_driver.h"
#include "model_small.h"

enum { N = 53, BLOCKS = 64, LARGEST_V = 300 };

/* Sums of f64 in another order; logits are of the order of 1. */
static const double f64_bound = 1e-11;

static assay_error error;
static int32_t ids[3][N + 16];
static double whole[N * LARGEST_V], other[N * LARGEST_V];

typedef struct model {
  assay_model_config config;
  assay_model_weights weights;
  model_driver d;
} model;

static void open_model(model *m, int number, assay_model_mode mode) {
  m->config = small_model(number);
  cr_assert_eq(assay_model_check(&m->config, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_weights_alloc(&m->config, &m->weights, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&m->config, 7, &m->weights, &error), ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < 3; ++i)
    assay_model_prompt(&m->config, 7, i, N + 16, ids[i]);
  driver_open(&m->d, &m->config, &m->weights, BLOCKS, 4 * N, 8, mode);
}

static void close_model(model *m) {
  driver_close(&m->d);
  assay_model_weights_free(&m->weights);
}

static void expect_near(const model *m, const double *got, const double *wanted, int64_t rows, const char *what) {
  double most = 0;
  for (int64_t i = 0; i < rows * m->config.vocab; ++i)
    if (!(fabs(got[i] - wanted[i]) <= most)) most = fabs(got[i] - wanted[i]);
  cr_expect(most <= f64_bound, "%s, %s: %g", assay_model_arch_name(m->config.arch), what, most);
}

Test(forms, prefill_decode_and_any_chunks) {
  static const int64_t chunk[] = {1, 2, 7, 8, 16, 52};
  for (int number = 0; number < REF_MODELS; ++number) {
    model m;
    open_model(&m, number, ASSAY_MODEL_EXACT);
    driver_prompt(&m.d, ids[0], N, 0, whole);
    for (size_t i = 0; i < sizeof chunk / sizeof chunk[0]; ++i) {
      driver_prompt(&m.d, ids[0], N, chunk[i], other);
      char what[32];
      (void)snprintf(what, sizeof what, "model %d, chunk %lld", number, (long long)chunk[i]);
      expect_near(&m, other, whole, N, what);
    }
    close_model(&m);
  }
}

/* A prefill, a chunk of one and a decode step in each forward pass, and a pad row between them. */
Test(forms, mixed_batches) {
  for (int number = 0; number < REF_MODELS; ++number) {
    model m;
    open_model(&m, number, ASSAY_MODEL_EXACT);
    const int64_t V = m.config.vocab;
    double *alone[3];
    int32_t request[3];
    for (int64_t i = 0; i < 3; ++i) {
      alone[i] = malloc(sizeof(double) * (size_t)(N * V));
      driver_prompt(&m.d, ids[i], N, 0, alone[i]);
      request[i] = driver_request(&m.d, NULL, 0, NULL);
    }
    static const int64_t count[4][3] = {{20, 1, 0}, {0, 19, 30}, {1, 1, 1}, {5, 0, 22}};
    int64_t done[3] = {0};
    for (int step = 0; step < 4; ++step) {
      for (int i = 0; i < 3; ++i) {
        if (count[step][i] > 0) driver_add(&m.d, request[i], ids[i] + done[i], count[step][i], true);
        if (i == 1) driver_add_pad(&m.d);
      }
      const double *logits = driver_step(&m.d, NULL);
      for (int i = 0; i < 3; logits += count[step][i] * V, done[i] += count[step][i], ++i)
        expect_near(&m, logits, alone[i] + done[i] * V, count[step][i], "mixed");
    }
    for (int i = 0; i < 3; ++i)
      free(alone[i]);
    close_model(&m);
  }
}

Test(forms, prefix_hit_and_fork_are_the_same_as_none) {
  for (int number = 0; number < REF_MODELS; ++number) {
    model m;
    open_model(&m, number, ASSAY_MODEL_EXACT);
    const int64_t V = m.config.vocab, shared = 37;
    memcpy(ids[1], ids[0], (size_t)shared * sizeof ids[0][0]);
    memcpy(ids[2], ids[0], (size_t)shared * sizeof ids[0][0]);
    driver_prompt(&m.d, ids[1], N, 0, whole);
    driver_prompt(&m.d, ids[2], N, 0, other);

    /* The prefix is in the index from these runs; drop it, compute it once, and hit it. */
    (void)assay_kv_evict(m.d.kv, BLOCKS);
    int64_t hit = -1;
    const int32_t first = driver_request(&m.d, ids[0], shared, &hit);
    cr_expect_eq(hit, 0);
    driver_add(&m.d, first, ids[0], shared, false);
    (void)driver_step(&m.d, NULL);
    const int32_t second = driver_request(&m.d, ids[1], N, &hit);
    /* With states, blocks whose last state is not kept are no hit. */
    cr_expect_eq(hit, assay_model_has_states(&m.config) ? 0 : shared / m.config.block_size * m.config.block_size);
    driver_add(&m.d, second, ids[1] + hit, N - hit, true);
    expect_near(&m, driver_step(&m.d, NULL), whole + hit * V, N - hit, "prefix hit");

    /* The parent goes on as prompt 1, its child as prompt 2: the partial block is copied. */
    int32_t child = -1;
    cr_assert_eq(assay_kv_fork(m.d.kv, first, &child, &error), ASSAY_OK, "%s", error.text);
    driver_add(&m.d, first, ids[1] + shared, N - shared, true);
    driver_add(&m.d, child, ids[2] + shared, N - shared, true);
    cr_expect_eq(m.d.copy_count, 1);
    const double *logits = driver_step(&m.d, NULL);
    expect_near(&m, logits, whole + shared * V, N - shared, "parent of a fork");
    expect_near(&m, logits + (N - shared) * V, other + shared * V, N - shared, "child of a fork");
    close_model(&m);
  }
}

/* A prompt's first two blocks are computed in two steps, and its last rows in a third one. Its state is kept at the end
 * of one of the blocks, or of none. A second prompt with the same 18 tokens starts there, while the first one goes on.
 */
Test(forms, prefix_with_a_state_is_the_same_as_none) {
  for (int number = 0; number < REF_MODELS; ++number)
    for (int kept = 0; kept < 3; ++kept) {
      model m;
      int64_t hit = -1;
      open_model(&m, number, ASSAY_MODEL_EXACT);
      const int64_t V = m.config.vocab, size = m.config.block_size, shared = 2 * size + 2;
      if (!assay_model_has_states(&m.config)) {
        close_model(&m);
        break;
      }
      memcpy(ids[1], ids[0], (size_t)shared * sizeof ids[0][0]);
      driver_prompt(&m.d, ids[1], N, 0, whole);
      driver_prompt(&m.d, ids[0], N, 0, other);
      (void)assay_kv_evict(m.d.kv, BLOCKS);
      const int32_t first = driver_request(&m.d, ids[0], shared, &hit);
      cr_expect_eq(hit, 0);
      for (int part = 0; part < 3; ++part) {
        m.d.keeps = part + 1 == kept;
        driver_add(&m.d, first, ids[0] + part * size, part < 2 ? size : 2, false);
        (void)driver_step(&m.d, NULL);
      }
      const int32_t second = driver_request(&m.d, ids[1], N, &hit);
      cr_expect_eq(hit, kept * size, "model %d, kept at block %d: hit %lld", number, kept, (long long)hit);
      driver_add(&m.d, first, ids[0] + shared, N - shared, true);
      driver_add(&m.d, second, ids[1] + hit, N - hit, true);
      const double *logits = driver_step(&m.d, NULL);
      expect_near(&m, logits, other + shared * V, N - shared, "beside a prefix hit");
      expect_near(&m, logits + (N - shared) * V, whole + hit * V, N - hit, "prefix hit with a state");
      close_model(&m);
    }
}

Test(forms, logits_of_picked_rows) {
  model m;
  open_model(&m, 1, ASSAY_MODEL_EXACT);
  driver_prompt(&m.d, ids[0], N, 0, whole);
  driver_add(&m.d, driver_request(&m.d, NULL, 0, NULL), ids[0], N, false);
  static const int32_t rows[] = {52, 0, 17, 17};
  memcpy(m.d.logit_rows, rows, sizeof rows);
  m.d.logit_count = 4;
  const double *logits = driver_step(&m.d, NULL);
  for (int i = 0; i < 4; ++i)
    expect_near(&m, logits + i * m.config.vocab, whole + rows[i] * m.config.vocab, 1, "picked");
  close_model(&m);
}

#ifdef _OPENMP
/* Wide enough that every call shares its work out. */
Test(forms, as_many_threads_as_you_like) {
  for (int number = 0; number < 3; ++number) {
    model m;
    double *logits[4];
    const int threads[4] = {1, 2, 3, 7};
    for (int i = 0; i < 4; ++i) {
      omp_set_num_threads(threads[i]);
      m.config = small_model(number);
      m.config.hidden = 512;
      m.config.intermediate = 1024;
      m.config.heads = m.config.kv_heads * 4;
      m.config.head_size = 64;
      m.config.vocab = 4000;
      m.config.layers = 2;
      m.config.max_pos = 2 * N;
      m.config.rotated = number == 0 ? 0 : 64;
      cr_assert_eq(assay_model_weights_alloc(&m.config, &m.weights, &error), ASSAY_OK, "%s", error.text);
      cr_assert_eq(assay_model_seed(&m.config, 7, &m.weights, &error), ASSAY_OK, "%s", error.text);
      for (int64_t j = 0; j < 3; ++j)
        assay_model_prompt(&m.config, 7, j, N, ids[j]);
      driver_open(&m.d, &m.config, &m.weights, BLOCKS, 3 * N, 3, ASSAY_MODEL_EXACT);
      for (int64_t j = 0; j < 3; ++j)
        driver_add(&m.d, driver_request(&m.d, NULL, 0, NULL), ids[j], N, true);
      logits[i] = malloc(sizeof(double) * (size_t)(3 * N * m.config.vocab));
      memcpy(logits[i], driver_step(&m.d, NULL), sizeof(double) * (size_t)(3 * N * m.config.vocab));
      cr_expect_arr_eq(logits[i], logits[0], sizeof(double) * (size_t)(3 * N * m.config.vocab), "model %d, %d threads",
                       number, threads[i]);
      close_model(&m);
    }
    for (int i = 0; i < 4; ++i)
      free(logits[i]);
  }
}
#endif
