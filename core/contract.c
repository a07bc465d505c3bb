/* contract.c: one table of the contract's fields, for registration, dumps, manifests and messages. */
#include "core/contract.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"

#define FIELD(field, is, largest, list, because)                                                                       \
  {                                                                                                                    \
    .name = #field, .kind = CONTRACT_##is, .offset = offsetof(assay_contract, field), .most = largest, .names = list,  \
    .why = because                                                                                                     \
  }

/* The largest believable value of each field. docs/judging.md has them as a table. */
static const contract_field fields[] = {
    FIELD(k, DTYPE, ASSAY_BF16, NULL, "kernels widen fp8 to 16 bits or f32"),
    FIELD(v, DTYPE, ASSAY_BF16, NULL, "kernels widen fp8 to 16 bits or f32"),
    FIELD(score, DTYPE, ASSAY_BF16, NULL, "scores are stored in 16 bits or f32"),
    FIELD(p, DTYPE, ASSAY_E5M2, NULL, "tensor cores take p in 8 bits"),
    FIELD(partial, DTYPE, ASSAY_BF16, NULL, "splits are stored in 16 bits or f32"),
    FIELD(exp_ulp, REAL, 0x1p16, NULL, "a function computed in bf16 is off by 2^-7 of its value"),
    FIELD(qk_lanes, COUNT, 1 << 20, NULL, "threads of a large grid"),
    FIELD(pv_lanes, COUNT, 1 << 20, NULL, "threads of a large grid"),
    FIELD(keys_per_split, COUNT, INT32_MAX, NULL, "the longest key axis"),
    FIELD(denominator_add, REAL, 0x1p-10, NULL, "a guard against division by 0 is a small part of a sum from 1 on"),
    FIELD(zero_p_v, CHOICE, ASSAY_V_SKIPPED_FOR_GROUP, "multiplied,skipped,skipped_for_group", "the last choice"),
    FIELD(run_to_run, FLAG, 1, NULL, "a promise"),
    FIELD(renumbering, FLAG, 1, NULL, "a promise"),
    FIELD(permutation, FLAG, 1, NULL, "a promise"),
    FIELD(lanes, COUNT, 1 << 20, NULL, "threads of a large grid"),
    FIELD(rotated, DTYPE, ASSAY_BF16, NULL, "q is stored in 16 bits or f32"),
    FIELD(alone, FLAG, 1, NULL, "a promise"),
    FIELD(cut, COUNT, 64, NULL, "Hopper adds 16 products at a time"),
    FIELD(ftz, FLAG, 1, NULL, "subnormal numbers are flushed or not"),
    FIELD(rescales, FLAG, 1, NULL, "a promise"),
    FIELD(p_step, REAL, 0x1p-9, NULL, "the least e4m3; no type of weights has a coarser step near 0"),
    FIELD(lse_base, CHOICE, ASSAY_LSE_BASE_2, "e,2", "the last choice"),
    FIELD(lse_empty, CHOICE, ASSAY_LSE_EMPTY_PLUS, "-inf,+inf", "the last choice"),
    FIELD(lse_sink, CHOICE, ASSAY_LSE_WITH_SINK, "without,with", "the last choice"),
    FIELD(state, DTYPE, ASSAY_BF16, NULL, "states are stored in 16 bits or f32"),
    FIELD(qk, DTYPE, ASSAY_BF16, NULL, "tensor cores take q and k in 16 bits"),
    FIELD(chunk, DTYPE, ASSAY_BF16, NULL, "tensor cores take a chunk's parts in 16 bits"),
    FIELD(gates, DTYPE, ASSAY_BF16, NULL, "gates are stored in 16 bits or f32"),
    FIELD(quotient, CHOICE, ASSAY_QUOTIENT_ANY, "divide,reciprocal,inverse_amax,any", "the last choice"),
    FIELD(stored_scale, CHOICE, ASSAY_STORED_INVERSE, "quotient,product,inverse", "the last choice"),
    FIELD(generator, CHOICE, ASSAY_GENERATOR_OWN, "philox,own", "the last choice"),
    FIELD(start, CHOICE, ASSAY_START_BIAS, "zero,bias", "the last choice"),
};

enum { FIELDS = sizeof fields / sizeof *fields };

const contract_field *contract_field_at(int32_t index) {
  return index >= 0 && index < FIELDS ? &fields[index] : NULL;
}

const contract_field *contract_field_find(const char *name) {
  for (int32_t i = 0; i < FIELDS; ++i)
    if (strcmp(fields[i].name, name) == 0) return &fields[i];
  return NULL;
}

/* A contract may come from code outside: its bytes need not be a bool or a value of the enum. */
double contract_get(const assay_contract *c, const contract_field *field) {
  const unsigned char *at = (const unsigned char *)c + field->offset;
  double real = 0;
  int32_t whole = 0;
  switch (field->kind) {
  case CONTRACT_FLAG:
    return *at;
  case CONTRACT_REAL:
    memcpy(&real, at, sizeof real);
    return real;
  case CONTRACT_DTYPE:
  case CONTRACT_COUNT:
  case CONTRACT_CHOICE:
    break;
  }
  memcpy(&whole, at, sizeof whole);
  return whole;
}

static bool is_believed(const contract_field *field, double value) {
  if (!(value >= 0 && value <= field->most)) return false;
  return field->kind == CONTRACT_REAL || floor(value) == value;
}

/* Writes name number `index` of a list with commas. */
static void name_at(const char *list, int32_t index, char *text, size_t size) {
  for (; index > 0 && *list != '\0'; --index) {
    list += strcspn(list, ",");
    list += *list == ',';
  }
  (void)snprintf(text, size, "%.*s", (int)strcspn(list, ","), list);
}

static void number_text(const contract_field *field, double value, char *text, size_t size) {
  const bool whole = value >= 0 && value <= field->most && floor(value) == value;
  if (field->kind == CONTRACT_DTYPE && whole)
    (void)snprintf(text, size, "%s", assay_dtype_name((assay_dtype)(int)value));
  else if (field->kind == CONTRACT_CHOICE && whole)
    name_at(field->names, (int32_t)value, text, size);
  else
    (void)snprintf(text, size, "%.17g", value);
  if (field->kind != CONTRACT_REAL) return;
  for (int digits = 1; digits < 17; ++digits) { /* the shortest form that is the same number */
    double again = 0;
    char shorter[40];
    (void)snprintf(shorter, sizeof shorter, "%.*g", digits, value);
    if (sscanf(shorter, "%lf", &again) != 1 || again < value || again > value) continue;
    (void)snprintf(text, size, "%s", shorter);
    return;
  }
}

/* Writes what is allowed: "0 to 65536", "none, f32, f16, bf16". */
static void allowed_text(const contract_field *field, char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  if (!contract_is_text(field)) {
    (void)snprintf(text, size, "%s from 0 to %.9g", field->kind == CONTRACT_REAL ? "a number" : "a whole number",
                   field->most);
    return;
  }
  for (int32_t i = 0; i <= (int32_t)field->most && used < size; ++i) {
    char name[40];
    number_text(field, i, name, sizeof name);
    used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", name);
  }
}

static assay_status refuse(const contract_field *field, const char *found, assay_error *error) {
  char allowed[200];
  allowed_text(field, allowed, sizeof allowed);
  return assay_fail(error, ASSAY_ERR_INPUT, "contract: %s: found %.60s, allowed %s (%s)", field->name, found, allowed,
                    field->why);
}

assay_status contract_field_set(assay_contract *c, const contract_field *field, double value, assay_error *error) {
  unsigned char *at = (unsigned char *)c + field->offset;
  char found[40];
  (void)snprintf(found, sizeof found, "%.9g", value);
  if (!is_believed(field, value)) return refuse(field, found, error);
  const bool flag = value > 0;
  const int32_t whole = field->kind == CONTRACT_REAL ? 0 : (int32_t)value;
  if (field->kind == CONTRACT_FLAG)
    memcpy(at, &flag, sizeof flag);
  else if (field->kind == CONTRACT_REAL)
    memcpy(at, &value, sizeof value);
  else
    memcpy(at, &whole, sizeof whole);
  return ASSAY_OK;
}

assay_status contract_field_set_text(assay_contract *c, const contract_field *field, const char *text,
                                     assay_error *error) {
  char name[40], quoted[64];
  for (int32_t i = 0; contract_is_text(field) && i <= (int32_t)field->most; ++i) {
    number_text(field, i, name, sizeof name);
    if (strcmp(name, text) == 0) return contract_field_set(c, field, i, error);
  }
  (void)snprintf(quoted, sizeof quoted, "'%.50s'", text);
  return refuse(field, quoted, error);
}

assay_status contract_check(const assay_contract *c, assay_error *error) {
  for (int32_t i = 0; i < FIELDS; ++i) {
    char found[40];
    const double value = contract_get(c, &fields[i]);
    if (is_believed(&fields[i], value)) continue;
    (void)snprintf(found, sizeof found, "%.9g", value);
    if (fields[i].kind == CONTRACT_DTYPE && value >= 0 && value < ASSAY_DTYPE_COUNT)
      (void)snprintf(found, sizeof found, "%s", assay_dtype_name((assay_dtype)(int)value));
    return refuse(&fields[i], found, error);
  }
  return ASSAY_OK;
}

bool contract_same(const assay_contract *a, const assay_contract *b) {
  for (int32_t i = 0; i < FIELDS; ++i) {
    const double x = contract_get(a, &fields[i]), y = contract_get(b, &fields[i]);
    if (!(x >= y && x <= y)) return false;
  }
  return true;
}

void contract_value(const assay_contract *c, const contract_field *field, char *text, size_t size) {
  number_text(field, contract_get(c, field), text, size);
}

bool contract_is_text(const contract_field *field) {
  return field->kind == CONTRACT_DTYPE || field->kind == CONTRACT_CHOICE;
}

void contract_text(const assay_contract *c, char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < FIELDS && used < size; ++i) {
    char value[40];
    if (!(contract_get(c, &fields[i]) > 0)) continue;
    contract_value(c, &fields[i], value, sizeof value);
    const bool flag = fields[i].kind == CONTRACT_FLAG;
    used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used > 0 ? ", " : "", fields[i].name,
                             flag ? "" : " ", flag ? "" : value);
  }
}
