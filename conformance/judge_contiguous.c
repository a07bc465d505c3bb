/* judge_contiguous.c: the law `contiguous`: a call whose keys are contiguous once more with the same values behind a
 * block table. Where the variant does the same (its path says so but for the form) and promises that block numbers do
 * not show, the same bits; else within the tier's limits. */
#include "judge_parts.h"

/* The length of a path without the word for the form of K and V. */
static size_t plan_of(const char *path) {
  static const char *const forms[] = {" contiguous", " paged"};
  const size_t length = strlen(path);
  for (int i = 0; i < 2; ++i) {
    const size_t size = strlen(forms[i]);
    if (length > size && strcmp(path + length - size, forms[i]) == 0) return length - size;
  }
  return 0;
}

static bool same_plan(const char *a, const char *b) {
  const size_t length = plan_of(a);
  return length > 0 && length == plan_of(b) && memcmp(a, b, length) == 0;
}

/* False with an empty verdict: the variant does not take such a call. */
static bool prepare(trial *paged, const image *img, case_result *result) {
  assay_error error = {""};
  device_call on;
  return device_place(paged, img, 0, &on, result) && paged->variant->supports(&on.call, &error) == ASSAY_OK &&
         paged->variant->workspace(&on.call, &paged->workspace_bytes, &error) == ASSAY_OK &&
         paged->workspace_bytes >= 0;
}

bool contiguous_check(const trial *t, const outputs *plain, case_result *result) {
  static const char changed[] = "with the same keys and values behind a block table";
  draw choice = t->first.chosen;
  trial paged = *t; /* shares all but the size of the workspace */
  char path[sizeof result->path];
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  finding found;
  choice.paged = true;
  memcpy(path, result->path, sizeof path);
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
  } else if (prepare(&paged, &other, result)) {
    good = device_run(&paged, &other, t->one->seed, &got, result);
    if (good && t->variant->contract.renumbering && same_plan(path, result->path)) {
      good = judge_same(t, plain, &got, "contiguous", changed, result);
    } else if (good) {
      values_judge(t, &got, &found);
      if (found.wrong) judge_verdict(result, VERDICT_FAIL, "contiguous", "%s; %s", found.message, changed);
      good = !found.wrong;
    }
    if (good) judge_add_law(result, "contiguous");
  } else {
    good = result->verdict == VERDICT_PASS;
  }
  image_free(&other);
  outputs_free(&got);
  return good;
}
