/* choose.c: the variants and the cases that the options of a command choose. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "core/contract.h"
#include "core/registry.h"

enum { MOST_OPS = 64 }; /* operators of the registry */

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

/* Refuses the name of a list that is neither a file nor beside the suites, with those that are. */
static assay_status no_list(const char *word, const char *folder, assay_error *error) {
  char known[600] = "", near[CLI_NEAR];
  struct dirent **entry = NULL;
  const int count = scandir(folder, &entry, NULL, alphasort);
  for (int i = 0; i < count; ++i) {
    const char *dot = strrchr(entry[i]->d_name, '.');
    const size_t used = strlen(known);
    if (dot != NULL && strcmp(dot, ".txt") == 0)
      (void)snprintf(known + used, sizeof known - used, "%s%.*s", used > 0 ? ", " : "", (int)(dot - entry[i]->d_name),
                     entry[i]->d_name);
    free(entry[i]);
  }
  free(entry);
  return assay_fail(error, ASSAY_ERR_INPUT, "--list: found '%.200s'%s, allowed: a file%s%s", word,
                    cli_did_you_mean(word, known, near), known[0] != '\0' ? ", " : "", known);
}

assay_status cli_read_list(const char *word, char *path, size_t size, case_list *list, assay_error *error) {
  assay_error inner = {""};
  (void)snprintf(path, size, "%s", word);
  if (access(word, F_OK) != 0) {
    char folder[4096];
    (void)snprintf(folder, sizeof folder, "%s/../lists", cli_suites_dir());
    (void)snprintf(path, size, "%s/%s.txt", folder, word);
    if (strchr(word, '/') != NULL || access(path, F_OK) != 0) return no_list(word, folder, error);
  }
  const assay_status status = expand_list(path, list, &inner);
  return status == ASSAY_OK ? status : assay_fail(error, status, "--list: %s", inner.text);
}

assay_status cli_refuse_idle(const cli_options *options, const assay_op *const *op, int32_t count, assay_error *error) {
  for (int32_t i = 0; i < options->variants.count && count > 0; ++i) {
    const char *word = options->variants.item[i];
    const size_t length = strcspn(word, "=");
    char known[1200] = "";
    bool has = false;
    for (int32_t k = 0; k < count && !has; ++k) {
      const size_t used = strlen(known);
      has = strlen(op[k]->name) == length && strncmp(word, op[k]->name, length) == 0;
      (void)snprintf(known + used, sizeof known - used, "%s%s", k > 0 ? ", " : "", op[k]->name);
    }
    if (!has)
      return assay_fail(error, ASSAY_ERR_INPUT, "--variant: found operator '%.*s', which has no case here, allowed: %s",
                        (int)length, word, known);
  }
  return ASSAY_OK;
}

assay_status cli_refuse_idle_in(const cli_options *options, const case_list *list, assay_error *error) {
  const assay_op *op[MOST_OPS];
  int32_t count = 0;
  for (int64_t c = 0; c < list->count; ++c) {
    int32_t k = 0;
    while (k < count && op[k] != list->cases[c].op)
      ++k;
    if (k == count && count < MOST_OPS) op[count++] = list->cases[c].op;
  }
  return cli_refuse_idle(options, op, count, error);
}

bool cli_case_matches(const cli_options *options, const assay_case *one) {
  char id[192];
  if (options->section != NULL && strcmp(options->section, cli_section_name(one->section)) != 0) return false;
  cli_case_id(one, id, sizeof id);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return true;
}

/* Tells whether a run has the case. Without --section it has none of section bench. */
static bool case_chosen(const cli_options *options, const assay_case *one) {
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  if ((one->devices & bit) == 0 || (options->section == NULL && one->section == SECTION_BENCH)) return false;
  return cli_case_matches(options, one);
}

assay_status cli_cross(const cli_options *options, const case_list *list, assay_case **made, int64_t *count,
                       assay_error *error) {
  int64_t capacity = 0;
  *made = NULL;
  *count = 0;
  const assay_status idle = cli_refuse_idle_in(options, list, error);
  if (idle != ASSAY_OK) return idle;
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
