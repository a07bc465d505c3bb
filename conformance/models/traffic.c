/* traffic.c: draws an engine's day, and keeps what comes of it. */
#include "traffic.h"

#include <stdlib.h>
#include <string.h>

#include "core/registry.h"
#include "core/rng.h"

enum { NOT_OPEN = -1 };

/* A request that is open, or was and returns: text and engine's number. */
typedef struct open_one {
  int64_t text;
  int32_t number;
  int64_t prompt, place; /* ids that it was opened with; the first place without a step */
} open_one;

typedef struct day {
  const traffic_plan *plan;
  traffic *t;
  assay_engine *e;
  assay_rng rng;
  int64_t longest, V, open;
  open_one one[TRAFFIC_BATCH];
  int64_t away[TRAFFIC_TEXTS], aways; /* texts that were preempted */
  double *logits;                     /* [batch, V] */
  bool eager, again;                  /* again: a step of the same requests in the same order can follow */
  int64_t last[TRAFFIC_BATCH], lasts; /* the step before, as who and count of make_step */
  assay_status status;
  assay_error *error;
} day;

static void note(day *d, assay_status status) {
  if (d->status == ASSAY_OK) d->status = status;
}

static int64_t draw(day *d, int64_t low, int64_t high) {
  return high > low ? assay_rng_range(&d->rng, low, high) : low;
}

static bool one_in(day *d, int64_t n) {
  return draw(d, 1, n) == 1;
}

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/* Takes the ids that a request has chosen so far. */
static void fetch(day *d, open_one *o) {
  traffic_text *x = &d->t->text[o->text];
  const int32_t *ids = NULL;
  int64_t count = 0;
  if (d->status == ASSAY_OK) note(d, assay_engine_wait(d->e, d->error));
  if (d->status == ASSAY_OK) note(d, assay_engine_tokens(d->e, o->number, &ids, &count, d->error));
  for (int64_t i = 0; i < count && d->status == ASSAY_OK; ++i) {
    const int64_t place = o->prompt - 1 + i;
    if (place < x->own) continue; /* chosen before the fork */
    x->chosen[place] = ids[i];
    x->opened[place] = o->prompt;
    if (!x->given && place + 1 == x->known && x->known < d->longest) x->ids[x->known++] = ids[i];
  }
}

static void fetch_text(day *d, int64_t text) {
  for (int64_t i = 0; i < d->open; ++i)
    if (d->one[i].text == text) fetch(d, &d->one[i]);
}

/* Draws how a text goes on: given ids, the largest logit, or a draw. */
static void draw_kind(day *d, traffic_text *x, int64_t number) {
  const int64_t kind = draw(d, 0, 4);
  x->given = kind < 2;
  x->sampling = (assay_engine_sampling){.top_p = 1, .id = (uint64_t)(1000 + number)};
  if (kind < 3) return;
  x->sampling.temperature = 1 + (double)draw(d, 0, 4) / 4;
  x->sampling.top_p = one_in(d, 2) ? 0.875 : 1;
  x->sampling.min_p = one_in(d, 2) ? 0.03125 : 0;
  x->sampling.top_k = one_in(d, 2) ? 0 : 20;
  x->sampling.seed = (uint64_t)draw(d, 0, 1 << 30);
}

/* Writes the first ids of another text, up to a block's end or one past it. Where other ids were given than those that
 * were chosen, the chosen ones may follow the prompt: keys and values of theirs were never computed. Returns how many.
 */
static int64_t share_prefix(day *d, int64_t number, int32_t *to) {
  const traffic_text *const from = &d->t->text[number];
  const int64_t block = d->plan->config->block_size;
  const bool chosen = from->given && one_in(d, 3);
  fetch_text(d, number);
  const int64_t shared = smaller(draw(d, 1, 5) * block + draw(d, 0, 1), from->known);
  memcpy(to, from->ids, (size_t)shared * sizeof *to);
  for (int64_t p = from->prompt; p < shared && chosen && from->chosen[p - 1] >= 0; ++p)
    to[p] = from->chosen[p - 1];
  return shared;
}

/* Draws a text. Two of three begin with ids of an earlier one. */
static int64_t new_text(day *d) {
  traffic *t = d->t;
  const int64_t block = d->plan->config->block_size, most = smaller(d->plan->prompt, d->longest - 1);
  const int64_t lengths[] = {1, block - 1, block, block + 1, 2 * block, 2 * block + 1};
  const int64_t number = t->texts++;
  traffic_text *x = &t->text[number];
  x->prompt = smaller(one_in(d, 3) ? lengths[draw(d, 0, 5)] : draw(d, 1, most), most);
  for (int64_t p = 0; p < TRAFFIC_LENGTH; ++p)
    x->chosen[p] = -1;
  assay_model_prompt(d->plan->config, d->plan->seed, number, d->longest, x->ids);
  if (number > 0 && !one_in(d, 3)) {
    const int64_t shared = share_prefix(d, draw(d, 0, number - 1), x->ids);
    x->prompt = shared < x->prompt ? x->prompt : smaller(shared + draw(d, 0, 2), d->longest - 1);
  }
  draw_kind(d, x, number);
  x->known = x->given ? d->longest : x->prompt;
  return number;
}

/* Opens a request with all that is known of a text. A given text begins with what it had. */
static void begin(day *d, int64_t number, int64_t ids) {
  traffic_text *x = &d->t->text[number];
  open_one *o = &d->one[d->open];
  int64_t hit = 0;
  *o = (open_one){.text = number, .number = NOT_OPEN, .prompt = ids};
  if (d->status == ASSAY_OK) note(d, assay_engine_request(d->e, x->ids, ids, &x->sampling, &o->number, &hit, d->error));
  if (d->status != ASSAY_OK) return;
  o->place = hit;
  d->t->hits += hit > 0;
  ++d->open;
  d->again = false;
}

/* Ends a request. One of given ids may go while its last step is under way. */
static void end(day *d, int64_t i, bool returns) {
  open_one *o = &d->one[i];
  traffic_text *x = &d->t->text[o->text];
  d->again = false;
  if (!x->given || !one_in(d, 2)) fetch(d, o);
  if (x->given) x->known = o->place > x->prompt ? o->place : x->prompt;
  if (d->status == ASSAY_OK) note(d, assay_engine_release(d->e, o->number, d->error));
  if (returns) d->away[d->aways++] = o->text;
  *o = d->one[--d->open];
}

/* A second request goes on from where one is, with other given ids or with another id of its draws. */
static void fork_one(day *d, open_one *o) {
  traffic *t = d->t;
  const int64_t number = t->texts;
  traffic_text *to = &t->text[number];
  fetch(d, o);
  const traffic_text *from = &t->text[o->text];
  if (d->status != ASSAY_OK || o->place >= d->longest) return;
  *to = *from;
  for (int64_t p = 0; p < TRAFFIC_LENGTH; ++p) {
    to->row[p] = NULL;
    to->chosen[p] = -1;
  }
  to->own = o->place;
  to->sampling.id += 500;
  if (to->given)
    for (int64_t p = o->place; p < d->longest; ++p)
      to->ids[p] = from->ids[d->longest - 1 - (p - o->place)];
  open_one *child = &d->one[d->open];
  *child = *o;
  child->text = number;
  note(d, assay_engine_fork(d->e, o->number, &to->sampling, &child->number, d->error));
  if (d->status != ASSAY_OK) return;
  ++t->texts;
  ++t->forks;
  ++d->open;
  d->again = false;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static void come_and_go(day *d) {
  traffic *t = d->t;
  for (int64_t i = d->open - 1; i >= 0; --i)
    if (d->one[i].place >= d->longest) {
      ++t->ended;
      end(d, i, false);
    }
  if (d->again && !one_in(d, 3)) return;
  if (d->open > 1 && one_in(d, 6)) {
    ++t->preempted;
    end(d, draw(d, 0, d->open - 1), true);
  }
  const int64_t i = d->open > 0 ? draw(d, 0, d->open - 1) : 0;
  while (d->status == ASSAY_OK && d->open > 0 && d->open < d->plan->batch && t->texts < TRAFFIC_TEXTS && one_in(d, 3) &&
         d->one[i].place >= d->one[i].prompt && d->one[i].place < d->longest)
    fork_one(d, &d->one[i]);
  while (d->status == ASSAY_OK && d->open < d->plan->batch && (d->open == 0 || one_in(d, 2))) {
    if (d->aways > 0 && one_in(d, 2)) {
      const int64_t text = d->away[--d->aways];
      traffic_text *x = &t->text[text];
      const int64_t ids = x->known;
      if (x->given) x->known = d->longest;
      if (ids < d->longest)
        begin(d, text, ids);
      else
        continue;
    } else if (t->texts < TRAFFIC_TEXTS) {
      const int64_t text = new_text(d);
      begin(d, text, t->text[text].prompt);
    } else {
      break;
    }
  }
  if (one_in(d, 5)) {
    d->eager = !d->eager;
    if (d->status == ASSAY_OK) note(d, assay_engine_set_eager(d->e, d->eager, d->error));
  }
}

/* Puts a step together: some requests, in any order. Returns the number of parts; who: the request of each. */
static int64_t make_step(day *d, assay_engine_part *part, int64_t *who) {
  const int64_t block = d->plan->config->block_size;
  const int64_t sizes[] = {1, 2, 3, block - 1, block, block + 1, 2 * block, d->longest};
  int64_t count = 0, order[TRAFFIC_BATCH];
  for (int64_t i = 0; i < d->open; ++i) {
    const int64_t at = draw(d, 0, i);
    order[i] = order[at];
    order[at] = i;
  }
  const bool same = d->again && !one_in(d, 3); /* ids may stay in place, beside one that pauses now */
  const int64_t parts = !same ? d->open : d->lasts > 1 && one_in(d, 3) ? d->lasts - 1 : d->lasts;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t at = same ? d->last[i] : order[i];
    const open_one *o = &d->one[at];
    const traffic_text *x = &d->t->text[o->text];
    const int64_t left = assay_engine_left(d->e, o->number);
    if (!same && one_in(d, 5) && (count > 0 || i + 1 < d->open)) continue;
    who[count] = at;
    part[count++] = (assay_engine_part){
        .request = o->number,
        .tokens = left == 0 ? 1 : assay_engine_chunk(d->e, o->number, smaller(sizes[draw(d, 0, 7)], left)),
        .forced = left == 0 && x->given ? &x->ids[o->place] : NULL};
  }
  return count;
}

/* Keeps the logits of a step's rows. */
static void keep_rows(day *d, const int64_t *who, int64_t rows) {
  if (d->status == ASSAY_OK) note(d, assay_engine_logits(d->e, rows, d->logits, d->error));
  for (int64_t r = 0; r < rows && d->status == ASSAY_OK; ++r) {
    const open_one *o = &d->one[who[r]];
    float *row = malloc((size_t)d->V * sizeof *row);
    if (row == NULL) {
      note(d, assay_fail(d->error, ASSAY_ERR_MEMORY, "traffic: out of memory"));
      return;
    }
    for (int64_t v = 0; v < d->V; ++v)
      row[v] = (float)d->logits[r * d->V + v];
    free(d->t->text[o->text].row[o->place - 1]);
    d->t->text[o->text].row[o->place - 1] = row;
    d->t->text[o->text].prompt_of[o->place - 1] = o->prompt;
    ++d->t->rows;
  }
}

static void step(day *d) {
  assay_engine_part part[TRAFFIC_BATCH];
  int64_t who[TRAFFIC_BATCH] = {0}, asked[TRAFFIC_BATCH], rows = 0;
  come_and_go(d);
  if (d->status != ASSAY_OK || d->open == 0) return;
  const int64_t count = make_step(d, part, who);
  bool drawn = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t left = assay_engine_left(d->e, part[i].request);
    const traffic_text *x = &d->t->text[d->one[who[i]].text];
    if (left > part[i].tokens) continue;
    asked[rows++] = who[i];
    drawn = drawn || x->sampling.temperature > 0;
  }
  note(d, assay_engine_step(d->e, part, count, d->error));
  d->again = true;
  d->lasts = count;
  memcpy(d->last, who, sizeof d->last);
  for (int64_t i = 0; i < count; ++i)
    d->one[who[i]].place += part[i].tokens;
  if (rows > 0 && (drawn || one_in(d, 2))) keep_rows(d, asked, rows);
}

assay_status traffic_run(const traffic_plan *plan, traffic *t,
                         assay_status (*check)(void *context, const assay_engine *engine), void *context,
                         assay_error *error) {
  const int64_t wanted = plan->prompt + plan->steps / 4, size = plan->config->block_size;
  day d = {.plan = plan,
           .t = t,
           .rng = {plan->seed, 0x74726166666963, 0},
           .longest = smaller(wanted, TRAFFIC_LENGTH),
           .V = plan->config->vocab,
           .error = error};
  memset(t, 0, sizeof *t);
  /* As few blocks as can do: those of prefixes are evicted, and given to others. */
  const assay_engine_options options = {.device = plan->device,
                                        .num_blocks = plan->batch * ((d.longest + size - 1) / size),
                                        .max_batch = plan->batch,
                                        .max_tokens = plan->batch * d.longest,
                                        .max_length = d.longest,
                                        .model = plan->model};
  const assay_device *device = assay_device_find(plan->device);
  const assay_device_flow *flow = device != NULL ? device->flow : NULL;
  if (flow != NULL && flow->lag != NULL) flow->lag((uint32_t)draw(&d, 0, 7)); /* lanes that lag, where that is told */
  d.logits = malloc((size_t)(plan->batch * d.V) * sizeof *d.logits);
  note(&d, d.logits != NULL ? assay_engine_open(plan->config, plan->weights, &options, &d.e, error)
                            : assay_fail(error, ASSAY_ERR_MEMORY, "traffic: out of memory"));
  for (int64_t s = 0; s < plan->steps && d.status == ASSAY_OK; ++s)
    step(&d);
  while (d.open > 0 && d.status == ASSAY_OK)
    end(&d, d.open - 1, false);
  if (d.status == ASSAY_OK && check != NULL) note(&d, check(context, d.e));
  assay_engine_close(d.e);
  if (flow != NULL && flow->lag != NULL) flow->lag(0);
  free(d.logits);
  return d.status;
}

void traffic_free(traffic *t) {
  for (int64_t i = 0; i < TRAFFIC_TEXTS; ++i)
    for (int64_t p = 0; p < TRAFFIC_LENGTH; ++p) {
      free(t->text[i].row[p]);
      t->text[i].row[p] = NULL;
    }
}
