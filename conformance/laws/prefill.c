/* prefill.c: a run whose outputs and workspace hold something else than NaN before the call. */
#include "prefill.h"

#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "core/dtype.h"

/* Tells whether nothing of the output's old contents may show. It is written alone, or the generator has made all of it
 * NaN. The generator does that where the definition leaves the old contents unread. */
static bool is_fresh(const trial *t, int32_t o) {
  const trial_output *out = &t->output[o];
  if (!out->inout) return true;
  bool unread = out->kind != OUTPUT_CACHE && out->dtype != ASSAY_I32 && out->dtype != ASSAY_I64;
  for (int64_t i = 0; unread && i < out->rows * out->width; ++i)
    unread = assay_is_nan(assay_load_f64(t->initial.bits[o], out->dtype, i));
  return unread;
}

bool prefill_applies(const trial *t) {
  for (int32_t o = 0; o < t->count; ++o)
    if (is_fresh(t, o)) return true;
  return false;
}

/* Fills the workspace of a call that has been uploaded. */
static bool fill_workspace(const trial *t, const outputs *base, prefill_bytes fill, image *img, const device_call *on,
                           case_result *result) {
  assay_error error = {""};
  if (t->workspace_bytes == 0) return true;
  unsigned char *bytes = malloc((size_t)t->workspace_bytes);
  if (bytes == NULL) return verdict_no_memory(result);
  fill(t, base, img, -1, bytes, t->workspace_bytes);
  assay_status status = t->device->upload(on->env.workspace, bytes, t->workspace_bytes, &error);
  if (status == ASSAY_OK) status = t->device->synchronize(&error);
  free(bytes);
  return device_status(status, "upload", true, &error, result);
}

bool prefill_check(const trial *t, const outputs *base, prefill_bytes fill, const char *law, const char *when,
                   case_result *result) {
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call on;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &t->first.chosen, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
    goto done;
  }
  for (int32_t o = 0; o < t->count; ++o) {
    const span s = other.extent[t->output[o].arg];
    if (is_fresh(t, o)) fill(t, base, &other, o, other.host + s.offset, s.bytes);
  }
  good = device_place(t, &other, 0, &on, result) && device_upload(t, &other, &on, result) &&
         fill_workspace(t, base, fill, &other, &on, result) && device_launch(t, &on, t->one->seed, "launch", result) &&
         device_collect(t, &other, false, &on, &after, result);
  if (!good) goto done;
  outputs_gather(t, &other, after, &got);
  good = rerun_same(t, base, &got, law, when, result);
  if (good) result_add_law(result, law);
done:
  image_free(&other);
  outputs_free(&got);
  return good;
}
