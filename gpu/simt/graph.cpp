/* graph.cpp: launches that are recorded with their arguments and run later in their order. */
#include <stdlib.h>

#include <assay/device.h>

#include "simt/scheduler.h"

namespace assay_simt_host {

struct Recorded {
  assay_simt_launch request;
  void *closure; /* owned */
  Recorded *next;
};

struct Graph {
  Recorded *first, **end;
};

static Graph *recording; /* NULL: launches run at once */

bool graph_recording() {
  return recording != nullptr;
}

assay_status graph_record(const assay_simt_launch *request, assay_error *error) {
  Recorded *made = static_cast<Recorded *>(malloc(sizeof *made));
  void *closure = malloc(static_cast<size_t>(request->closure_bytes > 0 ? request->closure_bytes : 1));
  if (made == nullptr || closure == nullptr) {
    free(made);
    free(closure);
    return assay_fail(error, ASSAY_ERR_MEMORY, "simt: no memory to record a launch of %s", request->name);
  }
  memcpy(closure, request->closure, static_cast<size_t>(request->closure_bytes));
  *made = Recorded{*request, closure, nullptr};
  made->request.closure = closure;
  *recording->end = made;
  recording->end = &made->next;
  return ASSAY_OK;
}

assay_status graph_capture_begin(void **stream, assay_error *error) {
  *stream = nullptr;
  if (recording != nullptr) return assay_fail(error, ASSAY_ERR_INTERNAL, "simt: a capture within a capture");
  const assay_status status = launch_flush(error);
  if (status != ASSAY_OK) return status;
  recording = static_cast<Graph *>(malloc(sizeof *recording));
  if (recording == nullptr) return assay_fail(error, ASSAY_ERR_MEMORY, "simt: no memory for a graph");
  recording->first = nullptr;
  recording->end = &recording->first;
  return ASSAY_OK;
}

assay_status graph_capture_end(void **graph, assay_error *error) {
  *graph = recording;
  recording = nullptr;
  return *graph != nullptr ? ASSAY_OK : assay_fail(error, ASSAY_ERR_INTERNAL, "simt: the end of no capture");
}

assay_status graph_replay(void *graph, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (const Recorded *at = static_cast<Graph *>(graph)->first; at != nullptr && status == ASSAY_OK; at = at->next)
    status = assay_simt_host_api()->launch(&at->request, error);
  return status;
}

void graph_release(void *graph) {
  Graph *const all = static_cast<Graph *>(graph);
  if (all == nullptr) return;
  for (Recorded *at = all->first; at != nullptr;) {
    Recorded *const next = at->next;
    free(at->closure);
    free(at);
    at = next;
  }
  free(all);
}

} /* namespace assay_simt_host */
