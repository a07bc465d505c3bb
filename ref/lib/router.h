/* router.h: the draws of a router's logits, which keep choices away from where rounding could tip them. */
#ifndef ASSAY_REF_ROUTER_H
#define ASSAY_REF_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/op.h"

enum { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_SQRT_SOFTPLUS };
enum { ROUTER_MOST_EXPERTS = 1024, ROUTER_MOST_CHOSEN = 32 };

/* The parameters of a router. */
typedef struct router {
  int64_t E, k, groups, topk_groups;
  int32_t score;
  bool on_logits, renormalise, biased;
  double floor, route_scale;
} router;

/* Chooses the experts of a row by b [E]: the k largest of the kept groups in descending order, ties to the lower id.
 * kept [groups] tells which groups stay. */
void router_choose(const router *r, const double *b, bool *kept, int64_t *ids);

/* Returns the score of a group: the sum of its two largest b, or without bias its largest b. */
double router_group_score(const router *r, const double *b, int64_t group);

/* Fills the logits of `rows` rows: numbers that the type of x holds. bias [E] may be NULL. */
void router_fill(const assay_fill *fill, const router *r, const double *bias, double *x, int64_t rows,
                 assay_dtype dtype);

#endif
