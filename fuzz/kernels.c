/* kernels.c: bytes become a small legal case of any operator, by the table of keys alone. The judge runs it in this
 * process. Coverage steers towards kernel code that no case has reached, and sanitizers and the judge see mistakes
 * there. A call that the operator itself refuses (sizes that do not go together, ids out of range) is no case. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/judge/judge.h"
#include "conformance/trial/trial.h"
#include "conformance/case/case.h"
#include "core/registry.h"
#include "target.h"

enum { MAX_REQUESTS = 3, MAX_LENGTH = 300, MAX_HEADS = 8, MAX_ELEMENTS = 1 << 15, MAX_FLOPS = 1 << 20, MAX_ROWS = 320 };

typedef struct input {
  const uint8_t *at;
  size_t left;
} input;

static unsigned take(input *in) {
  if (in->left == 0) return 0;
  --in->left;
  return *in->at++;
}

/* Smallest values, and of a plain operator's sizes also those around the widths of warps, blocks and tiles. */
static double size_of(const assay_case *one, const case_key *key, unsigned byte) {
  static const double wide[] = {16,  31,  32,  33,  48,  64,  65,  96,  127,  128,
                                129, 192, 256, 257, 320, 511, 512, 513, 1024, 2048};
  double value = key->min + (double)key->multiple * (byte % MAX_HEADS);
  if (one->op->form == ASSAY_PLAIN && key->store == STORE_DIM && byte >= 128) {
    value = wide[byte % (sizeof wide / sizeof wide[0])];
    value -= (double)((int64_t)value % key->multiple);
  }
  return value;
}

/* 0 leaves the fallback; else one of the small values of the key. */
static void set_key(assay_case *one, const case_key *key, unsigned byte) {
  static const double reals[] = {0, 0.125, 0.25, 0.5, 1, 2, 16, -1};
  double value = key->fallback;
  if (byte == 0) return;
  switch (key->kind) {
  case KEY_BOOL:
    value = byte & 1;
    break;
  case KEY_ENUM:
    for (double names = 1; names <= (double)(byte % 8); ++names)
      if (key_name_of(key, (int64_t)names) != NULL) value = names;
    break;
  case KEY_INTEGER:
    value = size_of(one, key, byte);
    break;
  case KEY_REAL:
    value = reals[byte % (sizeof reals / sizeof reals[0])];
    break;
  case KEY_TEXT:
  case KEY_SEED:
  case KEY_LENGTHS:
  case KEY_SHARE:
    return;
  }
  if (key->kind != KEY_ENUM && key->kind != KEY_BOOL && (value < key->min || value > key->max)) return;
  key_set(one, key, value);
}

static bool same(const char *a, const char *b) {
  return strcmp(a, b) == 0;
}

static bool make_lists(assay_case *one, input *in) {
  if (one->op->form == ASSAY_PLAIN) return case_plain_lists(one, NULL) == ASSAY_OK;
  const int32_t batch = 1 + (int32_t)(take(in) % MAX_REQUESTS);
  one->batch = batch;
  one->kv_len = calloc((size_t)batch, sizeof *one->kv_len);
  one->new_len = calloc((size_t)batch, sizeof *one->new_len);
  one->share_with = calloc((size_t)batch, sizeof *one->share_with);
  one->share_tokens = calloc((size_t)batch, sizeof *one->share_tokens);
  if (one->kv_len == NULL || one->new_len == NULL || one->share_with == NULL || one->share_tokens == NULL) return false;
  for (int32_t i = 0; i < batch; ++i) {
    const int32_t length = (int32_t)((take(in) | (take(in) & 1u) << 8) % MAX_LENGTH);
    const int32_t added = (int32_t)(take(in) % 8);
    one->kv_len[i] = length;
    one->share_with[i] = -1;
    one->new_len[i] = one->mode == MODE_DECODE ? 1 : one->mode == MODE_PREFILL ? length % 24 : added;
    if (one->mode == MODE_PREFILL) one->kv_len[i] = one->new_len[i];
    if (one->mode == MODE_CHUNKED && one->new_len[i] == 0) one->new_len[i] = 1;
    if (one->new_len[i] > one->kv_len[i] && one->mode != MODE_DECODE) one->kv_len[i] = one->new_len[i];
  }
  return true;
}

/* Descriptors are what people have: the case goes through one. */
static bool through_text(assay_case *one, assay_case *parsed) {
  static char text[CASE_MAX_LINE];
  assay_error error = {""};
  memset(parsed, 0, sizeof *parsed);
  return case_print(one, text, sizeof text, &error) == ASSAY_OK && case_parse(text, parsed, &error) == ASSAY_OK;
}

/* Small, and nothing that the operator refuses or the reference cannot admit. */
static bool is_legal(assay_case *one, const assay_variant *variant) {
  const assay_seen nothing = {.visible_keys = 0};
  trial t = {.one = one, .variant = variant};
  case_result result = {.verdict = VERDICT_PASS};
  assay_error error = {""};
  if (one->op->form == ASSAY_PLAIN && shape_case_elements(one) > MAX_ELEMENTS) return false;
  bool legal = trial_shape(&t, &result) && one->op->check(&t.first.call, &error) == ASSAY_OK;
  /* A row may have a block of its own, and a block of 256 threads under sanitizers takes a millisecond. */
  if (legal && one->op->form == ASSAY_PLAIN) legal = t.first.rows <= MAX_ROWS;
  if (legal && one->op->form == ASSAY_PLAIN && one->op->cost != NULL)
    legal = one->op->cost(&t.first.call, &nothing).flops <= MAX_FLOPS;
  if (legal) legal = trial_reference(&t, &result);
  trial_free(&t);
  return legal;
}

static void judge(const assay_case *one, const assay_variant *variant) {
  static case_result result;
  static char text[CASE_MAX_LINE + 2048];
  assay_error error = {""};
  const assay_device *device = assay_device_find("simt");
  judge_case(one, variant, device, &result);
  if (verdict_is_good(result.verdict) || same(result.check, "admission")) return;
  (void)snprintf(text, sizeof text, "%s: %s: ", result.check, result.message);
  (void)case_print(one, text + strlen(text), sizeof text - strlen(text), &error);
  fuzz_found(verdict_name(result.verdict), text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  input in = {bytes, count};
  assay_case one, parsed;
  assay_error error = {""};
  static bool open;
  if (!open && assay_device_find("simt")->open(&error) != ASSAY_OK) fuzz_found("simt", error.text);
  open = true;
  const assay_op *op = assay_op_at((int32_t)take(&in) % assay_op_count());
  const unsigned which = take(&in);
  const assay_variant *variant = NULL;
  for (int32_t v = 0, n = 0; v < assay_variant_count(); ++v)
    if (same(assay_variant_at(v)->op, op->name) && same(assay_variant_at(v)->device, "simt") &&
        n++ <= (int32_t)which % 8)
      variant = assay_variant_at(v);
  if (variant == NULL) return 0;
  case_init(&one, op);
  (void)snprintf(one.variant, sizeof one.variant, "%s", variant->name);
  (void)snprintf(one.device, sizeof one.device, "simt");
  for (int32_t k = 0; k < key_count(op); ++k) {
    const case_key key = key_at(op, k);
    if (same(key.name, "section") || same(key.name, "break") || same(key.name, "argument") || same(key.name, "rows"))
      continue;
    set_key(&one, &key, take(&in));
  }
  one.seed = take(&in);
  if (make_lists(&one, &in) && case_check(&one, &error) == ASSAY_OK && through_text(&one, &parsed)) {
    if (is_legal(&parsed, variant)) judge(&parsed, variant);
    case_free(&parsed);
  }
  case_free(&one);
  return 0;
}
