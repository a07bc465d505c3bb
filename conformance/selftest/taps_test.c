/* taps_test.c: how far a stage of a model may be off, and which stages of several steps are compared. */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/models/taps.h"
#include "model_small.h"

enum { WIDTH = 4 };

/* Returns the share of what is allowed for values near 1, with an error of the mirror and one of the device. */
static double share_of(assay_dtype type, double depth, double of_mirror, double of_device) {
  assay_model_config c = small_model(1);
  double exact[WIDTH] = {1, -1, 1, -1}, mirror[WIDTH], device[WIDTH], ratio = 0, found = 0;
  c.act_dtype = c.kv_dtype = type;
  for (int i = 0; i < WIDTH; ++i) {
    mirror[i] = exact[i] + of_mirror;
    device[i] = exact[i] + of_device;
  }
  (void)taps_within(&c, depth, exact, mirror, device, WIDTH, &ratio, &found);
  return ratio;
}

Test(taps, small_errors_have_a_floor) {
  cr_expect(share_of(ASSAY_F32, 1, 2e-8, 5e-7) < 1);
  cr_expect(share_of(ASSAY_F32, 1, 2e-8, 7e-7) > 1);
  cr_expect(share_of(ASSAY_F32, 2, 2e-8, 7e-7) < 1, "two layers");
}

Test(taps, errors_that_grow_take_the_floor_of_f32_with_them) {
  cr_expect(share_of(ASSAY_F32, 1, 1e-6, 6.4e-6) < 1);
  cr_expect(share_of(ASSAY_F32, 1, 1e-6, 6.6e-6) > 1);
  cr_expect(share_of(ASSAY_BF16, 1, 1e-3, 1.4e-3) < 1);
  cr_expect(share_of(ASSAY_BF16, 1, 1e-3, 1.6e-3) > 1, "a store of 16 bits hides the sums inside");
}

static model_tap tap(const char *name, double *value, int64_t rows) {
  model_tap t = {.rows = rows, .width = 1, .value = value};
  (void)snprintf(t.name, sizeof t.name, "%s", name);
  return t;
}

/* Two steps: the device stores layers.0.mlp.up in the first alone. */
Test(taps, stages_that_a_step_does_not_store_are_left_out_of_the_reference) {
  assay_model_config c = small_model(1);
  double right[3] = {1, 2, 3}, wrong[3] = {1, 2, 4};
  for (int broken = 0; broken < 2; ++broken) {
    model_record pooled[3] = {{.tap = NULL}, {.tap = NULL}, {.tap = NULL}};
    for (int step = 0; step < 2; ++step) {
      model_tap all[3] = {tap("layers.0.mlp.up", right, 3), tap("layers.0.mlp.act", right, 3)};
      model_tap some[2] = {tap("layers.0.mlp.up", broken ? wrong : right, 3), tap("layers.0.mlp.act", right, 3)};
      const model_record reference = {.tap = all, .count = 2};
      const model_record device = {.tap = some + step, .count = 2 - step};
      record_pool(&reference, &device, false, &pooled[0]);
      record_pool(&reference, &device, false, &pooled[1]);
      record_pool(&device, &device, false, &pooled[2]);
    }
    taps_verdict v;
    taps_compare(&c, &pooled[0], &pooled[1], &pooled[2], &v);
    cr_expect_eq(v.stages, 2);
    cr_expect_eq(v.values, 9, "three values of one step, six of two");
    cr_expect_eq(v.first[0] != '\0', broken != 0, "%s", v.first);
    for (int i = 0; i < 3; ++i)
      record_free(&pooled[i]);
  }
}
