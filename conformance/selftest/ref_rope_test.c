/* ref_rope_test.c: rope against what a rotation is: the identity at position 0, R(p) R(q) = R(p + q), the norm of every
 * pair, the product of complex numbers, right angles; and both styles against each other. */
#include <complex.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "assay/variant.h"
#include "core/dtype.h"
#include "linear_fixture.h"
#include "ref/lib/rope.h"

const assay_op *assay_op_rope(void);

static const assay_contract contract = {.lanes = 1};

enum { N = 5, H = 3, H_KV = 2, D = 20, R = 12, P = 9 };
static const int positions[N] = {0, 8, 3, 3, 5};

typedef struct options {
  assay_dtype dtype, position_dtype;
  bool interleaved, apart;
} options;

/* The true table of base 10000, in f32. */
static void open_rope(linear_call *c, options o) {
  float cosine[P * R / 2], sine[P * R / 2];
  rope_table(10000, P, R, cosine, sine);
  linear_open(c, assay_op_rope());
  linear_tensor(c, "q", o.dtype, 8, N, H, D);
  linear_tensor(c, "k", o.dtype, 3, N, H_KV, D);
  linear_tensor(c, "cos", ASSAY_F32, 0, P, R / 2, 0);
  linear_tensor(c, "sin", ASSAY_F32, 0, P, R / 2, 0);
  linear_tensor(c, "positions", o.position_dtype, 0, N, 0, 0);
  if (o.apart) linear_tensor(c, "q_out", o.dtype, 0, N, H, D);
  if (o.apart) linear_tensor(c, "k_out", o.dtype, 0, N, H_KV, D);
  linear_param(c, "style", o.interleaved ? 1 : 0);
  linear_normals(c, "q", 1);
  linear_normals(c, "k", 2);
  for (int i = 0; i < P * R / 2; ++i) {
    linear_set(c, "cos", i, (double)cosine[i]);
    linear_set(c, "sin", i, (double)sine[i]);
  }
  for (int n = 0; n < N; ++n)
    linear_set(c, "positions", n, positions[n]);
}

static void pair(const options *o, int i, int *a, int *b) {
  *a = o->interleaved ? 2 * i : i;
  *b = o->interleaved ? 2 * i + 1 : i + R / 2;
}

/* ---- the operator ------------------------------------------------------------------------------------ */

/* Turns each pair as a complex number by c + i s. Channels from R on stay as they are. Position 0 has σ = 0. */
static void check_heads(linear_call *c, const options *o, const char *from, const char *to, int heads) {
  const assay_expected *y = linear_result(c, o->apart ? to : from);
  for (int n = 0; n < N; ++n)
    for (int h = 0; h < heads; ++h) {
      const int at = (n * heads + h) * D;
      for (int i = 0; i < R / 2; ++i) {
        int a, b;
        pair(o, i, &a, &b);
        const int angle = positions[n] * (R / 2) + i;
        const double _Complex turn = linear_get(c, "cos", angle) + linear_get(c, "sin", angle) * I;
        const double _Complex x = linear_get(c, from, at + a) + linear_get(c, from, at + b) * I, z = x * turn;
        cr_assert(linear_close_to(y->value[at + a], creal(z)) && linear_close_to(y->value[at + b], cimag(z)));
        /* The table is rounded to f32, so a norm is kept to its last place. */
        cr_assert(fabs(hypot(y->value[at + a], y->value[at + b]) - cabs(x)) <= 0x1p-23 * cabs(x));
      }
      for (int d = 0; d < D; ++d) {
        if (positions[n] != 0 && d < R) continue;
        cr_assert(y->value[at + d] == linear_get(c, from, at + d) && y->sigma[at + d] == 0);
      }
    }
  for (int i = 0; o->apart && i < N * heads * D; ++i)
    cr_assert(linear_result(c, from)->sigma[i] == ASSAY_UNCHANGED);
}

/* Each pair is that of a plain rotation by the position of its axis. Equal positions are the plain rotation. */
Test(rope, axes_are_plain_rotations) {
  static const int hw[2][N] = {{1, 7, 3, 0, 2}, {4, 4, 3, 8, 6}};
  static const char axis[2][R / 2 + 1] = {"thhwww", "thwthw"};
  for (int turns = 0; turns < 2; ++turns)
    for (int alike = 0; alike < 2; ++alike) {
      const options o = {ASSAY_F32, ASSAY_I32, false, true};
      linear_call c, plain[3];
      open_rope(&c, o);
      linear_tensor(&c, "positions_hw", ASSAY_I32, 0, 2, N, 0);
      linear_param(&c, "section_h", 2);
      linear_param(&c, "section_w", turns != 0 ? 2 : 3);
      linear_param(&c, "sections", turns);
      for (int way = 0; way < 3; ++way) {
        open_rope(&plain[way], o);
        for (int n = 0; n < N; ++n) {
          const int position = way == 0 || alike != 0 ? positions[n] : hw[way - 1][n];
          linear_set(&plain[way], "positions", n, position);
          if (way > 0) linear_set(&c, "positions_hw", (way - 1) * N + n, position);
        }
        linear_run(&plain[way], &contract, false);
      }
      linear_run(&c, &contract, false);
      for (int at = 0; at < N * H * D; ++at) {
        const char of = at % D < R ? axis[turns][at % D % (R / 2)] : 't';
        const int way = of == 't' ? 0 : of == 'h' ? 1 : 2;
        cr_assert_eq(linear_result(&c, "q_out")->value[at], linear_result(&plain[way], "q_out")->value[at]);
      }
      linear_close(&c);
      for (int way = 0; way < 3; ++way)
        linear_close(&plain[way]);
    }
}

Test(rope, multiplies_complex_numbers) {
  static const assay_dtype dtypes[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  for (int d = 0; d < 3; ++d)
    for (int form = 0; form < 8; ++form) {
      const options o = {dtypes[d], (form & 4) != 0 ? ASSAY_I64 : ASSAY_I32, (form & 1) != 0, (form & 2) != 0};
      linear_call c;
      open_rope(&c, o);
      linear_run(&c, &contract, false);
      check_heads(&c, &o, "q", "q_out", H);
      check_heads(&c, &o, "k", "k_out", H_KV);
      linear_close(&c);
    }
}

/* The channels of neox in the order of interleaved give the same numbers. */
Test(rope, styles_differ_by_a_permutation) {
  const options neox = {ASSAY_F32, ASSAY_I32, false, false}, interleaved = {ASSAY_F32, ASSAY_I32, true, false};
  linear_call a, b;
  open_rope(&a, neox);
  open_rope(&b, interleaved);
  int place[D];
  for (int d = R; d < D; ++d)
    place[d] = d;
  for (int i = 0; i < R / 2; ++i) {
    place[i] = 2 * i;
    place[i + R / 2] = 2 * i + 1;
  }
  for (int i = 0; i < N * H * D; ++i)
    linear_set(&b, "q", i / D * D + place[i % D], linear_get(&a, "q", i));
  linear_run(&a, &contract, false);
  linear_run(&b, &contract, false);
  for (int i = 0; i < N * H * D; ++i) {
    const int at = i / D * D + place[i % D];
    cr_assert(linear_result(&a, "q")->value[i] == linear_result(&b, "q")->value[at]);
    cr_assert(linear_result(&a, "q")->sigma[i] == linear_result(&b, "q")->sigma[at]);
  }
  linear_close(&a);
  linear_close(&b);
}

/* f32 arithmetic lies inside the error model. */
Test(rope, f32_lies_inside_sigma) {
  const options o = {ASSAY_BF16, ASSAY_I32, false, false};
  linear_call c;
  open_rope(&c, o);
  linear_run(&c, &contract, false);
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < H * R / 2; ++i) {
      const int a = n * H * D + i / (R / 2) * D + i % (R / 2), angle = positions[n] * (R / 2) + i % (R / 2);
      const float x = (float)linear_get(&c, "q", a), y = (float)linear_get(&c, "q", a + R / 2);
      const float turned = x * (float)linear_get(&c, "cos", angle) - y * (float)linear_get(&c, "sin", angle);
      const double error = assay_round_f64((double)turned, ASSAY_BF16) - linear_result(&c, "q")->value[a];
      cr_assert(fabs(error) <= assay_op_rope()->kappa_element * linear_result(&c, "q")->sigma[a]);
    }
  linear_close(&c);
}

Test(rope, right_angles_are_exact) {
  static const int right[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  const options o = {ASSAY_BF16, ASSAY_I32, true, false};
  linear_call c;
  open_rope(&c, o);
  for (int i = 0; i < P * R / 2; ++i) {
    linear_set(&c, "cos", i, right[i % 4][0]);
    linear_set(&c, "sin", i, right[i % 4][1]);
  }
  linear_run(&c, &contract, true);
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < R / 2; ++i) {
      const int at = n * H * D + 2 * i, quarter = (positions[n] * (R / 2) + i) % 4;
      const double x = linear_get(&c, "q", at), y = linear_get(&c, "q", at + 1);
      const double wanted[4][2] = {{x, y}, {-y, x}, {-x, -y}, {y, -x}};
      cr_assert(linear_result(&c, "q")->value[at] == wanted[quarter][0]);
      cr_assert(linear_result(&c, "q")->value[at + 1] == wanted[quarter][1]);
      cr_assert(linear_result(&c, "q")->sigma[at] == 0);
    }
  linear_set(&c, "cos", 0, 0.7071);
  assay_error error = {""};
  linear_set(&c, "q", 0, 1.0078125);
  linear_set(&c, "sin", 0, 0.7071);
  cr_assert_eq(linear_try(&c, &contract, true, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "exact tier") == error.text, "%s", error.text);
  linear_close(&c);
}

Test(rope, refusals) {
  const options o = {ASSAY_BF16, ASSAY_I64, false, false};
  assay_error error = {""};
  linear_call c;
  open_rope(&c, o);
  for (int bad = -1; bad <= P; bad += P + 1) {
    linear_set(&c, "positions", 2, bad);
    cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
    cr_assert(strstr(error.text, "positions: found") == error.text, "%s", error.text);
  }
  linear_set(&c, "positions", 2, 0);
  linear_tensor(&c, "cos", ASSAY_F32, 0, P, D / 2 + 1, 0);
  linear_tensor(&c, "sin", ASSAY_F32, 0, P, D / 2 + 1, 0);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "R: found 22, allowed even numbers from 2 to D = 20") == error.text, "%s", error.text);
  linear_tensor(&c, "cos", ASSAY_F32, 0, P, R / 2, 0);
  cr_assert_eq(linear_try(&c, &contract, false, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "sin: found") == error.text, "%s", error.text);
  linear_close(&c);
}

/* ---- the rotation and its table, which the models use too -------------------------------------------- */

static void turn(double angle, double *cosine, double *sine) {
  for (int i = 0; i < R / 2; ++i) {
    cosine[i] = cos(angle * (i + 1));
    sine[i] = sin(angle * (i + 1));
  }
}

Test(rope, rotations_compose) {
  for (int style = 0; style < 2; ++style)
    for (int p = -3; p < 4; ++p)
      for (int q = -3; q < 4; ++q) {
        double x[D], once[D], twice[D], both[D], cosine[R / 2], sine[R / 2];
        for (int d = 0; d < D; ++d)
          x[d] = d * 7 % 11 - 5;
        turn(p * 0.3, cosine, sine);
        rope_rotate(x, cosine, sine, R, D, style == 1, once);
        turn(q * 0.3, cosine, sine);
        rope_rotate(once, cosine, sine, R, D, style == 1, twice);
        turn((p + q) * 0.3, cosine, sine);
        rope_rotate(x, cosine, sine, R, D, style == 1, both);
        for (int d = 0; d < D; ++d)
          cr_assert(linear_close_to(twice[d], both[d]));
      }
}

/* theta_0 = 1 and theta_i = theta_1^i. Position 0 turns nothing. Angles follow the addition theorem, in f32. */
Test(rope, the_table) {
  enum { positions_count = 200, half = 16 };
  static float cosine[positions_count * half], sine[positions_count * half];
  const double base = 1e6;
  rope_table(base, positions_count, 2 * half, cosine, sine);
  for (int i = 0; i < half; ++i) {
    double theta = 1; /* base^(-i / half) by multiplication */
    for (int j = 0; j < i; ++j)
      theta /= sqrt(sqrt(sqrt(sqrt(base))));
    double _Complex z = 1;
    const double _Complex step = cos(theta) + sin(theta) * I;
    for (int p = 0; p < positions_count; ++p, z *= step) {
      cr_assert(fabs((double)cosine[p * half + i] - creal(z)) <= 0x1p-24);
      cr_assert(fabs((double)sine[p * half + i] - cimag(z)) <= 0x1p-24);
    }
    cr_assert(cosine[i] == 1 && sine[i] == 0);
  }
}

/* ---- the kernel and contents that are out of range --------------------------------------------------- */

#ifdef ASSAY_HAVE_SIMT
const assay_variant *assay_variants_simt_rope(int32_t *count);

Test(rope, kernel_turns_no_illegal_row) {
  for (int apart = 0; apart < 2; ++apart) {
    const options o = {ASSAY_BF16, ASSAY_I64, true, apart == 1};
    int32_t count = 0;
    linear_call c;
    open_rope(&c, o);
    linear_set(&c, "positions", 1, -5);
    linear_set(&c, "positions", 3, 1e12);
    double before[N * H * D];
    for (int i = 0; i < N * H * D; ++i)
      before[i] = linear_get(&c, "q", i);
    assay_env env = {.multiprocessors = 4};
    assay_error error = {""};
    const assay_variant *variant = assay_variants_simt_rope(&count);
    for (int32_t i = 1; i < count && variant->supports(&c.call, &error) != ASSAY_OK; ++i)
      ++variant; /* the first that takes the call */
    error.text[0] = '\0';
    const assay_status status = variant->launch(&c.call, &env, &error);
    cr_assert(status == ASSAY_OK, "%s", error.text);
    for (int i = 0; i < N * H * D; ++i)
      if (i / (H * D) == 1 || i / (H * D) == 3) cr_assert(linear_get(&c, apart == 1 ? "q_out" : "q", i) == before[i]);
    linear_close(&c);
  }
}
#endif
