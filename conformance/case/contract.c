/* contract.c: see contract.h. */
#include "contract.h"

#include <stdlib.h>
#include <string.h>

#include "core/contract.h"

const assay_contract contract_usual = {
    .exp_ulp = 2, .qk_lanes = 1, .pv_lanes = 1, .lanes = 1, .zero_p_v = ASSAY_V_MULTIPLIED, .rescales = true};

/* Lists the fields of a contract. */
static void list_fields(char *text, size_t size) {
  const contract_field *field = NULL;
  size_t used = 0;
  for (int32_t i = 0; (field = contract_field_at(i)) != NULL && used < size; ++i)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", field->name);
}

assay_status contract_set(assay_contract *c, const char *key, const char *text, assay_error *error) {
  const contract_field *field = contract_field_find(key);
  char allowed[400], *end = NULL;
  list_fields(allowed, sizeof allowed);
  if (field == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "contract: found '%.60s', allowed: %s", key, allowed);
  if (text == NULL) return contract_field_set_text(c, field, "no number", error);
  if (field->kind == CONTRACT_FLAG && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
    return contract_field_set(c, field, text[0] == 't', error);
  const double number = strtod(text, &end);
  if (contract_is_text(field) || end == text || *end != '\0') return contract_field_set_text(c, field, text, error);
  return contract_field_set(c, field, number, error);
}
