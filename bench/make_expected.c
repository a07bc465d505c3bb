/* make_expected.c: writes the lines of bench/expected.jsonl: the first tokens of the scenarios' first two requests at
 * the production width, from the reference. Minutes a model: 2,048 tokens, two requests, two modes.
 *
 *   make_expected asynct|qwen3 [first number] >>bench/expected.jsonl */
#include <stdlib.h>
#include <string.h>

#include "expected.h"

static const int64_t length[] = {32, 48, 64, 256, 512, 1024, 2048};
enum { LENGTHS = sizeof length / sizeof length[0], SEED = 1 };

int main(int argc, char **argv) {
  const bool gate = argc > 1 && strcmp(argv[1], "asynct") == 0;
  if (argc < 2 || (!gate && strcmp(argv[1], "qwen3") != 0)) {
    (void)fprintf(stderr, "make_expected: needs a model, allowed: asynct, qwen3\n");
    return 2;
  }
  const int64_t first = argc > 2 ? strtoll(argv[2], NULL, 10) : 0, count = LENGTHS;
  const assay_model_config config = assay_model_production(gate ? ASSAY_ASYNCT : ASSAY_QWEN3);
  assay_model_weights weights;
  assay_error error = {""};
  assay_status status = assay_model_weights_alloc(&config, &weights, &error);
  if (status == ASSAY_OK) status = assay_model_seed(&config, SEED, &weights, &error);
  for (int64_t number = first; number < 2 && status == ASSAY_OK; ++number) {
    static expected made[LENGTHS];
    status = expected_compute(&config, &weights, SEED, number, length, count, made, &error);
    for (int64_t i = 0; i < count && status == ASSAY_OK; ++i)
      expected_write(stdout, &config, SEED, &made[i]);
    (void)fflush(stdout);
  }
  if (status != ASSAY_OK) (void)fprintf(stderr, "make_expected: %s\n", error.text);
  return status == ASSAY_OK ? 0 : 1;
}
