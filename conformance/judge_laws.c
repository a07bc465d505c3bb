/* judge_laws.c: laws that need a run of their own each: which of them a case is asked, from its seed alone (so that a
 * shrunk case is asked the same), and what they share. */
#include "generate_logical.h"
#include "judge_parts.h"

enum { STREAM_LAWS = 0x6741 };

/* One case in so many. On simt a run is most of a case's time; these keep all of them together below a tenth of it. */
enum {
  SHARE_PAGES = 4,
  SHARE_GRAPH = 8,
  SHARE_WORKSPACE = 8,
  SHARE_STREAMS = 8,
  SHARE_BUSY = 8,
  SHARE_ALONE = 2,
  SHARE_IN_PLACE = 4,
  SHARE_PARTS = 2,
  SHARE_FAR = 8,
  SHARE_CONTIGUOUS = 2,
  FAR_PAD = 4096 /* all cases whose rows are so far apart */
};

static bool is_asked(const trial *t, uint64_t law, uint64_t share) {
  return logical_hash(t->one, STREAM_LAWS + (law << 16)) % share == 0;
}

bool laws_launch(const trial *t, device_call *on, uint64_t schedule, const char *step, case_result *result) {
  assay_error error = {""};
  t->device->schedule(schedule);
  return device_status(t->variant->launch(&on->call, &on->env, &error), step, false, &error, result);
}

bool laws_further(const trial *t, const outputs *plain, case_result *result) {
  const assay_device *device = t->device;
  const bool workspace = t->workspace_bytes > 0;
  const bool pages = device->alloc_guarded != NULL, graph = device->graph_capture_begin != NULL;
  const bool streams = device->side_stream != NULL;
  if (t->first.contiguous && is_asked(t, 7, SHARE_CONTIGUOUS) && !contiguous_check(t, plain, result)) return false;
  if (pages && is_asked(t, 0, SHARE_PAGES) && !pages_check(t, plain, result)) return false;
  if (graph && is_asked(t, 1, SHARE_GRAPH) && !graph_check(t, plain, result)) return false;
  if (workspace && is_asked(t, 2, SHARE_WORKSPACE) && !workspace_check(t, plain, result)) return false;
  if (is_asked(t, 5, SHARE_ALONE) && !alone_check(t, plain, result)) return false;
  if ((is_asked(t, 6, SHARE_FAR) || t->one->q_pad >= FAR_PAD) && !far_check(t, plain, result)) return false;
  if (is_asked(t, 7, SHARE_IN_PLACE) && !in_place_check(t, plain, result)) return false;
  if (is_asked(t, 8, SHARE_PARTS) && !parts_check(t, plain, result)) return false;
  if (streams && is_asked(t, 3, SHARE_STREAMS) && !streams_check(t, plain, result)) return false;
  return !(streams && is_asked(t, 4, SHARE_BUSY)) || busy_check(t, plain, result);
}
