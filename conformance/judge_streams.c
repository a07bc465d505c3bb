/* judge_streams.c: laws about what else is going on: a workspace as another call left it, two calls at once on two
 * streams, a device that is busy with something else. */
#include "generate_logical.h"
#include "judge_parts.h"

enum { HOLD_US = 40, BUSY_US = 200 };

static bool out_of_memory(case_result *result) {
  judge_verdict(result, VERDICT_FAIL, "launch", "judge: out of memory");
  return false;
}

/* ---- a workspace that another call has used ---------------------------------------------------------- */

/* Every request as long as its row of the table can name, or as its rows allow, over finite numbers: all of the
 * workspace is used. */
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

bool workspace_check(const trial *t, const outputs *plain, case_result *result) {
  /* Without lengths, rows in another order leave something else behind. */
  const bool rows = t->one->op->form == ASSAY_PLAIN && t->one->op->row_dim != NULL;
  const draw choice = {.dead = DEAD_STALE, .placement = 2, .order = rows ? 5 : 0, .poison = t->first.chosen.poison};
  const assay_device *device = t->device;
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call on;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)out_of_memory(result);
    goto done;
  }
  lengthen(&other);
  good = device_place(t, &t->first, 0, &on, result) && device_upload(t, &other, &on, result) &&
         laws_launch(t, &on, t->one->seed, "launch with other lengths", result) &&
         device_status(device->synchronize(&error), "after a launch with other lengths", true, &error, result);
  /* The arena anew, the workspace as it is. */
  good = good && device_upload_arena(t, &t->first, &on, result) &&
         laws_launch(t, &on, t->one->seed + 1, "launch", result) &&
         device_collect(t, &t->first, false, &on, &after, result);
  if (!good) goto done;
  outputs_gather(t, &t->first, after, &got);
  good = judge_same(t, plain, &got, "workspace", "with the workspace as a call with other lengths left it", result);
  if (good) judge_add_law(result, "workspace");
done:
  image_free(&other);
  outputs_free(&got);
  return good;
}

/* ---- two calls at once ------------------------------------------------------------------------------- */

/* Both streams are held until both calls are in them. */
static bool run_both(const trial *t, device_call *one, device_call *two, case_result *result) {
  const assay_device *device = t->device;
  assay_error error = {""};
  assay_status status = device->side_stream(0, &one->env.stream, &error);
  if (status == ASSAY_OK) status = device->side_stream(1, &two->env.stream, &error);
  if (status == ASSAY_OK) status = device->synchronize(&error);
  if (status == ASSAY_OK) status = device->keep_busy(one->env.stream, 1, HOLD_US, &error);
  if (status == ASSAY_OK) status = device->keep_busy(two->env.stream, 1, HOLD_US, &error);
  return device_status(status, "two streams", true, &error, result) && laws_launch(t, one, 1, "launch", result) &&
         laws_launch(t, two, 2, "launch on a second stream", result) &&
         device_status(device->side_synchronize(&error), "after launches on two streams", true, &error, result);
}

bool streams_check(const trial *t, const outputs *plain, case_result *result) {
  /* Another order and other numbers, so that what one call takes from the other shows. */
  const draw choice = {.dead = DEAD_STALE,
                       .placement = t->variant->contract.renumbering ? 3 : 0,
                       .order = t->variant->contract.permutation ? 3 : 0,
                       .poison = (uint8_t)(t->first.chosen.poison ^ 0x0C)};
  static const char changed[] = "when two calls run at once on two streams, each with its own workspace";
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call one, two;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && image_vary(&t->first, &choice, NULL, &other, &error) == ASSAY_OK;
  if (!good) {
    (void)out_of_memory(result);
    goto done;
  }
  good = device_place(t, &t->first, 0, &one, result) && device_upload(t, &t->first, &one, result) &&
         device_place(t, &other, 1, &two, result) && device_upload(t, &other, &two, result) &&
         run_both(t, &one, &two, result) && device_collect(t, &t->first, false, &one, &after, result);
  if (!good) goto done;
  outputs_gather(t, &t->first, after, &got);
  good =
      judge_same(t, plain, &got, "streams", changed, result) && device_collect(t, &other, false, &two, &after, result);
  if (!good) goto done;
  outputs_gather(t, &other, after, &got);
  good = judge_same(t, plain, &got, "streams", changed, result);
  if (good) judge_add_law(result, "streams");
done:
  image_free(&other);
  outputs_free(&got);
  return good;
}

/* ---- a busy device ----------------------------------------------------------------------------------- */

bool busy_check(const trial *t, const outputs *plain, case_result *result) {
  const int32_t blocks = t->facts.multiprocessors > 1 ? t->facts.multiprocessors / 2 : 1;
  assay_error error = {""};
  outputs got;
  bool good = outputs_make(t, &got) || out_of_memory(result);
  good = good &&
         device_status(t->device->keep_busy(NULL, blocks, BUSY_US, &error), "busy stream", false, &error, result) &&
         device_run(t, &t->first, t->one->seed, &got, result) &&
         device_status(t->device->side_synchronize(&error), "busy stream", true, &error, result);
  good = good && judge_same(t, plain, &got, "run_to_run", "when another stream keeps the device busy", result);
  if (good) judge_add_law(result, "busy");
  outputs_free(&got);
  return good;
}
