/* neutral.c: the law `neutral`: arguments that say nothing do not show. A sink of -inf for every head gives the bits of
 * the call without sinks. Trees that are chains, and masks of the keys up to the row's own, do the same. */
#include <math.h>

#include "core/dtype.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

/* Returns an argument by name, or -1 where the case does not give it. */
static int32_t given(const trial *t, const char *name) {
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (strcmp(t->one->op->args[i].name, name) == 0 && t->first.arg[i].data != NULL) return i;
  return -1;
}

/* With a window or a chunk, the tiles of a tree may begin at another key than those of rows in turn. */
bool neutral_applies(const trial *t) {
  const bool masked = logical_param(t->one, "window", 0) > 0 || logical_param(t->one, "chunk", 0) > 0;
  return trial_has_law(t, "neutral") && t->variant->contract.run_to_run &&
         (given(t, "parent") >= 0 ? !masked : given(t, "sink") >= 0 || given(t, "mask") >= 0);
}

/* Makes the mask causal, where the case gives one. */
static void make_causal(image *img, int32_t mask) {
  const logical *l = img->logical;
  unsigned char *to = mask >= 0 ? img->host + img->extent[mask].offset : NULL;
  for (int64_t slot = 0; slot < l->B && to != NULL; ++slot) {
    const int64_t request = img->request_of_slot[slot], L = l->length[request], P = L - l->fresh[request];
    for (int64_t bit = 0; bit < L * l->fresh[request]; ++bit) {
      const unsigned char one = (unsigned char)(1 << bit % 8);
      if (bit % L <= P + bit / L)
        to[bit / 8] |= one;
      else
        to[bit / 8] &= (unsigned char)~one;
    }
    to += logical_mask_bytes(l, request) + place_mask_spare(l, request);
  }
}

/* Makes the arguments say nothing: sinks of -inf, every row the child of the row before it. */
static void say_nothing(image *img, int32_t sink, int32_t parent) {
  for (int64_t h = 0; sink >= 0 && h < img->arg[sink].shape[0]; ++h)
    assay_store_f64(img->host + img->extent[sink].offset, img->arg[sink].dtype, h, -(double)INFINITY);
  for (int64_t row = 0; parent >= 0 && row < img->rows; ++row)
    ((int32_t *)(void *)(img->host + img->extent[parent].offset))[row] = (int32_t)img->position_of_row[row] - 1;
}

/* Runs the case with such arguments, or without them. Returns false with the verdict set if nothing came of it; `taken`
 * tells whether the variant takes the call. */
static bool run_neutral(const trial *t, bool with, outputs *got, bool *taken, case_result *result) {
  const int32_t sink = given(t, "sink"), parent = given(t, "parent"), mask = given(t, "mask");
  trial other = *t; /* shares all but the size of the workspace */
  assay_error error = {""};
  image img = {0};
  if (image_vary(&t->first, &t->first.chosen, NULL, &img, &error) != ASSAY_OK) return verdict_no_memory(result);
  say_nothing(&img, sink, parent);
  make_causal(&img, mask);
  if (!with && sink >= 0) img.arg[sink].data = NULL;
  if (!with && parent >= 0) img.arg[parent].data = NULL;
  if (!with && mask >= 0) img.arg[mask].data = img.arg[given(t, "mask_ptr")].data = NULL;
  *taken = trial_takes(&other, &img, result);
  bool good = result->verdict == VERDICT_PASS;
  if (*taken) good = device_run(&other, &img, t->one->seed, got, result);
  image_free(&img);
  return good;
}

bool neutral_check(const trial *t, const outputs *base, case_result *result) {
  outputs with = {{NULL}}, without = {{NULL}};
  bool taken = false, good = outputs_make(t, &with) && outputs_make(t, &without);
  (void)base; /* the case says something */
  if (!good) (void)verdict_no_memory(result);
  good = good && run_neutral(t, false, &without, &taken, result);
  if (good && taken) good = run_neutral(t, true, &with, &taken, result);
  if (good && taken) {
    for (int32_t o = 0; o < t->count && good; ++o)
      good = rerun_same_output(t, o, without.bits[o], with.bits[o], "neutral",
                               "with sinks of -inf, trees that are chains, masks that are causal", result);
    if (good) result_add_law(result, "neutral");
  }
  outputs_free(&with);
  outputs_free(&without);
  return good;
}
