/* simt_registry_order_test.c: where variants stand, which is what a forward pass takes first
 * (include/assay/strategies.def). */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/builtin.h"
#include "core/registry_add.h"

static assay_error error;

static void fill(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(registry_order, .init = fill, .timeout = 60);

static int32_t place(const char *op, const char *name) {
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (strcmp(v->op, op) == 0 && strcmp(v->name, name) == 0 && strcmp(v->device, "simt") == 0) return i;
  }
  cr_assert_fail("%s/%s: no such variant", op, name);
  return -1;
}

static void expect_order(const char *op, const char *first, const char *second) {
  cr_expect_lt(place(op, first), place(op, second), "%s: %s stands behind %s", op, first, second);
}

Test(registry_order, attention_on_cuda_cores) {
  const char *const ops[] = {"gate_attention", "softmax_attention"};
  for (int i = 0; i < 2; ++i) {
    const char *const order[] = {"mma", "key_lanes", "split_keys", "query_tile", "decode_rows", "prefill_as_decode"};
    for (int n = 0; n + 1 < (int)(sizeof order / sizeof *order); ++n)
      expect_order(ops[i], order[n], order[n + 1]);
  }
}

Test(registry_order, right_behind_and_nobody_lost) {
  const int32_t count = assay_variant_count();
  const int32_t neighbour = place("gate_attention", "mma") - 1;
  const char *const before = assay_variant_at(neighbour)->name;
  cr_assert_eq(assay_registry_put_behind("gate_attention", "stream", "mma", "simt", &error), ASSAY_OK);
  cr_expect_eq(place("gate_attention", "stream"), place("gate_attention", "mma") + 1, "downwards");
  cr_assert_eq(assay_registry_put_behind("gate_attention", "prefill_as_decode", "stream", "simt", &error), ASSAY_OK);
  cr_expect_eq(place("gate_attention", "prefill_as_decode"), place("gate_attention", "stream") + 1, "upwards");
  cr_expect_eq(assay_variant_count(), count);
  for (int32_t i = 0; i < count; ++i) {
    const assay_variant *v = assay_variant_at(i);
    cr_expect_eq(assay_variant_find(v->op, v->name, v->device), v);
    for (int32_t j = 0; j < i; ++j)
      cr_expect_neq(assay_variant_at(j), v, "%s/%s stands twice", v->op, v->name);
  }
  cr_expect_str_eq(assay_variant_at(place("gate_attention", "mma") - 1)->name, before);
}

Test(registry_order, unknown_names) {
  const int32_t before = place("gate_attention", "mma");
  cr_expect_eq(assay_registry_put_behind("gate_attention", "no_such", "mma", "simt", &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "gate_attention/no_such: unknown for simt") != NULL, "%s", error.text);
  cr_expect_eq(assay_registry_put_behind("gate_attention", "mma", "no_such", "simt", &error), ASSAY_ERR_INPUT);
  cr_expect(strstr(error.text, "gate_attention/no_such: unknown for simt") != NULL, "%s", error.text);
  cr_expect_eq(assay_registry_put_behind("gate_attention", "stream", "mma", "nowhere", &error), ASSAY_ERR_INPUT);
  cr_expect_eq(place("gate_attention", "mma"), before);
}
