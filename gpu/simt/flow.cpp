/* flow.cpp: lanes of work. Work that is put into a lane runs at once or, if the lane lags, as late as the order allows.
 * Code that forgets to wait for a mark then gets the bytes of another step, every time. */
#include <stdlib.h>

#include <assay/device.h>

#include "simt/scheduler.h"

namespace assay_simt_host {

enum Kind { REPLAY, COPY, MARK, AFTER };

struct Item {
  Kind kind;
  void *to; /* COPY; REPLAY: the graph */
  const void *from;
  int64_t bytes;
  int32_t number; /* MARK, AFTER */
  int64_t place;  /* how often the mark had been set */
  Item *next;
};

struct Queue {
  Item *first, *last;
  bool busy; /* its first item is running */
};

struct Mark {
  assay_lane lane;
  int64_t set, reached;
};

static Queue queue[ASSAY_LANES];
static Mark marks[ASSAY_MARKS];
static uint32_t lagging; /* one bit per lane */
assay_device_waits waits;

static assay_status run_to(int32_t number, int64_t place, assay_error *error);

static assay_status run_item(const Item *item, assay_error *error) {
  switch (item->kind) {
  case REPLAY:
    return graph_replay(item->to, error);
  case COPY:
    memcpy(item->to, item->from, static_cast<size_t>(item->bytes));
    return ASSAY_OK;
  case MARK:
    marks[item->number].reached = item->place;
    return ASSAY_OK;
  case AFTER:
    return run_to(item->number, item->place, error);
  }
  return ASSAY_OK;
}

/* Runs the first item of the lane, after everything for which it waits. */
static assay_status run_first(assay_lane lane, assay_error *error) {
  Queue *const q = &queue[lane];
  if (q->busy) return assay_fail(error, ASSAY_ERR_INTERNAL, "simt: lanes wait for each other");
  Item *const item = q->first;
  q->busy = true;
  const assay_status status = run_item(item, error);
  q->busy = false;
  q->first = item->next;
  if (q->first == nullptr) q->last = nullptr;
  free(item);
  return status;
}

static assay_status run_all(assay_lane lane, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (queue[lane].first != nullptr && status == ASSAY_OK)
    status = run_first(lane, error);
  return status;
}

static assay_status run_to(int32_t number, int64_t place, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (marks[number].reached < place && queue[marks[number].lane].first != nullptr && status == ASSAY_OK)
    status = run_first(marks[number].lane, error);
  return status;
}

assay_status flow_drain_own(assay_error *error) {
  return queue[ASSAY_LANE_OWN].busy ? ASSAY_OK : run_all(ASSAY_LANE_OWN, error);
}

assay_status flow_drain(assay_error *error) {
  assay_status status = flow_drain_own(error);
  for (int lane = ASSAY_LANE_UP; lane < ASSAY_LANES && status == ASSAY_OK; ++lane)
    if (!queue[lane].busy) status = run_all(static_cast<assay_lane>(lane), error);
  return status;
}

static assay_status put(assay_lane lane, const Item &what, assay_error *error) {
  Item *const item = static_cast<Item *>(malloc(sizeof *item));
  if (item == nullptr) return assay_fail(error, ASSAY_ERR_MEMORY, "simt: no memory for a lane's item");
  *item = what;
  Queue *const q = &queue[lane];
  if (q->first == nullptr)
    q->first = item;
  else
    q->last->next = item;
  q->last = item;
  return (lagging >> lane & 1u) != 0 ? ASSAY_OK : run_all(lane, error);
}

static assay_status flow_replay(void *graph, assay_error *error) {
  return put(ASSAY_LANE_OWN, Item{REPLAY, graph, nullptr, 0, 0, 0, nullptr}, error);
}

static assay_status flow_copy(assay_lane lane, void *to, const void *from, int64_t bytes, assay_error *error) {
  return bytes > 0 ? put(lane, Item{COPY, to, from, bytes, 0, 0, nullptr}, error) : ASSAY_OK;
}

static assay_status flow_mark(assay_lane lane, int32_t number, assay_error *error) {
  marks[number].lane = lane;
  return put(lane, Item{MARK, nullptr, nullptr, 0, number, ++marks[number].set, nullptr}, error);
}

static assay_status flow_after(assay_lane lane, int32_t number, assay_error *error) {
  return put(lane, Item{AFTER, nullptr, nullptr, 0, number, marks[number].set, nullptr}, error);
}

static assay_status flow_reached(int32_t number, bool wait, bool *reached, assay_error *error) {
  if (wait && marks[number].reached < marks[number].set) ++waits.marks;
  const assay_status status = wait ? run_to(number, marks[number].set, error) : ASSAY_OK;
  *reached = marks[number].reached >= marks[number].set;
  return status;
}

static void flow_lag(uint32_t lanes) {
  (void)flow_drain(nullptr);
  lagging = lanes;
}

static void flow_waits(assay_device_waits *count) {
  *count = waits;
}

const assay_device_flow flow = {flow_replay, flow_copy, flow_mark, flow_after, flow_reached, flow_lag, flow_waits};

} /* namespace assay_simt_host */
