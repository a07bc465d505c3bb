/* trial.c: a case before its first run: its tensors, the judged rows, and the reference's values for them. */
#include "trial.h"

#include <pthread.h>
#include <stdlib.h>

#include "conformance/generate/generate.h"
#include "conformance/text/text.h"
#include "core/dtype.h"
#include "core/rng.h"
#include "flush.h"

static int compare_rows(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void take_row(int64_t row, unsigned char *taken, int64_t *index, int64_t *count) {
  if (taken[row]) return;
  taken[row] = 1;
  index[(*count)++] = row;
}

/* Chooses `rows` rows to judge: the last and the first of all, then first and last rows of requests. Then come rows
 * whose last key is next to an edge of a split. A quarter, and the places left over, are drawn at random. With very
 * many requests, the later ones therefore have rows among them, too. */
static bool choose_rows(trial *t) {
  const logical *l = t->first.logical;
  const int64_t N = t->first.rows, wanted = t->one->rows;
  t->rows = (assay_rows){N, NULL};
  if (wanted <= 0 || wanted >= N) return true;
  int64_t *index = malloc((size_t)wanted * sizeof *index), count = 0;
  unsigned char *taken = calloc((size_t)N, 1);
  if (index == NULL || taken == NULL) {
    free(index);
    free(taken);
    return false;
  }
  take_row(N - 1, taken, index, &count);
  if (wanted > 1) take_row(0, taken, index, &count);
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t row = 0; row < N && count < wanted - wanted / 4; ++row) {
      const int64_t request = t->first.request_of_row[row], n = t->first.position_of_row[row];
      const int64_t last = (int64_t)l->length[request] - l->fresh[request] + n;
      const bool last_row = t->one->op->form == ASSAY_PLAIN ? row == N - 1 : n == l->fresh[request] - 1;
      const bool ends = n == 0 || last_row;
      const int64_t in_split = last % CASE_SPLIT_KEYS;
      const bool edge = in_split == 0 || in_split == CASE_SPLIT_KEYS - 1;
      if (pass == 0 ? ends : edge) take_row(row, taken, index, &count);
    }
  assay_rng rng = {t->one->seed, STREAM_ROWS, 0};
  while (count < wanted)
    take_row(assay_rng_range(&rng, 0, N - 1), taken, index, &count);
  free(taken);
  qsort(index, (size_t)count, sizeof *index, compare_rows);
  t->row_index = index;
  t->rows = (assay_rows){count, index};
  return true;
}

bool trial_may_skip_v(const trial *t) {
  return t->variant->contract.zero_p_v != ASSAY_V_MULTIPLIED && t->row_index == NULL;
}

/* Tells whether a value of the reference can be used. Only operators that take special values have live NaN or Inf.
 * Elsewhere a NaN means that the reference has read dead bytes, and it would excuse any result. One NaN is said and not
 * read: a stored sum became Inf, and its factor is 0. It has sigma 0, and output 0, the sum, tells dead bytes there. */
static bool usable(const trial *t, int32_t o, double value, double sigma) {
  const trial_output *out = &t->output[o];
  const bool special = t->one->values == ASSAY_SPECIAL;
  if (sigma < 0) { /* op.h: the bits before the call */
    const double elements = (double)(out->rows * out->width);
    return out->inout && out->kind != OUTPUT_CACHE &&
           (sigma == ASSAY_UNCHANGED || (sigma == ASSAY_MOVED && value >= 0 && value < elements));
  }
  const bool said = o > 0 && t->one->op->product != NULL && t->one->tier == TIER_CALIBRATED && sigma == 0;
  if (assay_is_nan(value)) return special || said;
  return !assay_is_finite(value) || assay_is_finite(sigma);
}

static bool usable_reference(const trial *t, case_result *result) {
  for (int32_t o = 0; o < t->count; ++o)
    for (int64_t i = 0; i < outputs_judged(t, o) * t->output[o].width; ++i) {
      const double value = t->expected[o].value[i], sigma = t->expected[o].sigma[i];
      if (usable(t, o, value, sigma)) continue;
      char at[400];
      const int64_t width = t->output[o].width;
      values_describe(t, (output_place){o, outputs_row(t, o, i / width), i % width}, at, sizeof at);
      verdict_set(result, VERDICT_WEAK, "admission", "%s: the reference is %g with sigma %g", at, value, sigma);
      return false;
    }
  return true;
}

/* ---- the reference, its rows divided among threads ---- */

typedef struct rows_part {
  trial *t;
  const int64_t *index;
  bool exact;
  assay_expected *expected;
  pthread_mutex_t lock; /* guards the fields below */
  assay_status status;
  assay_error error;
  assay_seen seen;
} rows_part;

static void add_seen(assay_seen *all, const assay_seen *part, int64_t bytes) {
  all->visible_keys += part->visible_keys;
  all->live_keys += part->live_keys;
  for (int64_t i = 0; i < bytes && all->v_needed != NULL; ++i)
    all->v_needed[i] |= part->v_needed[i];
}

/* Notes how a thread's part ended, and what its reference saw (NULL: nothing). The first failure stays. */
static void note_part(rows_part *p, assay_status status, const assay_error *error, const assay_seen *seen,
                      int64_t bytes) {
  (void)pthread_mutex_lock(&p->lock);
  if (status == ASSAY_OK && seen != NULL) add_seen(&p->seen, seen, bytes);
  if (status != ASSAY_OK && p->status == ASSAY_OK) {
    p->status = status;
    p->error = *error;
  }
  (void)pthread_mutex_unlock(&p->lock);
}

static void reference_rows(void *context, int64_t begin, int64_t end) {
  rows_part *p = context;
  trial *t = p->t;
  const assay_op *op = t->one->op;
  const int64_t bytes = p->seen.slots * t->first.logical->H_kv;
  const assay_rows rows = {end - begin, p->index + begin};
  assay_expected own[ASSAY_MAX_OUTPUTS];
  assay_seen seen = {.first_slot = p->seen.first_slot, .slots = p->seen.slots};
  assay_error error = {""};
  for (int32_t o = 0; o < t->count; ++o)
    own[o] = (assay_expected){p->expected[o].value + begin * t->output[o].width,
                              p->expected[o].sigma + begin * t->output[o].width};
  if (p->seen.v_needed != NULL) seen.v_needed = calloc((size_t)bytes + 1, 1);
  assay_status status = p->seen.v_needed != NULL && seen.v_needed == NULL
                            ? assay_fail(&error, ASSAY_ERR_MEMORY, "judge: out of memory")
                            : op->reference(&t->first.call, &t->variant->contract, &rows, p->exact, own, &seen, &error);
  note_part(p, status, &error, &seen, bytes);
  free(seen.v_needed);
}

static void reference_parts(void *context, int64_t begin, int64_t end) {
  rows_part *p = context;
  assay_error error = {""};
  const trial *t = p->t;
  const assay_status status =
      trial_shared_reference(t->one->op)
          ->reference(&t->first.call, &t->variant->contract, begin, end, p->exact, p->expected, &error);
  note_part(p, status, &error, NULL, 0);
}

/* Asks the reference for the parts of all outputs, which threads share. */
static assay_status ask_parts(trial *t, bool exact, assay_expected *expected, assay_error *error) {
  rows_part p = {.t = t, .exact = exact, .expected = expected};
  (void)pthread_mutex_init(&p.lock, NULL);
  threads_for(trial_shared_reference(t->one->op)->parts(&t->first.call), 1, reference_parts, &p);
  (void)pthread_mutex_destroy(&p.lock);
  if (p.status != ASSAY_OK && error != NULL) *error = p.error;
  return p.status;
}

/* Asks the reference, by several threads where its rows or its parts do not need each other. */
static assay_status ask_rows(trial *t, const assay_call *call, bool exact, assay_expected *expected, assay_seen *seen,
                             assay_error *error) {
  const assay_op *op = t->one->op;
  if (threads_used() > 1 && call == &t->first.call && trial_shared_reference(op) != NULL)
    return ask_parts(t, exact, expected, error);
  bool parts = threads_used() > 1 && call == &t->first.call && (op->form == ASSAY_PAGED || op->row_dim != NULL) &&
               t->rows.count > 1;
  for (int32_t o = 0; o < t->count; ++o)
    parts = parts && t->output[o].kind == OUTPUT_ROWS;
  int64_t *index = parts && t->row_index == NULL ? malloc((size_t)t->rows.count * sizeof *index) : NULL;
  if (!parts || (t->row_index == NULL && index == NULL))
    return op->reference(call, &t->variant->contract, &t->rows, exact, expected, seen, error);
  for (int64_t r = 0; r < t->rows.count && index != NULL; ++r)
    index[r] = r;
  rows_part p = {.t = t, .index = index != NULL ? index : t->row_index, .exact = exact, .expected = expected};
  p.seen = *seen;
  p.seen.visible_keys = p.seen.live_keys = 0;
  (void)pthread_mutex_init(&p.lock, NULL);
  threads_for(t->rows.count, 1, reference_rows, &p);
  (void)pthread_mutex_destroy(&p.lock);
  free(index);
  *seen = p.seen;
  if (p.status != ASSAY_OK && error != NULL) *error = p.error;
  return p.status;
}

/* Asks the reference. Outputs of fixed type (lse) have no exact tier. With such outputs, the proof that a case is on
 * the lattice is asked for the call without them. Their values are then asked for without a proof. */
static assay_status ask_reference(trial *t, assay_error *error) {
  const assay_op *op = t->one->op;
  const bool exact = t->one->tier == TIER_EXACT;
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen unused = {.first_slot = t->seen.first_slot, .slots = t->seen.slots};
  int32_t proven = 0;
  memcpy(arg, t->first.arg, sizeof arg);
  for (int32_t o = 0; o < t->count; ++o) {
    if (!exact || t->output[o].exact || op->form == ASSAY_PLAIN)
      expected[proven++] = t->expected[o];
    else
      arg[t->output[o].arg].data = NULL;
  }
  const assay_call call = {op, arg, t->first.param};
  assay_status status = ask_rows(t, proven < t->count ? &call : &t->first.call, exact, expected, &t->seen, error);
  if (status == ASSAY_OK && proven < t->count) status = ask_rows(t, &t->first.call, false, t->expected, &unused, error);
  return status;
}

/* Widens sigma under a contract that says ftz (flush.h): the reference is asked once more, without subnormal inputs. */
static bool allow_flushing(trial *t, assay_error *error) {
  const assay_op *op = t->one->op;
  assay_expected other[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  assay_seen unused = {.first_slot = t->seen.first_slot, .slots = t->seen.slots};
  assay_tensor arg[ASSAY_MAX_ARGS];
  unsigned char *bytes = malloc((size_t)t->first.arena_bytes + 1);
  bool good = bytes != NULL;
  for (int32_t o = 0; o < t->count && good; ++o) {
    const size_t elements = (size_t)(outputs_judged(t, o) * t->output[o].width) + 1;
    other[o] = (assay_expected){calloc(elements, sizeof(double)), calloc(elements, sizeof(double))};
    good = other[o].value != NULL && other[o].sigma != NULL;
  }
  if (good) {
    memcpy(bytes, t->first.host, (size_t)t->first.arena_bytes);
    for (int32_t i = 0; i < op->arg_count; ++i)
      if (op->args[i].role != ASSAY_OUT && t->first.arg[i].data != NULL)
        flush_numbers(t->first.arg[i].dtype, bytes + t->first.extent[i].offset, t->first.extent[i].bytes);
    const assay_call call = image_rebase(&t->first, bytes, arg);
    good = ask_rows(t, &call, false, other, &unused, error) == ASSAY_OK;
  }
  for (int32_t o = 0; o < t->count && good; ++o)
    flush_widen(&t->expected[o], &other[o], outputs_judged(t, o) * t->output[o].width);
  for (int32_t o = 0; o < t->count; ++o) {
    free(other[o].value);
    free(other[o].sigma);
  }
  free(bytes);
  return good;
}

static bool compute_reference(trial *t, case_result *result) {
  const logical *l = t->first.logical;
  assay_error error = {""};
  const assay_status checked = t->one->op->check(&t->first.call, &error);
  if (checked != ASSAY_OK) {
    verdict_set(result, VERDICT_WEAK, "admission", "the reference refuses the case: %s", error.text);
    verdict_blame_host(result, checked);
    return false;
  }
  for (int32_t o = 0; o < t->count; ++o) {
    const size_t elements = (size_t)(outputs_judged(t, o) * t->output[o].width) + 1;
    t->expected[o].value = calloc(elements, sizeof(double));
    t->expected[o].sigma = malloc(elements * sizeof(double));
    if (t->expected[o].value == NULL || t->expected[o].sigma == NULL) return verdict_no_memory(result);
  }
  t->seen.first_slot = place_slot_at(&t->first, t->first.first_block, 0);
  t->seen.slots = place_slots(&t->first);
  if (trial_may_skip_v(t)) {
    t->seen.v_needed = calloc((size_t)(t->seen.slots * l->H_kv) + 1, 1);
    if (t->seen.v_needed == NULL) return verdict_no_memory(result);
  }
  const double start = device_now_ms();
  const assay_status status = ask_reference(t, &error);
  result->reference_ms = device_now_ms() - start;
  result->visible_keys = t->seen.visible_keys;
  result->live_keys = t->seen.live_keys;
  result->rows_judged = t->rows.count;
  if (status != ASSAY_OK) {
    verdict_set(result, VERDICT_WEAK, "admission", "the reference: %s", error.text);
    verdict_blame_host(result, status);
    return false;
  }
  if (t->variant->contract.ftz && t->one->tier != TIER_EXACT && !allow_flushing(t, &error)) {
    verdict_set(result, VERDICT_WEAK, "admission", "the reference without subnormal numbers: %s", error.text);
    return false;
  }
  return usable_reference(t, result);
}

bool trial_shape(trial *t, case_result *result) {
  assay_error error = {""};
  const draw choice = {.dead = t->one->dead, .poison = 0x03};
  const assay_status status = image_shape(t->one, &choice, &t->first, &error);
  if (status != ASSAY_OK) {
    verdict_set(result, VERDICT_FAIL, "launch", "%s", error.text);
    verdict_blame_host(result, status);
    return false;
  }
  outputs_list(t);
  return true;
}

bool trial_contents(trial *t, case_result *result) {
  assay_error error = {""};
  const assay_status status = image_fill(&t->first, NULL, &error);
  if (status != ASSAY_OK) {
    verdict_set(result, status == ASSAY_ERR_INPUT ? VERDICT_WEAK : VERDICT_FAIL, "admission", "%s", error.text);
    verdict_blame_host(result, status);
    return false;
  }
  if (!choose_rows(t) || !outputs_make(t, &t->initial)) return verdict_no_memory(result);
  outputs_gather(t, &t->first, t->first.host, &t->initial);
  return true;
}

bool trial_reference(trial *t, case_result *result) {
  return trial_contents(t, result) && compute_reference(t, result);
}

static void forget_reference(trial *t) {
  for (int32_t o = 0; o < ASSAY_MAX_OUTPUTS; ++o) {
    free(t->expected[o].value);
    free(t->expected[o].sigma);
    t->expected[o] = (assay_expected){NULL, NULL};
  }
  free(t->seen.v_needed);
  t->seen = (assay_seen){.v_needed = NULL};
}

bool trial_again(trial *t, case_result *result) {
  forget_reference(t);
  return compute_reference(t, result);
}

void trial_free(trial *t) {
  forget_reference(t);
  outputs_free(&t->initial);
  free(t->row_index);
  image_free(&t->first);
}

bool trial_has_law(const trial *t, const char *law) {
  return t->one->op->laws != NULL && strstr(t->one->op->laws, law) != NULL;
}

bool trial_rows_move(const trial *t) {
  const assay_op *op = t->one->op;
  return op->form == ASSAY_PLAIN && op->row_dim != NULL && trial_has_law(t, "permutation");
}

bool trial_takes(trial *t, const image *img, case_result *result) {
  assay_error error = {""};
  device_call on;
  if (!device_place(t, img, 0, &on, result)) return false;
  assay_status status = variant_supports(t->variant, &on.call, &error);
  if (status == ASSAY_OK) status = variant_workspace(t->variant, &on.call, &t->workspace_bytes, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(result);
  return status == ASSAY_OK && t->workspace_bytes >= 0;
}
