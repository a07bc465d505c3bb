/* workspace.c: the law `workspace`: the contents that another call left in the workspace do not show in the result. */
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

bool workspace_applies(const trial *t) {
  return t->workspace_bytes > 0;
}

/* Makes every request as long as its row of the table can name, or as its rows allow, over finite numbers. The call
 * then uses all of the workspace. */
static void lengthen(image *img) {
  const assay_op *op = img->call.op;
  int64_t longest = INT32_MAX;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == ASSAY_BLOCK_TABLE && img->arg[i].data != NULL)
      longest = img->arg[i].shape[1] * img->logical->block_size;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (op->args[i].content != ASSAY_KV_LEN || img->arg[i].data == NULL) continue;
    int32_t *length = (int32_t *)(void *)(img->host + img->extent[i].offset);
    for (int64_t b = 0; b < img->arg[i].shape[0]; ++b)
      length[b] = img->contiguous       ? img->first_row[b + 1] - img->first_row[b]
                  : longest < INT32_MAX ? (int32_t)longest
                                        : length[b];
  }
}

bool workspace_check(const trial *t, const outputs *base, case_result *result) {
  /* Without lengths, rows in another order leave other contents. */
  const bool rows = trial_rows_move(t);
  const draw choice = {.dead = DEAD_STALE, .placement = 2, .order = rows ? 5 : 0, .poison = t->first.chosen.poison};
  const assay_device *device = t->device;
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call on;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)verdict_no_memory(result);
    goto done;
  }
  lengthen(&other);
  good = device_place(t, &t->first, 0, &on, result) && device_upload(t, &other, &on, result) &&
         device_launch(t, &on, t->one->seed, "launch with other lengths", result) &&
         device_status(device->synchronize(&error), "after a launch with other lengths", true, &error, result);
  /* The arena anew, the workspace as it is. */
  good = good && device_upload_arena(t, &t->first, &on, result) &&
         device_launch(t, &on, t->one->seed + 1, "launch", result) &&
         device_collect(t, &t->first, false, &on, &after, result);
  if (!good) goto done;
  outputs_gather(t, &t->first, after, &got);
  good = rerun_same(t, base, &got, "workspace", "with the workspace as a call with other lengths left it", result);
  if (good) result_add_law(result, "workspace");
done:
  image_free(&other);
  outputs_free(&got);
  return good;
}
