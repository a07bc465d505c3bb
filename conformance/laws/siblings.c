/* siblings.c: the law `siblings`: of two leaves of a draft tree with the same parent, neither sees the other. Exchanged
 * with their queries, keys and values, they have each other's results. The order of keys differs then, and the results
 * stay within the tier's limits. */
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/dtype.h"
#include "laws_internal.h"

/* Two rows in the case's order, and the contents of their tokens. */
typedef struct leaves {
  int64_t row[2], content[2];
} leaves;

static const int32_t *parents_of(const trial *t) {
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (strcmp(t->one->op->args[i].name, "parent") == 0 && t->first.arg[i].data != NULL)
      return (const int32_t *)(const void *)t->first.logical->values[i];
  return NULL;
}

static bool is_leaf(const int32_t *parent, int64_t rows, int64_t row) {
  for (int64_t i = row + 1; i < rows; ++i)
    if (parent[i] == row) return false;
  return true;
}

static int64_t content_of(const logical *l, int64_t request, int64_t token) {
  return l->block_identity[l->block_start[request] + token / l->block_size] * l->block_size + token % l->block_size;
}

/* Tells whether one request alone has the block of this content. */
static bool is_own(const logical *l, int64_t content) {
  int64_t owners = 0;
  for (int64_t i = 0; i < l->block_start[l->B]; ++i)
    owners += l->block_identity[i] == content / l->block_size;
  return owners == 1;
}

/* Finds two leaves of a request with one parent, the last such pair. */
static bool find_pair(const trial *t, const int32_t *parent, int64_t request, leaves *found) {
  const logical *l = t->first.logical;
  const int64_t first = l->row_start[request], rows = l->fresh[request], P = l->length[request] - rows;
  const int32_t *own = parent + first;
  for (int64_t b = rows - 1; b > 0 && P >= 0; --b)
    for (int64_t a = b - 1; a >= 0; --a) {
      if (own[a] != own[b] || !is_leaf(own, rows, a) || !is_leaf(own, rows, b)) continue;
      *found = (leaves){{first + a, first + b}, {content_of(l, request, P + a), content_of(l, request, P + b)}};
      if (is_own(l, found->content[0]) && is_own(l, found->content[1])) return true;
    }
  return false;
}

static void swap_bytes(unsigned char *a, unsigned char *b, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    const unsigned char kept = a[i];
    a[i] = b[i];
    b[i] = kept;
  }
}

static void swap_rows(unsigned char *from, const int64_t *at, int64_t bytes) {
  swap_bytes(from + at[0] * bytes, from + at[1] * bytes, bytes);
}

/* Exchanges the pairs' queries, keys and values in the contents that all draws share. Done twice, it changes nothing.
 */
static void exchange(const trial *t, const leaves *pair, int64_t count) {
  const logical *l = t->first.logical;
  const int64_t q = l->H * l->D * assay_dtype_size(l->q_dtype), kv = l->H_kv * assay_dtype_size(l->kv_dtype);
  for (int64_t i = 0; i < count; ++i) {
    swap_rows(l->q, pair[i].row, q);
    swap_rows(l->k, pair[i].content, kv * l->D);
    swap_rows(l->v, pair[i].content, kv * l->D_v);
  }
}

static void exchange_results(const trial *t, const leaves *pair, int64_t count, outputs *got) {
  for (int32_t o = 0; o < t->count; ++o)
    for (int64_t i = 0; i < count && t->output[o].kind == OUTPUT_ROWS; ++i)
      swap_rows(got->bits[o], pair[i].row, t->output[o].width * assay_dtype_size(t->output[o].dtype));
}

bool siblings_applies(const trial *t) {
  return trial_has_law(t, "siblings") && parents_of(t) != NULL;
}

bool siblings_check(const trial *t, const outputs *base, case_result *result) {
  const int32_t *parent = parents_of(t);
  const logical *l = t->first.logical;
  leaves *pair = malloc((size_t)(l->B + 1) * sizeof *pair);
  int64_t count = 0;
  assay_error error = {""};
  image img = {0};
  outputs got = {{NULL}};
  (void)base;
  bool good = pair != NULL && outputs_make(t, &got);
  for (int64_t i = 0; i < l->B && good; ++i)
    count += find_pair(t, parent, i, &pair[count]);
  if (good && count > 0) {
    exchange(t, pair, count);
    good = image_vary(&t->first, &t->first.chosen, NULL, &img, &error) == ASSAY_OK;
    exchange(t, pair, count);
  }
  if (!good) (void)verdict_no_memory(result);
  if (good && count > 0) {
    good = device_run(t, &img, t->one->seed, &got, result);
    if (good) exchange_results(t, pair, count, &got);
    good = good && rerun_within(t, &got, "siblings", "with two leaves of a parent exchanged in each tree", result);
    if (good) result_add_law(result, "siblings");
  }
  image_free(&img);
  outputs_free(&got);
  free(pair);
  return good;
}
