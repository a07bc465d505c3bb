/* slots.c: the law `slots`: the numbers of slots do not show. The states of a pool move round by some places, and every
 * request's slot with them. The results are the same, and so are the states, moved back. */
#include <string.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/dtype.h"
#include "laws_internal.h"

static int32_t arg_of(const trial *t, const char *name) {
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (strcmp(t->one->op->args[i].name, name) == 0) return i;
  return -1;
}

/* Returns the number of the output that is this argument, or -1. */
static int32_t output_of(const trial *t, int32_t arg) {
  for (int32_t o = 0; o < t->count; ++o)
    if (t->output[o].arg == arg) return o;
  return -1;
}

static int64_t slots_in(const trial *t) {
  const int32_t state = arg_of(t, "state");
  return state >= 0 ? t->first.arg[state].shape[0] : 0;
}

bool slots_applies(const trial *t) {
  return trial_has_law(t, "slots") && arg_of(t, "slots") >= 0 && slots_in(t) > 1;
}

/* Gives slot s the number s - shift, counted around. */
static void renumber(const trial *t, image *img, int64_t shift) {
  const int32_t slots = arg_of(t, "slots");
  const int64_t S = slots_in(t), B = img->arg[slots].shape[0];
  int32_t *slot = (int32_t *)(void *)(img->host + img->extent[slots].offset + img->bias[slots]);
  for (int64_t i = 0; i < B; ++i)
    if (slot[i] >= 0) slot[i] = (int32_t)((slot[i] - shift + S) % S);
}

/* Moves the states back to where the case has them. */
static void move_back(const trial *t, int32_t state, int64_t shift, const outputs *got, outputs *back) {
  const trial_output *out = &t->output[state];
  const int64_t S = slots_in(t), elements = out->rows * out->width;
  const int64_t bytes = elements / S * assay_dtype_size(out->dtype);
  for (int64_t s = 0; s < S; ++s)
    memcpy(back->bits[state] + (s + shift) % S * bytes, got->bits[state] + s * bytes, (size_t)bytes);
}

bool slots_check(const trial *t, const outputs *base, case_result *result) {
  const int32_t state = output_of(t, arg_of(t, "state"));
  const int64_t S = slots_in(t), shift = 1 + (int64_t)(logical_hash(t->one, STREAM_SLOTS) % (uint64_t)(S - 1));
  const trial_output *pool = &t->output[state];
  assay_error error = {""};
  image img = {0};
  outputs got = {{NULL}}, back = {{NULL}};
  bool good = outputs_make(t, &got) && outputs_make(t, &back) &&
              image_vary(&t->first, &t->first.chosen, NULL, &img, &error) == ASSAY_OK;
  if (!good) (void)verdict_no_memory(result);
  if (good) {
    renumber(t, &img, shift);
    outputs_scatter(t, &img, state, t->initial.bits[state], shift * (pool->rows / S));
    good = device_run(t, &img, t->one->seed, &got, result);
  }
  for (int32_t o = 0; o < t->count && good; ++o)
    if (o != state)
      memcpy(back.bits[o], got.bits[o],
             (size_t)(t->output[o].rows * t->output[o].width * assay_dtype_size(t->output[o].dtype)));
  if (good) {
    move_back(t, state, shift, &got, &back);
    good = t->variant->contract.renumbering
               ? rerun_same(t, base, &back, "slots", "with the states in other slots", result)
               : rerun_within(t, &back, "slots", "with the states in other slots", result);
  }
  if (good) result_add_law(result, "slots");
  image_free(&img);
  outputs_free(&got);
  outputs_free(&back);
  return good;
}
