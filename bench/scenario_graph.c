/* scenario_graph.c: the time of a decode step's graph by operator: what its replay loses without the calls of one. */
#include "scenario.h"

assay_status scenario_graph(assay_engine *engine, scenario_result *result, assay_error *error) {
  double whole = 0, sum = 0;
  int32_t there = 0;
  assay_status status = ASSAY_OK;
  if (assay_engine_device(engine)->timing == NULL) return ASSAY_OK;
  for (int32_t i = 0; i < result->parts && status == ASSAY_OK; ++i) {
    scenario_part *part = &result->part[i];
    assay_engine_graph_time time;
    status = assay_engine_time_without(engine, part->op, part->variant, &time, error);
    if (status != ASSAY_OK || time.calls == 0) continue;
    part->graph_calls = time.calls;
    part->graph_us = time.whole_us - time.without_us;
    sum += part->graph_us;
    whole += time.whole_us;
    ++there;
  }
  if (status != ASSAY_OK || there == 0) return status;
  result->graph_us = whole / there;
  result->graph_rest_us = result->graph_us - sum;
  return ASSAY_OK;
}
