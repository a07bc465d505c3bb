/* sampler.c: makes a token from a row of logits. Nothing is sorted: selections partition around a pivot, so a row costs
 * a few passes whatever its ties. */
#include "ref/lib/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "core/rng.h"

const sampler_row sampler_row_neutral = {.repetition = 1, .temperature = 1, .top_p = 1};

assay_status sampler_scratch_make(int64_t V, sampler_scratch *scratch, assay_error *error) {
  const size_t n = V > 0 ? (size_t)V : 1;
  *scratch = (sampler_scratch){.capacity = V,
                               .value = malloc(n * sizeof(double)),
                               .mass = malloc(n * sizeof(double)),
                               .order = malloc(n * sizeof(int32_t)),
                               .count = malloc(n * sizeof(int32_t)),
                               .seen = malloc(n)};
  if (scratch->value != NULL && scratch->mass != NULL && scratch->order != NULL && scratch->count != NULL &&
      scratch->seen != NULL)
    return ASSAY_OK;
  sampler_scratch_free(scratch);
  return assay_fail(error, ASSAY_ERR_MEMORY, "sampler: a row of %lld logits does not fit in memory", (long long)V);
}

void sampler_scratch_free(sampler_scratch *scratch) {
  free(scratch->value);
  free(scratch->mass);
  free(scratch->order);
  free(scratch->count);
  free(scratch->seen);
  *scratch = (sampler_scratch){0};
}

/* ---- legal contents of a row ------------------------------------------------------------------------- */

const char *sampler_illegal_parameter(const sampler_row *row, double *found, const char **allowed) {
  const struct {
    const char *name, *allowed;
    double value;
    bool legal;
  } list[] = {
      {"repetition", "a finite number above 0", row->repetition, row->repetition > 0 && isfinite(row->repetition)},
      {"frequency", "a finite number", row->frequency, isfinite(row->frequency)},
      {"presence", "a finite number", row->presence, isfinite(row->presence)},
      {"temperature", "a finite number, 0 or above", row->temperature,
       row->temperature >= 0 && isfinite(row->temperature)},
      {"top_k", "0 or above", (double)row->top_k, row->top_k >= 0},
      {"top_p", "above 0, up to 1", row->top_p, row->top_p > 0 && row->top_p <= 1},
      {"min_p", "0 to 1", row->min_p, row->min_p >= 0 && row->min_p <= 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; ++i) {
    if (list[i].legal) continue;
    *found = list[i].value;
    *allowed = list[i].allowed;
    return list[i].name;
  }
  return NULL;
}

const char *sampler_illegal_token(const sampler_row *row, int64_t *place, int32_t *found) {
  for (int64_t i = 0; i < row->prompt_count + row->output_count; ++i) {
    const bool output = i >= row->prompt_count;
    *place = output ? i - row->prompt_count : i;
    *found = output ? row->output[*place] : row->prompt[*place];
    if (*found < -1 || *found >= row->V) return output ? "output" : "prompt";
  }
  return NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

void sampler_count(const sampler_row *row, const sampler_scratch *scratch) {
  for (int64_t i = 0; i < row->V; ++i) {
    scratch->seen[i] = 0;
    scratch->count[i] = 0;
  }
  for (int64_t i = 0; i < row->prompt_count; ++i)
    if (row->prompt[i] >= 0) scratch->seen[row->prompt[i]] = 1;
  for (int64_t i = 0; i < row->output_count; ++i) {
    if (row->output[i] < 0) continue;
    scratch->seen[row->output[i]] = 1;
    ++scratch->count[row->output[i]];
  }
}

double sampler_penalised(const sampler_row *row, double logit, bool seen, int32_t count) {
  if (seen) logit = logit > 0 ? logit / row->repetition : logit * row->repetition;
  if (count > 0) logit -= row->frequency * count + row->presence;
  return logit;
}

int32_t sampler_largest(const double *value, int64_t V) {
  int32_t best = 0;
  for (int32_t i = 1; i < V; ++i)
    if (value[i] > value[best]) best = i;
  return best;
}

/* Compares in the order of top-k and top-p: larger values first, of equal ones the lower id. No two ids are equal. */
static bool before(const double *value, int32_t i, int32_t j) {
  return value[i] > value[j] || (value[i] == value[j] && i < j);
}

static void swap(int32_t *order, int64_t i, int64_t j) {
  const int32_t id = order[i];
  order[i] = order[j];
  order[j] = id;
}

/* Moves the ids of [low, high) that come before the pivot to the front, and the pivot after them. Returns the pivot's
 * place. */
static int64_t split(const double *value, int32_t *order, int64_t low, int64_t high, uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  swap(order, low + (int64_t)((uint64_t)(high - low) * *state >> 32), high - 1);
  const int32_t pivot = order[high - 1];
  int64_t place = low;
  for (int64_t i = low; i < high - 1; ++i)
    if (before(value, order[i], pivot)) swap(order, i, place++);
  swap(order, place, high - 1);
  return place;
}

void sampler_front(const double *value, int32_t *order, int64_t count, int64_t k) {
  uint32_t state = 1;
  for (int64_t low = 0, high = count; low < high && k < count;) {
    const int64_t place = split(value, order, low, high, &state);
    if (place == k) return;
    if (place < k)
      low = place + 1;
    else
      high = place;
  }
}

static double sum_of(const double *mass, const int32_t *order, int64_t low, int64_t high) {
  double sum = 0;
  for (int64_t i = low; i < high; ++i)
    sum += mass[order[i]];
  return sum;
}

/* Narrows [low, high). The ids before `low` are surely kept; their mass is `inside`, too little. The ids of [0, high)
 * are enough. */
int64_t sampler_prefix(const double *value, const double *mass, int32_t *order, int64_t count, double p) {
  const double target = p * sum_of(mass, order, 0, count);
  uint32_t state = 1;
  double inside = 0;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t place = split(value, order, low, high, &state);
    const double front = inside + sum_of(mass, order, low, place);
    if (front >= target) {
      high = place;
      continue;
    }
    inside = front + mass[order[place]];
    low = place + 1;
    if (inside >= target) return low;
  }
  return high;
}

double sampler_uniform(uint64_t seed, uint32_t step, uint64_t request) {
  const assay_philox r = assay_philox4x32(seed, step, 0, (uint32_t)request, (uint32_t)(request >> 32));
  return (double)(r.x[0] >> 8) * 0x1p-24;
}

int32_t sampler_draw(const double *mass, int64_t V, double u) {
  double total = 0, running = 0;
  int32_t last = -1;
  for (int32_t i = 0; i < V; ++i)
    total += mass[i];
  for (int32_t i = 0; i < V; ++i) {
    if (mass[i] == 0) continue;
    last = i;
    running += mass[i];
    if (running > u * total) break;
  }
  return last;
}

/* ---- the definition ---------------------------------------------------------------------------------- */

static sampler_code inspect(const sampler_row *row) {
  double found;
  const char *allowed;
  int64_t place;
  int32_t id;
  if (sampler_illegal_parameter(row, &found, &allowed) != NULL) return SAMPLER_PARAMETER;
  if (sampler_illegal_token(row, &place, &id) != NULL) return SAMPLER_HISTORY;
  bool any = false;
  for (int64_t i = 0; i < row->V; ++i) {
    if (isnan(row->logit[i]) || row->logit[i] == (double)INFINITY) return SAMPLER_NOT_FINITE;
    any = any || isfinite(row->logit[i]);
  }
  return any ? SAMPLER_OK : SAMPLER_ALL_BANNED;
}

sampler_code sampler_token(const sampler_row *row, const sampler_scratch *scratch, int32_t *token) {
  const int64_t V = row->V;
  double *value = scratch->value, *mass = scratch->mass;
  const sampler_code code = inspect(row);
  *token = -1;
  if (code != SAMPLER_OK) return code;

  sampler_count(row, scratch);
  for (int64_t i = 0; i < V; ++i)
    value[i] = sampler_penalised(row, row->logit[i], scratch->seen[i] != 0, scratch->count[i]);
  const int32_t best = sampler_largest(value, V);
  if (row->temperature == 0) {
    *token = best;
    return SAMPLER_OK;
  }

  int64_t kept = V;
  for (int32_t i = 0; i < V; ++i) {
    scratch->order[i] = i;
    mass[i] = 0;
  }
  if (row->top_k > 0 && row->top_k < V) sampler_front(value, scratch->order, V, kept = row->top_k);
  for (int64_t i = 0; i < kept; ++i) {
    const int32_t id = scratch->order[i];
    mass[id] = exp((value[id] - value[best]) / row->temperature);
  }
  const int64_t tokens = kept;
  if (row->top_p < 1) kept = sampler_prefix(value, mass, scratch->order, kept, row->top_p);
  for (int64_t i = 0; i < tokens; ++i)
    if (i >= kept || mass[scratch->order[i]] < row->min_p) mass[scratch->order[i]] = 0; /* p_max is mass 1 */
  *token = sampler_draw(mass, V, sampler_uniform(row->seed, row->step, row->request));
  return SAMPLER_OK;
}
