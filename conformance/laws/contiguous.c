/* contiguous.c: the law `contiguous`: repeats a call with contiguous keys with the same values after adding a block
 * table. The result has the same bits if the variant did the same work and promises that block numbers do not show. It
 * did the same work if its path differs only in the word for the form. Otherwise the result is within the tier's
 * limits. */
#include "conformance/trial/trial.h"
#include "laws_internal.h"

/* Returns the length of a path without the word for the form of K and V. */
static size_t plan_of(const char *path) {
  static const char *const words[] = {" contiguous", " paged"};
  const size_t length = strlen(path);
  for (int i = 0; i < 2; ++i) {
    const size_t size = strlen(words[i]);
    if (length > size && strcmp(path + length - size, words[i]) == 0) return length - size;
  }
  return 0;
}

static bool same_plan(const char *a, const char *b) {
  const size_t length = plan_of(a);
  return length > 0 && length == plan_of(b) && memcmp(a, b, length) == 0;
}

bool contiguous_applies(const trial *t) {
  return t->first.contiguous;
}

bool contiguous_check(const trial *t, const outputs *base, case_result *result) {
  static const char changed[] = "with the same keys and values behind a block table";
  draw choice = t->first.chosen;
  trial paged = *t; /* shares all but the size of the workspace */
  char path[sizeof result->path];
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  choice.paged = true;
  memcpy(path, result->path, sizeof path);
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
  } else if (trial_takes(&paged, &other, result)) {
    good = device_run(&paged, &other, t->one->seed, &got, result);
    if (good && t->variant->contract.renumbering && same_plan(path, result->path)) {
      good = rerun_same(t, base, &got, "contiguous", changed, result);
    } else if (good) {
      good = rerun_within(t, &got, "contiguous", changed, result);
    }
    if (good) result_add_law(result, "contiguous");
  } else {
    good = result->verdict == VERDICT_PASS;
  }
  image_free(&other);
  outputs_free(&got);
  return good;
}
