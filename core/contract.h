/* contract.h: the fields of a contract by name, and the largest value of each that is believed. */
#ifndef ASSAY_CORE_CONTRACT_H
#define ASSAY_CORE_CONTRACT_H

#include <stdbool.h>
#include <stddef.h>

#include "assay/op.h"

typedef enum contract_kind {
  CONTRACT_DTYPE, /* a type; the number is that of the enum */
  CONTRACT_COUNT, /* a whole number */
  CONTRACT_REAL,
  CONTRACT_FLAG,
  CONTRACT_CHOICE /* one of `names`; the number is its index */
} contract_kind;

/* A field of assay_contract. Allowed are numbers from 0 to `most`. */
typedef struct contract_field {
  const char *name;
  contract_kind kind;
  size_t offset;
  double most;
  const char *names;
  const char *why; /* the reason for `most` */
} contract_field;

/* Return the fields in the order of the struct; NULL after the last, or where no field has the name. */
const contract_field *contract_field_at(int32_t index);
const contract_field *contract_field_find(const char *name);

double contract_get(const assay_contract *c, const contract_field *field);
/* Sets a field. Refuses a value that is not believed, by the field's name: ASSAY_ERR_INPUT. */
assay_status contract_field_set(assay_contract *c, const contract_field *field, double value, assay_error *error);
/* Does the same by the name of a type or choice. */
assay_status contract_field_set_text(assay_contract *c, const contract_field *field, const char *text,
                                     assay_error *error);
/* Refuses a contract with a field that is not believed, by the field's name. */
assay_status contract_check(const assay_contract *c, assay_error *error);
/* Tells whether two contracts have the same fields. */
bool contract_same(const assay_contract *a, const assay_contract *b);
/* Writes a value so that contract_field_set or contract_field_set_text gives the same bits: "bf16", "skipped", "0.5",
 * "1". */
void contract_value(const assay_contract *c, const contract_field *field, char *text, size_t size);
/* Tells whether the value is written as text. */
bool contract_is_text(const contract_field *field);
/* Writes "p bf16, exp_ulp 2, lanes 4": the fields that are not 0, and the promises by their names alone. */
void contract_text(const assay_contract *c, char *text, size_t size);

#endif
