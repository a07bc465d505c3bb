/* ref_speed.c: how fast the reference is on the machine at hand, and what it needs.
 *
 *   attention   the operators' references as they stand, one loop nest on one core, against dgemm on one core: at
 *               least 5 %
 *   forward     28 layers of the production width (qwen3, bf16) over 32 tokens, all cores: at most 60 s; peak memory of
 *               the whole process at most twice the weights
 *   live keys   asynct at the production width, 35 layers, one prompt: 30 ± 2 % of the visible keys
 *
 * Prints one line each with its limit; status 1 if one does not hold. `ref_speed attention`, `forward` or `live` runs
 * that part alone. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "attention_fixture.h"
#include "assay/model.h"

const assay_op *assay_op_softmax_attention(void);
const assay_op *assay_op_gate_attention(void);

static bool good = true;
static assay_error error;

static double now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(assay_status status) {
  if (status == ASSAY_OK) return;
  (void)fprintf(stderr, "ref_speed: %s\n", error.text);
  exit(1);
}

static void *take(int64_t bytes) {
  void *memory = calloc(1, (size_t)bytes);
  if (memory != NULL) return memory;
  (void)fprintf(stderr, "ref_speed: out of memory\n");
  exit(1);
}

static void verdict(bool holds) {
  (void)printf("  %s\n", holds ? "holds" : "DOES NOT HOLD");
  good = good && holds;
}

/* ---- attention against dgemm ---- */

/* Flops a second of the best of `runs`. */
static double dgemm_rate(int n, int runs) {
  double *a = take(3 * (int64_t)n * n * (int64_t)sizeof *a), best = 0;
  for (int i = 0; i < 2 * n * n; ++i)
    a[i] = (double)(i % 17) - 8;
  for (int run = 0; run < runs; ++run) {
    const double start = now();
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, a, n, a + n * n, n, 0, a + 2 * n * n, n);
    const double rate = 2.0 * n * n * n / (now() - start);
    if (rate > best) best = rate;
  }
  free(a);
  return best;
}

static void attention(const assay_op *op, double dgemm) {
  fixture_spec spec = fixture_default(op);
  spec.H = 8;
  spec.H_kv = 4;
  spec.D = 128;
  spec.block_size = 16;
  spec.dtype = spec.kv_dtype = ASSAY_BF16;
  spec.batch = 2;
  spec.ragged = true;
  spec.kv_len[0] = spec.new_len[0] = 384;
  spec.kv_len[1] = 1024;
  spec.new_len[1] = 64;
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  const int64_t N = spec.new_len[0] + spec.new_len[1];
  const assay_rows all = {.count = N, .index = NULL};
  assay_expected expected[ASSAY_MAX_OUTPUTS] = {{f.out, NULL}, {f.lse, NULL}};
  assay_seen seen = {0};
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const double start = now();
    must(op->reference(&f.call, NULL, &all, false, expected, &seen, &error));
    const double rate = 4.0 * (double)spec.D * (double)seen.visible_keys / (now() - start);
    if (rate > best) best = rate;
  }
  (void)printf("%-18s %.2f Gflop/s, %.1f %% of dgemm's %.1f (limit 5 %%)", op->name, best * 1e-9, 100 * best / dgemm,
               dgemm * 1e-9);
  verdict(best >= 0.05 * dgemm);
  fixture_free(&f);
}

/* ---- forward passes ---- */

typedef struct share {
  int64_t heads, live, visible;
} share;

static bool wants(void *context, const char *name) {
  (void)context;
  const size_t n = strlen(name);
  return n > 7 && strcmp(name + n - 7, ".attn.p") == 0;
}

static void count(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  (void)name;
  share *s = context;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t t = 0; t <= i / s->heads; ++t, ++s->visible)
      s->live += value[i * width + t] != 0;
}

static double peak_bytes(void) {
  struct rusage usage;
  (void)getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * (double)usage.ru_maxrss;
}

/* One prompt of n ids in one prefill, logits of all rows. */
static double forward(const assay_model_config *c, int64_t n, assay_model_taps *taps, double *weight_bytes) {
  assay_model_weights w;
  must(assay_model_weights_alloc(c, &w, &error));
  double start = now();
  must(assay_model_seed(c, 1, &w, &error));
  *weight_bytes = 0;
  for (int32_t i = 0; i < w.count; ++i)
    *weight_bytes += (double)(w.tensor[i].shape[0] * (w.tensor[i].rank == 2 ? w.tensor[i].shape[1] : 1) *
                              assay_dtype_size(w.tensor[i].dtype));
  (void)printf("%s, %lld layers: %.0f MB of weights from a seed in %.1f s\n", assay_model_arch_name(c->arch),
               (long long)c->layers, *weight_bytes * 1e-6, now() - start);
  const int64_t blocks = (n + c->block_size - 1) / c->block_size;
  const assay_model_limits limits = {blocks, n, 1, n, 0};
  assay_model_session *session = NULL;
  int32_t *ids = take(n * 4), *table = take(blocks * 4), *rows = take(n * 4);
  int64_t *slots = take(n * 8);
  double *logits = take(n * c->vocab * 8);
  for (int32_t i = 0; i < n; ++i) {
    rows[i] = i;
    slots[i] = i;
    table[i / c->block_size] = i / (int32_t)c->block_size;
  }
  assay_model_prompt(c, 1, 0, n, ids);
  const int32_t cu_q[2] = {0, (int32_t)n}, kv_len[1] = {(int32_t)n};
  const assay_model_batch batch = {.requests = 1,
                                   .cu_q = cu_q,
                                   .ids = ids,
                                   .kv_len = kv_len,
                                   .slots = slots,
                                   .block_table = table,
                                   .max_blocks = blocks,
                                   .logit_rows = rows,
                                   .logit_count = n};
  start = now();
  must(assay_model_ref()->open(c, &w, &limits, ASSAY_MODEL_EXACT, &session, &error));
  must(assay_model_ref()->forward(session, &batch, logits, taps, &error));
  const double took = now() - start;
  assay_model_ref()->close(session);
  assay_model_weights_free(&w);
  free(ids);
  free(table);
  free(rows);
  free(slots);
  free(logits);
  return took;
}

int main(int argc, char **argv) {
  const char *part = argc > 1 ? argv[1] : "all";
  const bool all = strcmp(part, "all") == 0;
  double weights = 0;
  if (all || strcmp(part, "forward") == 0) { /* first: the peak is the whole process's */
    const assay_model_config c = assay_model_production(ASSAY_QWEN3);
    const double took = forward(&c, 32, NULL, &weights), peak = peak_bytes();
    (void)printf("forward            32 tokens in %.1f s (limit 60 s)", took);
    verdict(took <= 60);
    (void)printf("peak memory        %.0f MB, %.2f of the weights (limit 2)", peak * 1e-6, peak / weights);
    verdict(peak <= 2 * weights);
  }
  if (all || strcmp(part, "attention") == 0) {
    const double every = dgemm_rate(1536, 3);
    openblas_set_num_threads(1);
    const double one = dgemm_rate(1536, 5);
    (void)printf("dgemm              %.1f Gflop/s on one core, %.1f on all\n", one * 1e-9, every * 1e-9);
    attention(assay_op_softmax_attention(), one);
    attention(assay_op_gate_attention(), one);
  }
  if (all || strcmp(part, "live") == 0) {
    const assay_model_config c = assay_model_production(ASSAY_ASYNCT);
    share s = {.heads = c.heads};
    assay_model_taps taps = {&s, wants, count, NULL};
    (void)forward(&c, 96, &taps, &weights);
    const double live = (double)s.live / (double)s.visible;
    (void)printf("live keys          %.2f %% of the visible ones (28 to 32 %%)", 100 * live);
    verdict(live >= 0.28 && live <= 0.32);
  }
  return good ? 0 : 1;
}
