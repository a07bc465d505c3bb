/* sums_steps.c: predicts single steps for bench/mmasim_judge.py: `sums_steps UNIT TYPE_A TYPE_B K OUTPUT <STEPS >SUMS`.
 * A step of STEPS is K codes of a, K codes of b and an f32 that the sum starts from, without any padding. SUMS has a
 * sum per step, of the type OUTPUT. Types are named as in a case. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "assay/sums.h"
#include "core/dtype.h"

enum { MOST_K = 64, MOST_BYTES = 4 };

static int refuse(const char *what, const char *found) {
  (void)fprintf(stderr, "sums_steps: %s: found '%s'; usage: sums_steps UNIT TYPE_A TYPE_B K OUTPUT\n", what, found);
  return 2;
}

static assay_sum_unit unit_named(const char *name) {
  int unit = ASSAY_SUM_NONE + 1;
  while (unit < ASSAY_SUM_UNITS && strcmp(assay_sum_unit_name((assay_sum_unit)unit), name) != 0)
    ++unit;
  return unit < ASSAY_SUM_UNITS ? (assay_sum_unit)unit : ASSAY_SUM_NONE;
}

static assay_dtype type_named(const char *name) {
  static const assay_dtype types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16, ASSAY_E4M3, ASSAY_E5M2};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (strcmp(assay_dtype_name(types[i]), name) == 0) return types[i];
  return ASSAY_NONE;
}

int main(int argc, char **argv) {
  if (argc != 6) return refuse("arguments", argc > 1 ? argv[argc - 1] : "none");
  const assay_sums sums = {.unit = unit_named(argv[1]), .output = type_named(argv[5])};
  const assay_dtype type_a = type_named(argv[2]), type_b = type_named(argv[3]);
  const int64_t K = strtoll(argv[4], NULL, 10);
  if (sums.unit == ASSAY_SUM_NONE) return refuse("UNIT", argv[1]);
  if (type_a == ASSAY_NONE) return refuse("TYPE_A", argv[2]);
  if (type_b == ASSAY_NONE) return refuse("TYPE_B", argv[3]);
  if (K < 1 || K > MOST_K) return refuse("K", argv[4]);
  if (sums.output == ASSAY_NONE) return refuse("OUTPUT", argv[5]);
  unsigned char a[MOST_K * MOST_BYTES], b[MOST_K * MOST_BYTES], sum[MOST_BYTES];
  float start = 0;
  const assay_product product = {
      .a = {.data = a, .dtype = type_a, .rank = 2, .shape = {1, K}, .stride = {K, 1}},
      .b = {.data = b, .dtype = type_b, .rank = 2, .shape = {1, K}, .stride = {K, 1}},
      .start = {.data = &start, .dtype = ASSAY_F32, .rank = 2, .shape = {1, 1}, .stride = {1, 1}}};
  const size_t bytes_a = (size_t)(K * assay_dtype_size(type_a)), bytes_b = (size_t)(K * assay_dtype_size(type_b));
  const size_t out = (size_t)assay_dtype_size(sums.output);
  while (fread(a, 1, bytes_a, stdin) == bytes_a) {
    assay_error error = {""};
    if (fread(b, 1, bytes_b, stdin) != bytes_b || fread(&start, 1, sizeof start, stdin) != sizeof start)
      return refuse("STEPS", "a step that is not whole");
    if (assay_sums_predict(&sums, &product, sum, &error) != ASSAY_OK) {
      (void)fprintf(stderr, "sums_steps: %s\n", error.text);
      return 2;
    }
    if (fwrite(sum, 1, out, stdout) != out) return refuse("SUMS", "a full disk or a closed pipe");
  }
  return fflush(stdout) == 0 ? 0 : refuse("SUMS", "a full disk or a closed pipe");
}
