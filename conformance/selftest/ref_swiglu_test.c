/* ref_swiglu_test.c: what swiglu accepts in place of the expected value, where a row has a weight. */
#include <criterion/criterion.h>
#include <math.h>

#include "assay/variant.h"
#include "linear_fixture.h"

const assay_op *assay_op_swiglu(void);

Test(swiglu_weight, only_an_overflowed_product_may_be_infinite_or_nan) {
  static const assay_contract contract = {.exp_ulp = 2, .lanes = 1};
  const double inf = (double)INFINITY, nan = (double)NAN;
  const struct {
    double gate, up, w, got;
    bool accepted;
  } row[] = {{1e30, 1e30, 0, nan, true},       {1e30, 1e30, 0, inf, false},      {1e30, 1e30, 1e-30, inf, true},
             {1e30, 1e30, 1e-30, -inf, false}, {1e30, -1e30, 1e-30, -inf, true}, {1e30, 1e30, -1e-30, -inf, true},
             {1e30, 1e30, 1e-30, nan, false},  {1e30, 1e30, 1e-30, 1e30, false}, {1e15, 1e15, 0, nan, false},
             {1e15, 1e15, 0.5, inf, false},    {nan, 1, 0.5, inf, false},        {inf, 1, 0.5, nan, false},
             {inf, 1, 0.5, -inf, false},       {1, nan, 0, inf, false},          {-1e30, 1e30, 0, nan, false}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    linear_call c;
    linear_open(&c, assay_op_swiglu());
    linear_tensor(&c, "x", ASSAY_F32, 0, 1, 2, 0);
    linear_tensor(&c, "w", ASSAY_F32, 0, 1, 0, 0);
    linear_tensor(&c, "y", ASSAY_F32, 0, 1, 1, 0);
    linear_set(&c, "x", 0, row[i].gate);
    linear_set(&c, "x", 1, row[i].up);
    linear_set(&c, "w", 0, row[i].w);
    cr_expect_eq(c.op->accepts(&c.call, &contract, 0, 0, row[i].got), row[i].accepted, "%g %g %g: %g", row[i].gate,
                 row[i].up, row[i].w, row[i].got);
    linear_close(&c);
  }
}
