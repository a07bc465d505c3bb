/* cut.c: the law `cut`: a request that is cut in two gives the same rows and the same state. Its first rows run in a
 * call that holds nothing else. Its other rows run in a second call, which begins with the state of the first. Requests
 * with keys in a cache have no state: the first call sees fewer keys, and a request of one row runs alone. The bits are
 * the same where the contract has `alone` and no `chunk`. Elsewhere the results lie within the tier's limits. A state
 * that is rounded where it is written is not asked, because the first call rounds it once more. */
#include <stdio.h>
#include <string.h>

#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "core/calls.h"
#include "core/dtype.h"
#include "laws_internal.h"

static int32_t arg_of(const trial *t, const char *name) {
  for (int32_t i = 0; i < t->one->op->arg_count; ++i)
    if (strcmp(t->one->op->args[i].name, name) == 0) return i;
  return -1;
}

static const int32_t *integers_of(const trial *t, const char *name) {
  const int32_t arg = arg_of(t, name);
  return (const int32_t *)(const void *)(t->first.host + t->first.extent[arg].offset + t->first.bias[arg]);
}

static int32_t rows_of_requests(const trial *t) {
  return arg_of(t, "cu") >= 0 ? arg_of(t, "cu") : arg_of(t, "cu_q");
}

static int64_t requests_of(const trial *t) {
  return t->first.arg[rows_of_requests(t)].shape[0] - 1;
}

static bool has_state(const trial *t) {
  return arg_of(t, "state") >= 0;
}

/* The request that is cut: rows first to first + rows - 1, of which the first call has `before`. */
typedef struct cut_request {
  int64_t first, rows, before, number;
  int32_t slot, fresh; /* with a state */
  int32_t keys;        /* without: those of the whole request */
} cut_request;

/* Draws where a request of a cache is cut. A part that would have less than no keys is not cut off. */
static void cut_keys(const trial *t, uint64_t random, cut_request *c) {
  c->keys = integers_of(t, "kv_len")[c->number];
  c->before = 1 + (int64_t)(random % (uint64_t)c->rows);
  if (c->keys < c->rows - c->before) c->before = c->rows;
}

/* Draws a request with rows; with a state it needs a slot and two rows. Returns false where there is none. */
static bool choose(const trial *t, cut_request *c) {
  const int32_t *cu = integers_of(t, t->one->op->args[rows_of_requests(t)].name);
  const int64_t B = requests_of(t);
  const uint64_t random = logical_hash(t->one, STREAM_CUT);
  for (int64_t i = 0; i < B; ++i) {
    const int64_t b = (i + (int64_t)(random % (uint64_t)B)) % B, rows = cu[b + 1] - cu[b];
    *c = (cut_request){.first = cu[b], .rows = rows, .number = b};
    if (has_state(t)) {
      c->slot = integers_of(t, "slots")[b];
      c->fresh = integers_of(t, "fresh")[b];
      if (c->slot < 0 || rows < 2) continue;
      c->before = 1 + (int64_t)((random >> 32) % (uint64_t)(rows - 1));
      return true;
    }
    if (rows < 1) continue;
    cut_keys(t, random >> 32, c);
    return true;
  }
  return false;
}

/* A state must be stored as it is: in f32, or as copies of rows. */
bool cut_applies(const trial *t) {
  cut_request c;
  if (!trial_has_law(t, "cut") || rows_of_requests(t) < 0 || requests_of(t) < 1) return false;
  if (!has_state(t)) return arg_of(t, "kv_len") >= 0 && arg_of(t, "table") >= 0 && choose(t, &c);
  const bool whole = t->first.arg[arg_of(t, "state")].dtype == ASSAY_F32 || t->one->op->copies != NULL;
  return whole && arg_of(t, "slots") >= 0 && arg_of(t, "fresh") >= 0 && choose(t, &c);
}

/* Small device memory for the numbers of one request, of each call: cu [2], then slots [1] and fresh [1], or kv_len
 * [1]. */
typedef struct numbers {
  unsigned char *memory;
} numbers;

enum { APART = 256 };

static bool put_number(const trial *t, const numbers *n, int place, const int32_t *value, int64_t count,
                       case_result *result) {
  assay_error error = {""};
  return device_status(t->device->upload(n->memory + place * APART, value, count * (int64_t)sizeof *value, &error),
                       "upload of a cut", false, &error, result);
}

/* Gives an argument one number of a request. */
static void take_number(const trial *t, const char *name, unsigned char *from, assay_tensor *arg) {
  assay_tensor *const to = &arg[arg_of(t, name)];
  to->shape[0] = 1;
  to->data = from;
}

/* Makes the call of rows first to first + count - 1 as one request. Its numbers begin at place `place`. */
static void fill_call(const trial *t, const device_call *on, const cut_request *c, const numbers *n, int place,
                      int64_t first, int64_t count, assay_tensor *arg) {
  const assay_op *op = t->one->op;
  memcpy(arg, on->arg, sizeof on->arg);
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (arg[i].data == NULL || strncmp(op->args[i].shape, "N,", 2) != 0) continue;
    arg[i].data = (unsigned char *)arg[i].data + first * arg[i].stride[0] * assay_dtype_size(arg[i].dtype);
    arg[i].shape[0] = count;
  }
  assay_tensor *const cu = &arg[rows_of_requests(t)];
  cu->shape[0] = 2;
  cu->data = n->memory + place * APART;
  if (has_state(t)) {
    take_number(t, "slots", n->memory + (place + 1) * APART, arg);
    take_number(t, "fresh", n->memory + (place + 2) * APART, arg);
    return;
  }
  const assay_tensor *table = &on->arg[arg_of(t, "table")];
  take_number(t, "kv_len", n->memory + (place + 1) * APART, arg);
  take_number(t, "table", (unsigned char *)table->data + c->number * table->stride[0] * assay_dtype_size(table->dtype),
              arg);
}

/* Tells whether the variant takes the call, with no more workspace than the whole one has. */
static bool takes(const trial *t, const assay_call *call) {
  assay_error error = {""};
  int64_t bytes = 0;
  return variant_supports(t->variant, call, &error) == ASSAY_OK &&
         variant_workspace(t->variant, call, &bytes, &error) == ASSAY_OK && bytes <= t->workspace_bytes;
}

/* Puts the numbers of one part of the request where its call finds them. */
static bool put_numbers(const trial *t, const cut_request *c, const numbers *n, int part, case_result *result) {
  const int32_t after = (int32_t)(c->rows - c->before), none = 0;
  const int32_t cu[2] = {0, part == 0 ? (int32_t)c->before : after}, keys = c->keys - (part == 0 ? after : 0);
  const int place = 3 * part;
  if (!put_number(t, n, place, cu, 2, result)) return false;
  if (!has_state(t)) return put_number(t, n, place + 1, &keys, 1, result);
  return put_number(t, n, place + 1, &c->slot, 1, result) &&
         put_number(t, n, place + 2, part == 0 ? &c->fresh : &none, 1, result);
}

/* Runs the calls on the uploaded case: one if the first has all rows. *taken tells whether the variant takes them. */
static bool run_parts(const trial *t, const cut_request *c, const numbers *n, const device_call *on, bool *taken,
                      case_result *result) {
  const int parts = c->before < c->rows ? 2 : 1;
  assay_tensor arg[2][ASSAY_MAX_ARGS];
  assay_call call[2];
  bool good = true;
  *taken = true;
  for (int part = 0; part < parts && good; ++part) {
    const int64_t begin = part == 0 ? 0 : c->before, end = part == 0 ? c->before : c->rows;
    fill_call(t, on, c, n, 3 * part, c->first + begin, end - begin, arg[part]);
    call[part] = (assay_call){t->one->op, arg[part], on->call.param};
    *taken = *taken && takes(t, &call[part]);
    good = put_numbers(t, c, n, part, result);
  }
  for (int part = 0; part < parts && good && *taken; ++part) {
    assay_error error = {""};
    assay_env env = on->env;
    t->device->schedule(t->one->seed + (uint64_t)part);
    good = device_status(variant_launch(t->variant, &call[part], &env, &error), "launch of a part of a request", false,
                         &error, result);
  }
  return good;
}

/* Puts the rows and the state of the request into a copy of run 1's outputs. */
static void put_parts(const trial *t, const cut_request *c, const outputs *base, const outputs *got, outputs *mixed) {
  for (int32_t o = 0; o < t->count; ++o) {
    const trial_output *out = &t->output[o];
    const assay_tensor *arg = &t->first.arg[out->arg];
    const bool state = has_state(t) && out->arg == arg_of(t, "state");
    const int64_t all = out->rows * out->width * assay_dtype_size(out->dtype);
    const int64_t row = arg->shape[0] > 0 ? all / arg->shape[0] : 0;
    const int64_t first = state ? c->slot : c->first, count = state ? 1 : c->rows;
    memcpy(mixed->bits[o], base->bits[o], (size_t)all);
    memcpy(mixed->bits[o] + first * row, got->bits[o] + first * row, (size_t)(count * row));
  }
}

static bool judge(const trial *t, const cut_request *c, const outputs *base, const outputs *mixed,
                  case_result *result) {
  const assay_contract *k = &t->variant->contract;
  output_place first = {0, 0, 0};
  int64_t count = 0;
  char what[96];
  (void)snprintf(what, sizeof what, "in a call with %lld of a request's %lld rows, and a call with the others",
                 (long long)c->before, (long long)c->rows);
  if (!k->alone || !k->run_to_run || k->chunk != ASSAY_NONE) return rerun_within(t, mixed, "cut", what, result);
  if (values_equal(t, base, mixed, &first, &count)) return true;
  rerun_set_difference(t, base, mixed, first, count, "cut", what, result);
  return false;
}

bool cut_check(const trial *t, const outputs *base, case_result *result) {
  cut_request c;
  device_call on;
  assay_error error = {""};
  numbers n = {NULL};
  void *memory = NULL;
  outputs got = {{NULL}}, mixed = {{NULL}};
  const unsigned char *after = NULL;
  bool taken = false;
  (void)choose(t, &c);
  bool good = outputs_make(t, &got) && outputs_make(t, &mixed);
  if (!good) (void)verdict_no_memory(result);
  good = good && device_status(t->device->alloc(6 * APART, &memory, &error), "memory of a cut", false, &error, result);
  n.memory = memory;
  good = good && device_place(t, &t->first, 0, &on, result) && device_upload(t, &t->first, &on, result);
  on.launch_ms = 0;
  good = good && run_parts(t, &c, &n, &on, &taken, result);
  if (good && taken) {
    good = device_collect(t, &t->first, false, &on, &after, result);
    if (good) {
      outputs_gather(t, &t->first, after, &got);
      put_parts(t, &c, base, &got, &mixed);
      good = judge(t, &c, base, &mixed, result);
    }
    if (good) result_add_law(result, "cut");
  }
  if (memory != NULL) t->device->release(memory);
  outputs_free(&got);
  outputs_free(&mixed);
  return good;
}
