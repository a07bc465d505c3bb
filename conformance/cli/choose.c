/* choose.c: the variants and the cases that the options of a command choose. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "core/contract.h"
#include "core/registry.h"

assay_status cli_check_variants(const cli_options *options, assay_error *error) {
  for (int32_t i = 0; i < options->variants.count; ++i) {
    const char *word = options->variants.item[i];
    const char *equals = strchr(word, '=');
    char op[64];
    (void)snprintf(op, sizeof op, "%.*s", (int)(equals - word), word);
    if (assay_op_find(op) == NULL) return cli_unknown_op("--variant", op, error);
    if (assay_variant_find(op, equals + 1, options->device) == NULL)
      return cli_unknown_variant("--variant", op, equals + 1, options->device, error);
  }
  return ASSAY_OK;
}

assay_status cli_check_contract(const assay_variant *v, assay_error *error) {
  assay_error inner = {""};
  const char *origin = assay_plugin_origin(v);
  const assay_status status = contract_check(&v->contract, &inner);
  if (status == ASSAY_OK) return ASSAY_OK;
  return assay_fail(error, status, "%s%svariant %s/%s: %s", origin != NULL ? origin : "", origin != NULL ? ": " : "",
                    v->op, v->name, inner.text);
}

bool cli_variant_chosen(const cli_options *options, const assay_variant *v) {
  if (strcmp(v->device, options->device) != 0) return false;
  bool named = false;
  for (int32_t i = 0; i < options->variants.count; ++i) {
    const char *word = options->variants.item[i];
    const char *equals = strchr(word, '=');
    const size_t length = (size_t)(equals - word);
    if (strlen(v->op) != length || strncmp(word, v->op, length) != 0) continue;
    named = true;
    if (strcmp(equals + 1, v->name) == 0) return true;
  }
  return !named;
}

assay_status cli_read_list(const char *word, char *path, size_t size, case_list *list, assay_error *error) {
  assay_error inner = {""};
  (void)snprintf(path, size, "%s", word);
  if (strchr(word, '/') == NULL && access(word, F_OK) != 0)
    (void)snprintf(path, size, "%s/../lists/%s.txt", cli_suites_dir(), word);
  const assay_status status = expand_list(path, list, &inner);
  return status == ASSAY_OK ? status : assay_fail(error, status, "--list: %s", inner.text);
}

static bool case_chosen(const cli_options *options, const assay_case *one) {
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  if ((one->devices & bit) == 0) return false;
  if (options->section != NULL ? strcmp(options->section, cli_section_name(one->section)) != 0
                               : one->section == SECTION_BENCH)
    return false;
  char id[192];
  cli_case_id(one, id, sizeof id);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return true;
}

assay_status cli_cross(const cli_options *options, const case_list *list, assay_case **made, int64_t *count,
                       assay_error *error) {
  int64_t capacity = 0;
  *made = NULL;
  *count = 0;
  for (int64_t i = 0; i < list->count; ++i) {
    if (!case_chosen(options, &list->cases[i])) continue;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, list->cases[i].op->name) != 0 || !cli_variant_chosen(options, variant)) continue;
      if (options->thin && case_leaves(&list->cases[i], variant->name)) continue;
      const assay_status status = cli_check_contract(variant, error);
      if (status != ASSAY_OK) return status;
      if (*count == capacity) {
        capacity = capacity > 0 ? 2 * capacity : 1024;
        assay_case *grown = realloc(*made, (size_t)capacity * sizeof **made);
        if (grown == NULL)
          return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory for %lld cases", (long long)capacity);
        *made = grown;
      }
      assay_case *one = &(*made)[(*count)++];
      *one = list->cases[i];
      (void)snprintf(one->variant, sizeof one->variant, "%s", variant->name);
      (void)snprintf(one->device, sizeof one->device, "%s", variant->device);
    }
  }
  return ASSAY_OK;
}

static const char *id_of(const void *context, int64_t index) {
  const case_list *list = context;
  static char id[256];
  if (index >= list->count) return NULL;
  cli_case_id(&list->cases[index], id, sizeof id);
  return id;
}

void cli_say_none(const cli_options *options, const case_list *list) {
  if (options->filters.count == 0 && options->section == NULL) return;
  for (int64_t i = 0; i < list->count; ++i)
    if (case_chosen(options, &list->cases[i])) return;
  cli_say_no_case(options, id_of, list);
}
