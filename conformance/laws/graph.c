/* graph.c: the law `graph`: a captured launch, when replayed, gives the bits of the direct call. Lengths, tables and
 * contents differ at the capture; at the replay they are the case's own. A launcher that looks at contents, waits,
 * allocates or uses another stream than its own cannot keep this law. */
#include "conformance/trial/trial.h"
#include "core/registry.h"
#include "laws_internal.h"

/* Makes an image of the same shapes with other numbers in every argument that a launcher may not look at. Lengths are
 * halved, blocks reordered, the requests' rows reversed; the rest is NaN. */
static bool make_other(const trial *t, image *other) {
  const image *own = &t->first;
  const assay_op *op = own->call.op;
  *other = *own;
  other->host = image_take(own->arena_bytes, &other->spare_bytes);
  if (other->host == NULL) return false;
  memcpy(other->host, own->host, (size_t)own->arena_bytes);
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (own->arg[i].data == NULL) continue;
    unsigned char *bytes = other->host + own->extent[i].offset;
    int32_t *number = (int32_t *)(void *)bytes;
    const int64_t count = own->extent[i].bytes / (int64_t)sizeof *number;
    if (op->args[i].content == ASSAY_KV_LEN) {
      for (int64_t b = 0; b < count; ++b)
        number[b] /= 2;
    } else if (op->args[i].content == ASSAY_CU_Q) { /* the requests' numbers of rows in reverse order */
      const int32_t total = number[count - 1];
      for (int64_t b = 0; b < count / 2; ++b) {
        const int32_t kept = number[b];
        number[b] = total - number[count - 1 - b];
        number[count - 1 - b] = total - kept;
      }
      if (count % 2 != 0) number[count / 2] = total - number[count / 2];
    } else if (op->args[i].content == ASSAY_BLOCK_TABLE) {
      for (int64_t b = 0; b < count; ++b)
        number[b] = (int32_t)(own->first_block + b % own->pool_blocks);
    } else if (op->args[i].content == ASSAY_CU_K) { /* all requests from one row on */
      for (int64_t b = 0; b < count; ++b)
        number[b] = (int32_t)own->first_block;
    } else {
      poison_fill(bytes, own->extent[i].bytes, 0x31);
    }
  }
  return true;
}

static bool capture(const trial *t, device_call *on, void **graph, case_result *result) {
  assay_error error = {""}, ended = {""};
  *graph = NULL;
  if (!device_status(t->device->graph_capture_begin(&on->env.stream, &error), "graph: begin of a capture", false,
                     &error, result))
    return false;
  const assay_status launched = variant_launch_planned(t->variant, &on->call, &on->env, &error);
  const assay_status end = t->device->graph_capture_end(graph, &ended);
  if (launched != ASSAY_OK || end != ASSAY_OK) {
    if (launched == ASSAY_ERR_MEMORY || end == ASSAY_ERR_MEMORY)
      (void)verdict_no_memory(result);
    else
      verdict_set(
          result, VERDICT_FAIL, "graph",
          "launched into a stream that is being captured: %s (a launcher may not allocate, wait, or use another "
          "stream than env->stream)",
          launched != ASSAY_OK ? error.text : ended.text);
    if (end == ASSAY_OK) t->device->graph_release(*graph);
    *graph = NULL;
    return false;
  }
  return true;
}

bool graph_applies(const trial *t) {
  return t->device->graph_capture_begin != NULL && !assay_plugin_is_direct(t->variant);
}

bool graph_check(const trial *t, const outputs *base, case_result *result) {
  const assay_device *device = t->device;
  assay_error error = {""};
  image other = {0};
  outputs got = {{NULL}};
  device_call on;
  void *graph = NULL;
  const unsigned char *after = NULL;
  bool good = outputs_make(t, &got) && make_other(t, &other);
  if (!good) {
    (void)verdict_no_memory(result);
    goto done;
  }
  good = device_place(t, &t->first, 0, &on, result) && device_upload(t, &other, &on, result) &&
         device_status(device->synchronize(&error), "upload", true, &error, result) && device_plan(t, &on, result) &&
         capture(t, &on, &graph, result);
  if (!good) goto done;
  device->schedule(t->one->seed);
  good = device_upload(t, &t->first, &on, result) && device_plan(t, &on, result) &&
         device_status(device->graph_replay(graph, &error), "graph: replay", false, &error, result) &&
         device_collect(t, &t->first, false, &on, &after, result);
  if (!good) goto done;
  outputs_gather(t, &t->first, after, &got);
  good = rerun_same(t, base, &got, "graph",
                    "when replayed from a graph that was captured with other lengths, tables and contents", result);
  if (good) result_add_law(result, "graph");
done:
  if (graph != NULL) device->graph_release(graph);
  image_give(other.host);
  outputs_free(&got);
  return good;
}
