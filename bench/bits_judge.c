/* bits_judge.c: holds the predictor of tensor-core sums against all products in a folder: `bits_judge [DIR]`, with the
 * files of fixtures/bits/README.md (the usual folder). Prints a line per product: elements, how many have other bits
 * than the card's, nanoseconds per product and core. Status 1 if one differs or costs more than 30 ns. */
#include <stdio.h>
#include <string.h>

#include "bits_fixture.h"

enum { MOST_NANOSECONDS = 30 };

static int64_t differ, elements;
static bool fast = true;

static void print(const bits_result *result, const char *what) {
  const double cost = result->products > 0 ? 1e9 * result->seconds / (double)result->products : 0;
  printf("%-36s %7lld %s, %lld differ, %.1f ns a product\n", result->name, (long long)result->elements, what,
         (long long)result->differ, cost);
  differ += result->differ;
  elements += result->elements;
  fast = fast && cost <= MOST_NANOSECONDS;
}

int main(int argc, char **argv) {
  const char *const folder = argc > 1 ? argv[1] : ASSAY_SOURCE_DIR "/fixtures/bits";
  bits_result result[BITS_PRODUCTS];
  assay_error error = {.text = ""};
  const int32_t count = bits_compare(folder, NULL, result, &error);
  if (count < 0) {
    (void)fprintf(stderr, "bits_judge: %s\n", error.text);
    return 2;
  }
  for (int32_t i = 0; i < count; ++i)
    print(&result[i], "elements");
  printf("%d products, %lld elements, %lld differ, at most %d ns a product: %s\n", count, (long long)elements,
         (long long)differ, (int)MOST_NANOSECONDS, fast ? "yes" : "no");
  return count > 0 && differ == 0 && fast ? 0 : 1;
}
