/* slack.c: see slack.h. */
#include "slack.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/contract.h"
#include "core/registry.h"

enum { MOST = 1024 }; /* as the registry */

typedef struct used {
  const assay_variant *variant;
  int64_t calibrated; /* cases that passed in the calibrated tier */
  double element, row, request;
  int64_t sizes, others; /* calls of another size (law batch), and those with other bits */
  int32_t first;         /* the least size with other bits */
} used;

struct slack {
  used row[MOST];
  int32_t count;
};

assay_status slack_open(slack **made, assay_error *error) {
  *made = calloc(1, sizeof **made);
  return *made != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "contracts: out of memory");
}

void slack_close(slack *all) {
  free(all);
}

static used *row_of(slack *all, const assay_case *one) {
  const assay_variant *v = assay_variant_find(one->op->name, one->variant, one->device);
  int32_t i = 0;
  while (i < all->count && all->row[i].variant != v)
    ++i;
  if (v == NULL || i == MOST) return NULL;
  if (i == all->count) all->row[all->count++] = (used){.variant = v};
  return &all->row[i];
}

static void raise_to(double *largest, double value) {
  if (value > *largest) *largest = value;
}

void slack_note(slack *all, const assay_case *one, const case_result *result) {
  used *u = row_of(all, one);
  if (u != NULL && result->batch_size > 0) {
    ++u->sizes;
    if (result->batch_differs && (u->others++ == 0 || result->batch_size < u->first)) u->first = result->batch_size;
  }
  if (u == NULL || one->tier == TIER_EXACT || result->verdict != VERDICT_PASS) return;
  ++u->calibrated;
  raise_to(&u->element, result->ratio_element);
  raise_to(&u->row, result->ratio_row);
  raise_to(&u->request, result->ratio_request);
}

/* Says whether the bits of a row change with its batch, where the contract does not promise that they stay. */
static void report_batch(const used *u, report *out) {
  char line[300];
  if (u->variant->contract.alone || u->sizes == 0) return;
  if (u->others == 0)
    (void)snprintf(line, sizeof line, "batch %s/%s: one class: the same bits in %lld calls of other sizes",
                   u->variant->op, u->variant->name, (long long)u->sizes);
  else
    (void)snprintf(line, sizeof line,
                   "batch %s/%s: several classes: other bits in %lld of %lld calls of other sizes, from size %d on",
                   u->variant->op, u->variant->name, (long long)u->others, (long long)u->sizes, u->first);
  report_line(out, line);
}

void slack_report(const slack *all, bool chosen, report *out) {
  for (int32_t i = 0; i < all->count; ++i) {
    const used *u = &all->row[i];
    report_batch(u, out);
    char contract[400], line[700];
    if (!chosen && assay_plugin_origin(u->variant) == NULL) continue;
    contract_text(&u->variant->contract, contract, sizeof contract);
    if (u->calibrated > 0)
      (void)snprintf(
          line, sizeof line,
          "contract %s/%s: %s; showed at most %.2f of an element's limit, %.2f of a row's, %.2f of a request's",
          u->variant->op, u->variant->name, contract, u->element, u->row, u->request);
    else
      (void)snprintf(line, sizeof line, "contract %s/%s: %s; no calibrated case passed", u->variant->op,
                     u->variant->name, contract);
    report_line(out, line);
  }
}
