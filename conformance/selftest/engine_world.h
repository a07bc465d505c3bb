/* engine_world.h: the requests of a day, for the tests of engines that compile the engine's sources in. Some begin with
 * blocks of another one's text, and one is a fork. Their texts are compared with those that each gets alone. */
#ifndef ASSAY_CONFORMANCE_SELFTEST_ENGINE_WORLD_H
#define ASSAY_CONFORMANCE_SELFTEST_ENGINE_WORLD_H

#include <stdio.h>
#include <string.h>

#include "assay/engine.h"
#include "assay/model.h"

enum { BLOCK = 8, BATCH = 4, PROMPT = 27, ROOM = 64 };

/* COLD has a text of its own. WARM begins with two blocks of FIRST's text, and THIRD with three. TWIN is FIRST's
 * fork. */
enum { FIRST, COLD, WARM, TWIN, THIRD, ALL };

typedef struct one {
  int32_t text[ROOM]; /* its prompt, then the tokens that came */
  int32_t number;     /* the engine's; -1: not open */
  int64_t prompt, have, opened, hit;
} one;

typedef struct world {
  assay_engine *e;
  int64_t length; /* the longest text */
  one request[ALL];
  assay_engine_part part[BATCH];
  int64_t parts, preempted, returned; /* returned: tokens that requests found again when they came back */
  int order[ALL];                     /* open requests, the oldest first */
  int open, closed_until;             /* no request is opened before this step */
  assay_engine_stats stats;
  assay_status status, books; /* books: of the block manager's check at the end */
  assay_error error;
} world;

/* Keeps the first status that is not OK. */
static inline void note(world *w, assay_status status) {
  if (w->status == ASSAY_OK) w->status = status;
}

/* Begins a day: prompts, and no request open. */
static inline void prompts(world *w, const assay_model_config *config, int64_t length) {
  static const int64_t prompt[ALL] = {25, 11, 21, 0, PROMPT};
  memset(w, 0, sizeof *w);
  w->length = length;
  for (int i = 0; i < ALL; ++i) {
    w->request[i].number = -1;
    w->request[i].prompt = prompt[i];
    assay_model_prompt(config, 5, i, prompt[i], w->request[i].text);
  }
  memcpy(w->request[WARM].text, w->request[FIRST].text, (2 * BLOCK + 1) * sizeof(int32_t));
  memcpy(w->request[THIRD].text, w->request[FIRST].text, 3 * BLOCK * sizeof(int32_t));
}

/* Opens a request with all that is known of its text. */
static inline void open_text(world *w, int i, const assay_engine_sampling *sampling) {
  one *r = &w->request[i];
  r->opened = r->prompt + r->have;
  if (w->status == ASSAY_OK)
    note(w, assay_engine_request(w->e, r->text, r->opened, sampling, &r->number, &r->hit, &w->error));
}

/* Takes the tokens that a request has got. */
static inline void fetch(world *w, int i) {
  one *r = &w->request[i];
  const int32_t *ids = NULL;
  int64_t count = 0;
  if (w->status == ASSAY_OK) note(w, assay_engine_wait(w->e, &w->error));
  if (w->status == ASSAY_OK) note(w, assay_engine_tokens(w->e, r->number, &ids, &count, &w->error));
  if (w->status != ASSAY_OK || r->opened + count > w->length) return;
  memcpy(r->text + r->opened, ids, (size_t)count * sizeof *ids);
  r->have = r->opened - r->prompt + count;
}

static inline void release_text(world *w, int i) {
  fetch(w, i);
  if (w->status == ASSAY_OK) note(w, assay_engine_release(w->e, w->request[i].number, &w->error));
  w->request[i].number = -1;
}

static inline void send(world *w) {
  if (w->status == ASSAY_OK) note(w, assay_engine_step(w->e, w->part, w->parts, &w->error));
  w->parts = 0;
}

/* Says where texts differ, or that a run failed. */
static inline bool differs(const world *a, const world *b, char *text, size_t size) {
  if (a->status != ASSAY_OK || b->status != ASSAY_OK) {
    (void)snprintf(text, size, "%.150s", a->status != ASSAY_OK ? a->error.text : b->error.text);
    return true;
  }
  for (int i = 0; i < ALL; ++i)
    for (int64_t t = 0; t < a->request[i].prompt + a->request[i].have; ++t)
      if (a->request[i].text[t] != b->request[i].text[t]) {
        (void)snprintf(text, size, "request %d, place %d", i, (int)t);
        return true;
      }
  return false;
}

#endif
