/* counts.c: the first failure of a pass, and the calls that it made by variant and path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/models/pass.h"

void pass_fail(pass *m, assay_status status) {
  if (m->status == ASSAY_OK) m->status = status;
}

void pass_count_call(pass *m, const assay_variant *variant, const char *path) {
  pass_counts *c = &m->counts;
  int32_t i = 0;
  while (i < c->count && (c->row[i].variant != variant || strcmp(c->row[i].path, path) != 0))
    ++i;
  if (i == c->count) {
    if (c->count == c->capacity) {
      const int32_t capacity = c->capacity > 0 ? 2 * c->capacity : 64;
      pass_count *grown = realloc(c->row, (size_t)capacity * sizeof *grown);
      if (grown == NULL) {
        pass_fail(m, assay_fail(m->error, ASSAY_ERR_MEMORY, "session: no memory to count calls"));
        return;
      }
      c->row = grown;
      c->capacity = capacity;
    }
    c->row[c->count] = (pass_count){.variant = variant};
    (void)snprintf(c->row[c->count++].path, sizeof c->row->path, "%s", path);
  }
  ++c->row[i].calls;
  c->row[i].layer = m->layer;
  (void)snprintf(c->row[i].stage, sizeof c->row->stage, "%s", m->stage);
}

bool pass_path(const pass *m, int32_t index, assay_model_path *path) {
  if (index < 0 || index >= m->counts.count) return false;
  const pass_count *c = &m->counts.row[index];
  *path = (assay_model_path){.op = c->variant->op,
                             .variant = c->variant->name,
                             .path = c->path,
                             .stage = c->stage,
                             .layer = c->layer,
                             .calls = c->calls};
  return true;
}
