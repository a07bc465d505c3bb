/* contract_test.c: every field of a contract has a name and a bound, survives a dump, and is read once. */
#include <criterion/criterion.h>
#include <math.h>

#include "core/contract.h"
#include "core/json.h"
#include "core/calls.h"
#include "core/registry.h"
#include "fake.h"

static assay_error error;

/* The table has every byte of the struct, except those between the fields. */
Test(contract, the_table_has_every_field) {
  static const size_t size[] = {sizeof(assay_dtype), sizeof(int32_t), sizeof(double), sizeof(bool),
                                sizeof(assay_zero_p_v)};
  unsigned char covered[sizeof(assay_contract)] = {0};
  const contract_field *field = NULL;
  size_t last = 0, bare = 0;
  for (int32_t i = 0; (field = contract_field_at(i)) != NULL; ++i) {
    cr_expect(i == 0 || field->offset > last, "%s: the order is that of the struct", field->name);
    last = field->offset;
    for (size_t b = 0; b < size[field->kind]; ++b)
      ++covered[field->offset + b];
    cr_expect_eq(contract_field_find(field->name), field);
    cr_expect_gt(field->most, 0);
  }
  for (size_t b = 0; b < sizeof covered; ++b) {
    cr_expect_leq(covered[b], 1);
    bare += covered[b] == 0;
  }
  /* A new field of one byte may fit between two others: it must be counted here. */
  cr_expect_eq(bare, 22, "%zu bytes belong to no field: is a field missing?", bare);
  cr_expect_null(contract_field_find("exp"));
}

Test(contract, what_is_not_believed_is_named) {
  const contract_field *field = NULL;
  for (int32_t i = 0; (field = contract_field_at(i)) != NULL; ++i) {
    assay_contract c = {.qk_lanes = 1};
    const double above = field->kind == CONTRACT_REAL ? field->most * 1.0000001 : field->most + 1;
    const double bad[] = {above, -1, (double)NAN, (double)INFINITY, 0.5};
    cr_expect_eq(contract_field_set(&c, field, field->most, &error), ASSAY_OK, "%s", error.text);
    cr_expect_eq(contract_check(&c, &error), ASSAY_OK, "%s", error.text);
    cr_expect_eq(contract_get(&c, field), field->most);
    for (int b = 0; b < (field->kind == CONTRACT_REAL ? 4 : 5); ++b) {
      error.text[0] = 0;
      assay_contract kept = c;
      cr_expect_eq(contract_field_set(&c, field, bad[b], &error), ASSAY_ERR_INPUT, "%s: %g", field->name, bad[b]);
      cr_expect_not_null(strstr(error.text, field->name), "%s", error.text);
      cr_expect_not_null(strstr(error.text, "allowed"), "%s", error.text);
      cr_expect(contract_same(&c, &kept));
    }
    error.text[0] = 0;
    /* As it lies in the memory of a plug-in. */
    const int32_t whole = (int32_t)(field->most < INT32_MAX ? field->most + 1 : -1);
    if (field->kind == CONTRACT_REAL)
      memcpy((unsigned char *)&c + field->offset, &above, sizeof above);
    else if (field->kind == CONTRACT_FLAG)
      ((unsigned char *)&c)[field->offset] = 2;
    else
      memcpy((unsigned char *)&c + field->offset, &whole, sizeof whole);
    cr_expect_eq(contract_check(&c, &error), ASSAY_ERR_INPUT, "%s", field->name);
    cr_expect_not_null(strstr(error.text, field->name), "%s", error.text);
  }
}

/* A value as it is written gives the same bits, for numbers without a short form too. */
Test(contract, values_survive_their_text) {
  const contract_field *field = NULL;
  for (int32_t i = 0; (field = contract_field_at(i)) != NULL; ++i) {
    const double tried[] = {field->most, field->kind == CONTRACT_REAL ? field->most / 3 : 1, 0};
    for (int k = 0; k < 3; ++k) {
      assay_contract a = {.exp_ulp = 1}, b = {.exp_ulp = 1};
      char text[40];
      cr_assert_eq(contract_field_set(&a, field, tried[k], &error), ASSAY_OK, "%s", error.text);
      contract_value(&a, field, text, sizeof text);
      const assay_status status = contract_is_text(field) ? contract_field_set_text(&b, field, text, &error)
                                                          : contract_field_set(&b, field, strtod(text, NULL), &error);
      cr_assert_eq(status, ASSAY_OK, "%s", error.text);
      cr_expect(contract_same(&a, &b), "%s: %s", field->name, text);
    }
  }
  assay_contract c = {.p = ASSAY_BF16, .exp_ulp = 2, .lanes = 4, .run_to_run = true, .zero_p_v = ASSAY_V_SKIPPED};
  char text[200];
  contract_text(&c, text, sizeof text);
  cr_expect_str_eq(text, "p bf16, exp_ulp 2, zero_p_v skipped, run_to_run, lanes 4");
}

/* ---- what a variant gets to see --------------------------------------------------------------------------- */

static const assay_op *seen_op;

static assay_status look(const assay_call *call, assay_error *why) {
  (void)why;
  seen_op = call->op;
  return ASSAY_OK;
}
static assay_status look_at_workspace(const assay_call *call, int64_t *bytes, assay_error *why) {
  *bytes = 0;
  return look(call, why);
}
static assay_status look_at_launch(const assay_call *call, assay_env *env, assay_error *why) {
  (void)env;
  return look(call, why);
}

/* No call of a variant has an operator that can be asked for the right results. */
Test(contract, a_variant_cannot_ask_the_reference) {
  assay_variant v = fake_variant;
  v.supports = look;
  v.workspace = look_at_workspace;
  v.launch = look_at_launch;
  fake_register();
  assay_op other = fake_op; /* one that is not registered */
  const assay_op *const ops[] = {&fake_op, &other};
  for (int o = 0; o < 2; ++o)
    for (int k = 0; k < 3; ++k) {
      const assay_call call = {ops[o], NULL, NULL};
      int64_t bytes = 0;
      seen_op = NULL;
      const assay_status status = k == 0   ? variant_supports(&v, &call, &error)
                                  : k == 1 ? variant_workspace(&v, &call, &bytes, &error)
                                           : variant_launch(&v, &call, NULL, &error);
      cr_assert_eq(status, ASSAY_OK, "%s", error.text);
      cr_assert_not_null(seen_op);
      cr_expect(seen_op->reference == NULL && seen_op->spoil == NULL && seen_op->accepts == NULL);
      cr_expect(seen_op->args == ops[o]->args && seen_op->params == ops[o]->params);
    }
  cr_expect_not_null(fake_op.reference);
  error.text[0] = 0;
  v.contract.exp_ulp = 1e9;
  const assay_call call = {&fake_op, NULL, NULL};
  cr_expect_eq(variant_supports(&v, &call, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "exp_ulp: found 1e+09"), "%s", error.text);
}
