/* sampler_spoil.c: the sampler's steps again, each with a place for a planted error. */
#include "ref/lib/sampler_spoil.h"

#include <math.h>

/* ---- penalties --------------------------------------------------------------------------------------- */

/* Counts the history again, with the planted errors that concern it. */
static void count(const sampler_row *row, const sampler_scratch *scratch, sampler_spoil spoil) {
  sampler_count(row, scratch);
  if (spoil == SPOIL_PROMPT_NOT_REPEATED)
    for (int64_t i = 0; i < row->V; ++i)
      scratch->seen[i] = scratch->count[i] > 0;
  for (int64_t i = 0; i < row->prompt_count && spoil == SPOIL_PROMPT_COUNTED; ++i)
    if (row->prompt[i] >= 0) ++scratch->count[row->prompt[i]];
}

static double penalised(const sampler_row *row, double logit, bool seen, int32_t times, sampler_spoil spoil) {
  if (spoil == SPOIL_TEMPERATURE_FIRST && row->temperature > 0)
    return sampler_penalised(row, logit / row->temperature, seen, times) * row->temperature;
  if (spoil == SPOIL_NEGATIVES_DIVIDED && seen && logit < 0)
    return sampler_penalised(row, logit / row->repetition, false, times);
  const double value = sampler_penalised(row, logit, seen, times);
  return spoil == SPOIL_PRESENCE_PER_OCCURRENCE && times > 1 ? value - row->presence * (times - 1) : value;
}

/* ---- choices ----------------------------------------------------------------------------------------- */

static int32_t last_largest(const double *value, int64_t V) {
  int32_t best = 0;
  for (int32_t i = 1; i < V; ++i)
    if (value[i] >= value[best]) best = i;
  return best;
}

/* Moves the k largest to the front, preferring higher ids among equal ones. The order after them is undefined. */
static void front_by_highest_id(const double *value, int32_t *order, int64_t V, int64_t k) {
  sampler_front(value, order, V, k);
  double least = (double)INFINITY;
  int64_t larger = 0;
  for (int64_t i = 0; i < k; ++i)
    least = fmin(least, value[order[i]]);
  for (int64_t i = 0; i < k; ++i)
    if (value[order[i]] > least) order[larger++] = order[i];
  for (int32_t id = (int32_t)V - 1; id >= 0 && larger < k; --id)
    if (value[id] == least) order[larger++] = id;
}

static int64_t top_k(const sampler_row *row, const double *value, int32_t *order, sampler_spoil spoil) {
  const int64_t V = row->V;
  int64_t k = row->top_k == 0 ? V : row->top_k;
  if (spoil == SPOIL_TOP_K_ONE_MORE && row->top_k > 0) ++k;
  if (k >= V) return V;
  if (spoil == SPOIL_HIGHEST_ID)
    front_by_highest_id(value, order, V, k);
  else
    sampler_front(value, order, V, k);
  if (spoil != SPOIL_TOP_K_KEEPS_TIES) return k;
  double least = (double)INFINITY;
  for (int64_t i = 0; i < k; ++i)
    least = fmin(least, value[order[i]]);
  int64_t kept = k;
  for (int64_t i = k; i < V; ++i) {
    const int32_t id = order[i];
    if (value[id] != least) continue;
    order[i] = order[kept];
    order[kept++] = id;
  }
  return kept;
}

/* Returns the mass of which p is a share, divided by the mass of the `kept` tokens. */
static double whole_over_kept(const sampler_row *row, const sampler_scratch *scratch, int64_t kept, double largest) {
  double whole = 0, inside = 0;
  for (int64_t i = 0; i < row->V; ++i) {
    const double mass = exp((scratch->value[scratch->order[i]] - largest) / row->temperature);
    whole += mass;
    if (i < kept) inside += mass;
  }
  return whole / inside;
}

static int64_t top_p(const sampler_row *row, const sampler_scratch *scratch, int64_t kept, double largest,
                     sampler_spoil spoil) {
  double p = row->top_p;
  if (p < 1 && spoil == SPOIL_TOP_P_OF_ALL) p *= whole_over_kept(row, scratch, kept, largest);
  if (!(p < 1)) return kept;
  const int64_t prefix = sampler_prefix(scratch->value, scratch->mass, scratch->order, kept, p);
  if (spoil != SPOIL_TOP_P_DROPS_CROSSING || prefix == 1) return prefix;
  sampler_front(scratch->value, scratch->order, prefix, prefix - 1);
  return prefix - 1;
}

/* Moves the tokens of [0, kept) whose mass is at least the edge to the front. */
static int64_t min_p(const sampler_row *row, const sampler_scratch *scratch, int64_t kept, sampler_spoil spoil) {
  double edge = row->min_p;
  int64_t left = 0;
  if (spoil == SPOIL_MIN_P_OF_ONE) { /* p_i >= m */
    double whole = 0;
    for (int64_t i = 0; i < kept; ++i)
      whole += scratch->mass[scratch->order[i]];
    edge = fmin(edge * whole, 1);
  }
  for (int64_t i = 0; i < kept; ++i) {
    const int32_t id = scratch->order[i];
    if (scratch->mass[id] < edge) continue;
    scratch->order[i] = scratch->order[left];
    scratch->order[left++] = id;
  }
  return left;
}

static int32_t draw_at_least(const double *mass, int64_t V, double u) {
  double total = 0, running = 0;
  int32_t last = -1;
  for (int32_t i = 0; i < V; ++i)
    total += mass[i];
  for (int32_t i = 0; i < V && (last < 0 || running < u * total); ++i) {
    if (mass[i] == 0) continue;
    last = i;
    running += mass[i];
  }
  return last;
}

int32_t sampler_spoilt(const sampler_row *row, const sampler_scratch *scratch, sampler_spoil spoil, int64_t index) {
  const int64_t V = row->V;
  double *value = scratch->value, *mass = scratch->mass;
  count(row, scratch, spoil);
  for (int64_t i = 0; i < V; ++i)
    value[i] = penalised(row, row->logit[i], scratch->seen[i] != 0, scratch->count[i], spoil);
  const int32_t best = sampler_largest(value, V);
  if (row->temperature == 0) return spoil == SPOIL_HIGHEST_ID ? last_largest(value, V) : best;

  for (int32_t i = 0; i < V; ++i) {
    scratch->order[i] = i;
    mass[i] = 0;
  }
  int64_t kept = top_k(row, value, scratch->order, spoil);
  for (int64_t i = 0; i < kept; ++i)
    mass[scratch->order[i]] = exp((value[scratch->order[i]] - value[best]) / row->temperature);
  const int64_t all = kept;
  if (spoil == SPOIL_MIN_P_FIRST) {
    kept = min_p(row, scratch, kept, spoil);
    kept = top_p(row, scratch, kept, value[best], spoil);
  } else {
    kept = top_p(row, scratch, kept, value[best], spoil);
    kept = min_p(row, scratch, kept, spoil);
  }
  for (int64_t i = kept; i < all; ++i)
    mass[scratch->order[i]] = 0;

  uint64_t seed = row->seed, request = row->request;
  if (spoil == SPOIL_SEED_HIGH_LOST) seed &= 0xFFFFFFFFu;
  if (spoil == SPOIL_REQUEST_HIGH_LOST) request &= 0xFFFFFFFFu;
  if (spoil == SPOIL_COUNTER_BY_ROW) request = (uint64_t)index;
  const double u = sampler_uniform(seed, spoil == SPOIL_STEP_LOST ? 0 : row->step, request);
  return spoil == SPOIL_DRAW_AT_LEAST ? draw_at_least(mass, V, u) : sampler_draw(mass, V, u);
}
