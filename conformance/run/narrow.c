/* narrow.c: see narrow.h. */
#include "narrow.h"

#include <stdio.h>
#include <string.h>

#include "conformance/case/case.h"
#include "core/contract.h"

/* The values that are tried for a field, from the narrowest to the widest. */
typedef struct ladder {
  const char *field;
  const char *rung[8];
} ladder;

static const ladder ladders[NARROW_FIELDS] = {
    {"k", {"none", "f16", "bf16"}},
    {"v", {"none", "f16", "bf16"}},
    {"score", {"none", "f16", "bf16"}},
    {"rotated", {"none", "f16", "bf16"}},
    {"p", {"none", "f16", "bf16", "e4m3", "e5m2"}},
    {"partial", {"none", "f16", "bf16"}},
    {"exp_ulp", {"1", "2", "4", "16", "256", "4096", "65536"}},
    {"lanes", {"1024", "32", "8", "1"}},
    {"qk_lanes", {"1024", "32", "8", "1"}},
    {"pv_lanes", {"1024", "32", "8", "1"}},
    {"cut", {"0", "16"}},
    {"ftz", {"false", "true"}},
    {"start", {"zero", "bias"}},
};

enum { FIELDS = NARROW_FIELDS, START = FIELDS - 1, MOST_STEPS = 40, ROUNDS = 2 * FIELDS };

const char *narrow_field(int32_t index) {
  return ladders[index].field;
}

static int32_t top(int32_t f) {
  int32_t last = 0;
  while (last + 1 < (int32_t)(sizeof ladders[f].rung / sizeof *ladders[f].rung) && ladders[f].rung[last + 1] != NULL)
    ++last;
  return last;
}

/* A contract as a place on each ladder. */
typedef struct place {
  int32_t at[FIELDS];
} place;

typedef struct search {
  const assay_contract *declared;
  narrow_ask ask;
  void *context;
  narrow_result *result;
  assay_error *error;
  place step[MOST_STEPS];
  assay_contract contract[MOST_STEPS];
  narrow_seen seen[MOST_STEPS];
  int32_t count;
  bool again; /* the search begins a second time, at another contract */
} search;

static assay_status contract_at(const search *s, const place *p, assay_contract *made) {
  *made = *s->declared;
  for (int32_t f = 0; f < FIELDS; ++f) {
    const assay_status status = contract_set(made, ladders[f].field, ladders[f].rung[p->at[f]], s->error);
    if (status != ASSAY_OK) return status;
  }
  /* The types of 8 bits have a least step, which gates see. */
  const double step = made->p == ASSAY_E4M3 ? 0x1p-9 : made->p == ASSAY_E5M2 ? 0x1p-16 : 0;
  if (made->p_step < step) made->p_step = step;
  return ASSAY_OK;
}

static void add_step(search *s, const place *from, int32_t field, int32_t rung) {
  if (s->count == MOST_STEPS) return;
  place *p = &s->step[s->count++];
  *p = *from;
  p->at[field] = rung;
}

static assay_status ask_steps(search *s) {
  for (int32_t i = 0; i < s->count; ++i) {
    const assay_status status = contract_at(s, &s->step[i], &s->contract[i]);
    if (status != ASSAY_OK) return status;
  }
  s->result->asked += s->count;
  return s->ask(s->context, s->contract, s->count, s->seen, s->error);
}

static bool holds(const narrow_seen *seen) {
  return seen->largest <= 1;
}

/* Orders contracts: those that hold before others. The largest mean comes first among those, the smallest lack among
 * the others. */
static bool is_better(const narrow_seen *a, const narrow_seen *b) {
  if (holds(a) != holds(b)) return holds(a);
  if (holds(a)) return a->mean > b->mean;
  return a->largest < b->largest || (a->largest <= b->largest && a->mean < b->mean);
}

static int32_t best_step(const search *s) {
  int32_t best = 0;
  for (int32_t i = 1; i < s->count; ++i)
    if (is_better(&s->seen[i], &s->seen[best])) best = i;
  return best;
}

static void take(search *s, place *now, narrow_seen *seen, int32_t step) {
  *now = s->step[step];
  *seen = s->seen[step];
}

/* Keeps the steps that hold beside the one taken, if they were made from the plainest contract. */
static void keep_others(const search *s, int32_t taken) {
  narrow_result *r = s->result;
  r->others = 0;
  for (int32_t i = 0; i < s->count && r->others < NARROW_OTHERS; ++i) {
    if (i == taken || !holds(&s->seen[i])) continue;
    bool first = true; /* on its ladder: wider rungs hold anyway */
    for (int32_t k = 0; k < i; ++k) {
      int32_t field = 0;
      while (field < FIELDS && (s->step[i].at[field] > 0) == (s->step[k].at[field] > 0))
        ++field;
      first = first && (field < FIELDS || !holds(&s->seen[k]));
    }
    int32_t own = 0;
    while (own < FIELDS && (s->step[i].at[own] > 0) == (s->step[taken].at[own] > 0))
      ++own;
    if (!first || own == FIELDS) continue;
    r->other[r->others] = s->contract[i];
    r->other_seen[r->others++] = s->seen[i];
  }
}

/* Asks for all contracts that are wider than this one in one field. */
static assay_status ask_wider(search *s, const place *now) {
  s->count = 0;
  for (int32_t f = 0; f < FIELDS; ++f)
    for (int32_t rung = now->at[f] + 1; rung <= top(f); ++rung)
      add_step(s, now, f, rung);
  return s->count > 0 ? ask_steps(s) : ASSAY_OK;
}

static void note_matters(search *s, const narrow_seen *plainest) {
  for (int32_t i = 0; i < s->count; ++i)
    for (int32_t f = 0; f < FIELDS; ++f)
      if (s->step[i].at[f] > 0 && (s->seen[i].largest != plainest->largest || s->seen[i].mean != plainest->mean))
        s->result->matters[f] = true;
}

/* Widens one field after the other until a contract holds, or nothing helps. Begins at the plainest contract. */
static assay_status widen(search *s, place *now, narrow_seen *seen) {
  for (int32_t round = 0; round < ROUNDS; ++round) {
    const assay_status status = ask_wider(s, now);
    if (status != ASSAY_OK || s->count == 0) return status;
    if (round == 0 && !s->again) note_matters(s, seen);
    const int32_t best = best_step(s);
    if (holds(seen) || !is_better(&s->seen[best], seen)) return ASSAY_OK;
    if (round == 0 && !s->again && holds(&s->seen[best])) keep_others(s, best);
    take(s, now, seen, best);
    if (holds(seen)) return ASSAY_OK;
  }
  return ASSAY_OK;
}

/* Narrows a contract that holds, one field at a time, until every narrower one does not hold. A field that has no
 * effect is narrowed too: the mean stays. */
static assay_status narrow(search *s, place *now, narrow_seen *seen) {
  for (int32_t round = 0; round < ROUNDS; ++round) {
    s->count = 0;
    for (int32_t f = 0; f < FIELDS; ++f)
      for (int32_t rung = 0; rung < now->at[f]; ++rung)
        add_step(s, now, f, rung);
    if (s->count == 0) return ASSAY_OK;
    const assay_status status = ask_steps(s);
    if (status != ASSAY_OK) return status;
    const int32_t best = best_step(s);
    if (!holds(&s->seen[best])) return ASSAY_OK;
    take(s, now, seen, best);
  }
  return ASSAY_OK;
}

/* Tries to give a field back and to widen another one instead. Sets `better` if a contract that holds has smaller
 * limits. */
static assay_status exchange(search *s, place *now, narrow_seen *seen, bool *better) {
  place best = *now;
  narrow_seen best_seen = *seen;
  *better = false;
  for (int32_t f = 0; f < FIELDS; ++f)
    for (int32_t step = 0; now->at[f] > 0 && step < (now->at[f] > 1 ? 2 : 1); ++step) {
      place less = *now;
      less.at[f] = step == 0 ? 0 : now->at[f] - 1;
      s->count = 0;
      for (int32_t other = 0; other < FIELDS; ++other)
        for (int32_t rung = less.at[other] + 1; rung <= top(other) && other != f; ++rung)
          add_step(s, &less, other, rung);
      const assay_status status = s->count > 0 ? ask_steps(s) : ASSAY_OK;
      if (status != ASSAY_OK) return status;
      const int32_t first = best_step(s);
      if (s->count == 0 || !holds(&s->seen[first]) || !is_better(&s->seen[first], &best_seen)) continue;
      take(s, &best, &best_seen, first);
      *better = true;
    }
  *now = best;
  *seen = best_seen;
  return ASSAY_OK;
}

/* Goes from a contract that holds to one that is narrower than all its neighbours. */
static assay_status settle(search *s, place *now, narrow_seen *seen) {
  bool better = true;
  assay_status status = ASSAY_OK;
  for (int32_t round = 0; round < 4 && better && status == ASSAY_OK; ++round) {
    status = narrow(s, now, seen);
    if (status == ASSAY_OK) status = exchange(s, now, seen, &better);
  }
  return status;
}

/* Searches again from the plainest contract whose sums start from the bias. That order shows only on few lanes: two
 * fields have to change at once. */
static assay_status search_from_bias(search *s, const place *plainest, place *now, narrow_seen *seen) {
  place other = *plainest;
  s->again = true;
  s->count = 0;
  add_step(s, plainest, START, 1);
  assay_status status = ask_steps(s);
  if (status != ASSAY_OK) return status;
  narrow_seen here;
  take(s, &other, &here, 0);
  status = widen(s, &other, &here);
  if (status == ASSAY_OK && holds(&here)) status = settle(s, &other, &here);
  if (status != ASSAY_OK || !is_better(&here, seen)) return status;
  *now = other;
  *seen = here;
  return ASSAY_OK;
}

assay_status narrow_search(const assay_contract *declared, narrow_ask ask, void *context, narrow_result *result,
                           assay_error *error) {
  search s = {.declared = declared, .ask = ask, .context = context, .result = result, .error = error};
  place plainest = {{0}}, widest = {{0}};
  assay_contract list[3];
  narrow_seen seen[3];
  for (int32_t f = 0; f < FIELDS; ++f)
    widest.at[f] = top(f);
  *result = (narrow_result){.asked = 3};
  list[0] = *declared;
  assay_status status = contract_at(&s, &plainest, &list[1]);
  if (status == ASSAY_OK) status = contract_at(&s, &widest, &list[2]);
  if (status == ASSAY_OK) status = ask(context, list, 3, seen, error);
  if (status != ASSAY_OK) return status;
  result->declared = seen[0];
  place now = plainest;
  narrow_seen here = seen[1];
  status = widen(&s, &now, &here);
  if (status == ASSAY_OK && !holds(&here) && holds(&seen[2])) {
    now = widest;
    here = seen[2];
  }
  if (status == ASSAY_OK && holds(&here)) status = settle(&s, &now, &here);
  if (status == ASSAY_OK && result->matters[START] && !holds(&seen[1]))
    status = search_from_bias(&s, &plainest, &now, &here);
  if (status != ASSAY_OK) return status;
  result->found = holds(&here) || holds(&result->declared);
  if (holds(&here)) {
    result->seen = here;
    return contract_at(&s, &now, &result->contract);
  }
  result->contract = holds(&result->declared) ? *declared : list[2];
  result->seen = holds(&result->declared) ? result->declared : seen[2];
  return ASSAY_OK;
}
