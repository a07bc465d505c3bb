/* routes_test.c: which choices of a router in groups are allowed beside f64's. Groups may change places where their
 * scores are near, also a group of which no expert is among the best. Others may not. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "conformance/models/taps.h"
#include "model_small.h"

enum { E = 16, K = 3 };

static assay_error error;

/* Judges one row: four groups of four experts, of which two groups are kept, by scores (sigmoids) and no bias. The
 * reference's logits are off by `error_of` in mirror mode. Returns whether the choice is allowed. */
static bool allowed(const double score[E], double error_of, double a, double b, double third, routes_verdict *v) {
  assay_model_config c = small_model(10);
  assay_model_weights w;
  double exact[E], mirror[E], ids[K] = {a, b, third};
  c.experts = E;
  c.experts_used = K;
  c.groups = 4;
  c.groups_used = 2;
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK);
  for (int e = 0; e < E; ++e) {
    exact[e] = log(score[e] / (1 - score[e]));
    mirror[e] = exact[e] + (e % 2 == 0 ? error_of : -error_of);
  }
  model_tap of_exact[2] = {{.rows = 1, .width = E, .value = exact}, {.rows = 1, .width = K, .value = ids}};
  model_tap of_mirror[2] = {{.rows = 1, .width = E, .value = mirror}, {.rows = 1, .width = K, .value = ids}};
  model_tap of_device[2] = {{.rows = 1, .width = E, .value = mirror}, {.rows = 1, .width = K, .value = ids}};
  model_tap *const all[] = {of_exact, of_mirror, of_device};
  for (int i = 0; i < 3; ++i) {
    (void)snprintf(all[i][0].name, sizeof all[i][0].name, "layers.1.router");
    (void)snprintf(all[i][1].name, sizeof all[i][1].name, "layers.1.router.ids");
  }
  const model_record x = {.tap = of_exact, .count = 2}, m = {.tap = of_mirror, .count = 2},
                     d = {.tap = of_device, .count = 2};
  routes_check(&c, &w, &x, &m, &d, v);
  assay_model_weights_free(&w);
  return v->wrong[0] == '\0';
}

/* Group 0 is kept. Groups 1 and 2 have sums of 0.9 and 0.8995, and group 3 has 0.5. The third expert in f64 is the
 * first of group 1, which is number 4. */
static const double shown[E] = {0.95, 0.94, 0.3, 0.1, 0.7, 0.2, 0.1, 0.1, 0.4505, 0.449, 0.1, 0.1, 0.3, 0.2, 0.1, 0.1};

Test(routes, the_same_choice) {
  routes_verdict v;
  cr_expect(allowed(shown, 0.001, 0, 1, 4, &v), "%s", v.wrong);
  cr_expect_eq(v.rows, 1);
  cr_expect_eq(v.differ, 0);
}

/* The router keeps group 2 in place of group 1, and the third expert is group 2's. */
Test(routes, groups_change_places) {
  routes_verdict v;
  cr_expect(allowed(shown, 0.001, 0, 1, 8, &v), "%s", v.wrong);
  cr_expect(!allowed(shown, 0.0001, 0, 1, 8, &v), "the sums are further apart than the error");
}

/* Likewise, but group 0 has a third expert that is better than those of group 2. */
static const double hidden[E] = {0.95, 0.94, 0.5, 0.1, 0.7, 0.2, 0.1, 0.1, 0.4505, 0.449, 0.1, 0.1, 0.3, 0.2, 0.1, 0.1};

Test(routes, a_group_without_a_chosen_expert) {
  routes_verdict v;
  cr_expect(allowed(hidden, 0.001, 0, 1, 2, &v), "%s", v.wrong);
  cr_expect_eq(v.differ, 1);
  cr_expect(!allowed(hidden, 0.0001, 0, 1, 2, &v), "the sums are further apart than the error");
  cr_expect_not_null(strstr(v.wrong, "choice 2: found expert 2 for 4"), "%s", v.wrong);
}

Test(routes, what_is_no_choice) {
  routes_verdict v;
  cr_expect(!allowed(shown, 0.001, 0, 1, 12, &v), "group 3 is far");
  cr_expect(!allowed(shown, 0.001, 0, 1, 5, &v), "expert 5 is far in its group");
  cr_expect_not_null(strstr(v.wrong, "choice 2: found expert 5 for 4"), "%s", v.wrong);
  cr_expect(!allowed(shown, 0.001, 0, 1, 2, &v), "expert 2 is worse than those of groups 1 and 2");
  cr_expect(!allowed(hidden, 0.001, 0, 1, 3, &v), "expert 3 is worse than expert 2");
}
