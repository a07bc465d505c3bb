/* simt_plain_test.cpp: how launchers read a call of a plain operator (gpu/lib/plain.h): shapes by the table's grammar,
 * and what is refused by name. Nothing is launched. */
#include <criterion/criterion.h>

#include "simt/cuda.h"

#include <initializer_list>

#include "lib/plain.h"

using namespace ASSAY_NS;

/* x [N, 2 I], w [I, C], cos [P, R / 2], first [N + 1], y [N, C + 3] in the type of x or f32. */
static const assay_dim dims[] = {{"N", 1, 100, 4, 1, ""}, {"I", 1, 64, 4, 1, ""}, {"C", 8, 64, 8, 8, ""},
                                 {"P", 1, 100, 4, 1, ""}, {"R", 2, 64, 8, 2, ""}, {"free", 0, 0, 0, 1, ""}};
static const assay_arg args[] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,2*I", "", true},
    {"w", ASSAY_IN, ASSAY_VALUES, false, "=x", "I,C", "", false},
    {"cos", ASSAY_IN, ASSAY_VALUES, true, "f32", "P,R/2", "", false},
    {"first", ASSAY_IN, ASSAY_VALUES, true, "i32", "N+1", "", false},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=x,f32", "N,C+3", "", true},
    {"extra", ASSAY_IN, ASSAY_VALUES, true, "=x", "free", "", false},
};
static const assay_param params[] = {{"eps", ASSAY_REAL, 0.25, 1, 0.5, nullptr, ""},
                                     {"count", ASSAY_INTEGER, 1, 9, 3, nullptr, ""}};

static assay_op the_op() {
  assay_op op = {};
  op.name = "sample";
  op.dims = dims;
  op.dim_count = 6;
  op.args = args;
  op.arg_count = 6;
  op.params = params;
  op.param_count = 2;
  op.form = ASSAY_PLAIN;
  return op;
}

alignas(16) static unsigned char memory[64];

static assay_tensor dense(assay_dtype dtype, std::initializer_list<int64_t> shape) {
  assay_tensor t = {};
  t.data = memory;
  t.dtype = dtype;
  for (const int64_t extent : shape)
    t.shape[t.rank++] = extent;
  int64_t step = 1;
  for (int32_t a = t.rank - 1; a >= 0; --a) {
    t.stride[a] = step;
    step *= t.shape[a];
  }
  return t;
}

struct sample {
  assay_op op = the_op();
  assay_tensor arg[6] = {dense(ASSAY_BF16, {5, 24}), dense(ASSAY_BF16, {12, 16}), dense(ASSAY_F32, {7, 4}),
                         dense(ASSAY_I32, {6}),      dense(ASSAY_F32, {5, 19}),   assay_tensor()};
  double param[2] = {0.5, 3};
  assay_error error = {""};
  plain_call plain = {};

  assay_status read() {
    const assay_call call = {&op, arg, param};
    error.text[0] = '\0';
    return plain_read(&call, &plain, &error);
  }
  /* Refused, and the message names it. */
  void refused(const char *name) {
    cr_assert_eq(read(), ASSAY_ERR_INPUT, "%s: not refused", name);
    const size_t size = strlen(name);
    cr_assert(strncmp(error.text, name, size) == 0 && error.text[size] == ':', "%s: %s", name, error.text);
    cr_assert(strstr(error.text, "found") != nullptr && strstr(error.text, "allowed") != nullptr, "%s", error.text);
  }
};

Test(simt_plain, shapes_by_name) {
  sample s;
  s.arg[0].stride[0] = 40;
  const assay_call call = {&s.op, s.arg, s.param};
  cr_assert_eq(plain_read(&call, &s.plain, &s.error), ASSAY_OK, "%s", s.error.text);
  const plain_call &c = s.plain;
  cr_assert(c.dim("N") == 5 && c.dim("I") == 12 && c.dim("C") == 16 && c.dim("P") == 7 && c.dim("R") == 8);
  cr_assert(c.dim("free") == plain_unknown && c.dim("nobody") == plain_unknown);
  cr_assert(c.row("x") == 40 && c.row("y") == 19 && c.row("first") == 1 && c.row("extra") == 0);
  cr_assert(c.has("cos") && !c.has("extra") && c.data<void>("extra") == nullptr && c.data<void>("x") == memory);
  cr_assert(c.type("y") == ASSAY_F32 && c.real("eps") == 0.5f && c.integer("count") == 3 && c.flag("count"));
  cr_assert(!plain_quads(c)); /* rows of y are 19 apart */
  s.arg[4].stride[0] = 20;
  cr_assert(s.read() == ASSAY_OK);
  const assay_call wide = {&s.op, s.arg, s.param};
  s.plain.call = &wide;
  cr_assert(plain_quads(s.plain));
}

/* One unknown in one product says what it is, wherever it stands; an argument that is absent says nothing. */
Test(simt_plain, unknowns) {
  sample s;
  s.arg[2] = s.arg[3] = assay_tensor();
  cr_assert_eq(s.read(), ASSAY_OK, "%s", s.error.text);
  cr_assert(s.plain.dims[3] == plain_unknown && s.plain.dims[4] == plain_unknown);
}

Test(simt_plain, types) {
  for (const assay_dtype y : {ASSAY_BF16, ASSAY_F32}) {
    sample s;
    s.arg[4].dtype = y;
    cr_assert_eq(s.read(), ASSAY_OK, "%s", s.error.text);
  }
  sample s;
  s.arg[4].dtype = ASSAY_F16; /* neither that of x nor f32 */
  s.refused("y");
  sample t;
  t.arg[1].dtype = ASSAY_F32;
  t.refused("w");
  sample u;
  u.arg[0].dtype = ASSAY_E4M3;
  u.refused("x");
}

Test(simt_plain, refusals) {
  {
    sample s;
    s.arg[0].data = nullptr;
    s.refused("x");
  }
  {
    sample s;
    s.arg[0].data = memory + 1;
    s.refused("x");
  }
  {
    sample s;
    s.arg[0].rank = 3;
    s.refused("x");
  }
  {
    sample s;
    s.arg[0].shape[1] = 25;
    s.refused("x");
  } /* odd: no I, and w says 12 */
  {
    sample s;
    s.arg[0].stride[0] = 23;
    s.refused("x");
  }
  {
    sample s;
    s.arg[0].stride[1] = 2;
    s.refused("x");
  }
  {
    sample s;
    s.arg[1].stride[0] = 17;
    s.refused("w");
  } /* rows of w may not lie apart */
  {
    sample s;
    s.arg[1].shape[0] = 11;
    s.refused("w");
  }
  {
    sample s;
    s.arg[3].shape[0] = 5;
    s.refused("first");
  }
  {
    sample s;
    s.arg[4].shape[1] = 16;
    s.refused("y");
  }
  {
    sample s;
    s.arg[4].shape[0] = 4;
    s.refused("y");
  }
  {
    sample s;
    s.arg[0].shape[0] = -1;
    s.refused("x");
  }
  {
    sample s;
    s.arg[0].stride[0] = INT64_MAX / 2;
    s.refused("x");
  }
  {
    sample s;
    s.param[0] = 0.125;
    s.refused("eps");
  }
  {
    sample s;
    s.param[0] = static_cast<double>(NAN);
    s.refused("eps");
  }
  {
    sample s;
    s.param[1] = 2.5;
    s.refused("count");
  }
  {
    sample s;
    s.arg[2].shape[1] = 64;
    s.arg[2].stride[0] = 64;
    s.refused("R");
  } /* 128, of 64 */
  {
    sample s;
    s.arg[1] = dense(ASSAY_BF16, {12, 12});
    s.arg[4] = dense(ASSAY_F32, {5, 15});
    s.refused("C");
  }
  {
    sample s;
    s.arg[0].shape[0] = 101;
    s.arg[3].shape[0] = 102;
    s.arg[4].shape[0] = 101;
    s.refused("N");
  }
}
