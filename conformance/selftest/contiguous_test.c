/* contiguous_test.c: K and V without a block table: which calls the reference takes, where it finds a key, where the
 * generator puts the requests' rows. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "conformance/generate/image.h"
#include "conformance/generate/logical.h"
#include "suite_fixture.h"

static assay_case parsed(const char *text) {
  assay_case one;
  assay_error error = {""};
  suite_fixture_all_ops();
  cr_assert_eq(case_parse(text, &one, &error), ASSAY_OK, "%s", error.text);
  return one;
}

static void image_of(const assay_case *one, draw choice, image *img) {
  assay_error error = {""};
  cr_assert_eq(image_make(one, &choice, NULL, img, &error), ASSAY_OK, "%s", error.text);
}

static assay_tensor *arg_of(image *img, const char *name) {
  for (int32_t i = 0; i < img->origin->op->arg_count; ++i)
    if (strcmp(img->origin->op->args[i].name, name) == 0) return &img->arg[i];
  cr_assert_fail("no argument %s", name);
  return NULL;
}

static assay_status reference_of(const image *img, double *value, assay_error *error) {
  const assay_op *op = img->origin->op;
  const assay_rows all = {.count = img->rows, .index = NULL};
  assay_expected expected[ASSAY_MAX_OUTPUTS] = {{value, NULL}, {NULL, NULL}};
  const assay_status status = op->check(&img->call, error);
  if (status != ASSAY_OK) return status;
  return op->reference(&img->call, NULL, &all, false, expected, NULL, error);
}

static const draw plain = {.dead = DEAD_NAN, .poison = 5};
static const char *const texts[] = {
    "gate_attention mode=mixed dtype=f32 D=16 H=4 H_kv=2 layout=nhd cu_k=true kv_len=13,0,1,24 new=3,1,1,24 seed=1",
    "gate_attention mode=decode dtype=f32 D=16 H=2 H_kv=1 layout=hnd cu_k=true kv_pad=8 kv_len=17,1 seed=2",
    "softmax_attention mode=prefill dtype=f32 D=16 H=4 H_kv=2 layout=hnd cu_k=true kv_pad=interleaved kv_len=9,20 "
    "seed=3",
    "softmax_attention mode=decode dtype=f32 kv_dtype=e4m3 D=16 H=2 H_kv=2 layout=nhd cu_k=true tables=huge "
    "kv_len=40,3 "
    "seed=4",
};
enum { TEXTS = sizeof texts / sizeof texts[0] };

/* The same values through a table, and packed: the same result in every bit. Whatever lies beside the rows is NaN. */
Test(contiguous, the_reference_finds_what_a_table_names) {
  for (int i = 0; i < TEXTS; ++i) {
    assay_case one = parsed(texts[i]);
    image packed, paged;
    draw table = plain;
    table.paged = true;
    image_of(&one, plain, &packed);
    image_of(&one, table, &paged);
    cr_assert(packed.contiguous && !paged.contiguous);
    cr_assert(arg_of(&packed, "block_table")->data == NULL && arg_of(&paged, "cu_k")->data == NULL);
    const size_t count = (size_t)(packed.rows * packed.logical->H * packed.logical->D);
    double *a = calloc(count, sizeof *a), *b = calloc(count, sizeof *b);
    assay_error error = {""};
    cr_assert_eq(reference_of(&packed, a, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(reference_of(&paged, b, &error), ASSAY_OK, "%s", error.text);
    cr_expect_eq(memcmp(a, b, count * sizeof *a), 0, "%s", texts[i]);
    cr_expect(!(a[0] != a[0]) && a[count - 1] - a[count - 1] == 0);
    free(a);
    free(b);
    image_free(&packed);
    image_free(&paged);
    case_free(&one);
  }
}

Test(contiguous, contents_that_are_refused) {
  assay_case one = parsed(texts[0]);
  image img;
  image_of(&one, plain, &img);
  int32_t *start = arg_of(&img, "cu_k")->data, *length = arg_of(&img, "kv_len")->data;
  const int32_t rows = (int32_t)arg_of(&img, "k_cache")->shape[0], own = start[2] - start[1];
  const struct {
    int32_t *place, value;
    const char *name, *words;
  } row[] = {{&start[0], -1, "cu_k:", "found -1 at 0"},
             {&start[1], start[0] - 1, "cu_k:", "at 1"},
             {&start[4], rows + 1, "cu_k:", "at 4"},
             {&start[2], INT32_MAX, "cu_k:", "at 2"},
             {&length[1], own + 1, "kv_len:", "request 1"},
             {&length[3], -1, "kv_len:", "request 3"},
             {&start[4], start[3] + 23, "kv_len:", "found 24 for request 3, allowed 0 to 23"}};
  double *value = calloc((size_t)(img.rows * 4 * 16), sizeof *value);
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    const int32_t kept = *row[i].place;
    assay_error error = {""};
    *row[i].place = row[i].value;
    cr_expect_eq(reference_of(&img, value, &error), ASSAY_ERR_INPUT, "row %zu was let through", i);
    cr_expect(strncmp(error.text, row[i].name, strlen(row[i].name)) == 0 && strstr(error.text, row[i].words) != NULL,
              "row %zu: %s", i, error.text);
    *row[i].place = kept;
  }
  assay_error error = {""};
  cr_expect_eq(reference_of(&img, value, &error), ASSAY_OK, "%s", error.text);
  free(value);
  image_free(&img);
  case_free(&one);
}

/* Rows follow each other in the order of the batch, at least as many as the length, inside the pool. A draw's order and
 * placement move them. Where nothing lies between, they are dense. */
Test(contiguous, rows_of_requests) {
  assay_case one = parsed(texts[0]);
  bool gap = false, moved = false;
  int32_t before[5] = {0};
  for (uint64_t placement = 0; placement < 4; ++placement)
    for (uint64_t order = 0; order < 2; ++order) {
      image img;
      draw choice = plain;
      choice.placement = placement;
      choice.order = order;
      image_of(&one, choice, &img);
      const int32_t *start = arg_of(&img, "cu_k")->data, *length = arg_of(&img, "kv_len")->data;
      const assay_tensor *k = arg_of(&img, "k_cache");
      cr_expect_eq(k->shape[1], 1);
      cr_expect_eq(k->shape[0], img.pool_blocks);
      for (int b = 0; b < 4; ++b) {
        cr_expect(start[b] >= 0 && start[b + 1] - start[b] >= length[b]);
        gap |= start[b + 1] - start[b] > length[b];
      }
      cr_expect_leq(start[4], k->shape[0]);
      moved |= (placement > 0 || order > 0) && memcmp(before, start, sizeof before) != 0;
      memcpy(before, start, sizeof before);
      image_free(&img);
    }
  cr_expect(gap && moved);
  case_free(&one);
  one = parsed("gate_attention mode=decode dtype=f32 D=16 layout=nhd cu_k=true tables=identity kv_len=5,2 seed=1");
  image img;
  image_of(&one, plain, &img);
  const int32_t *start = arg_of(&img, "cu_k")->data;
  cr_expect(start[0] == 0 && start[1] == 5 && start[2] == 7);
  image_free(&img);
  case_free(&one);
}

static void refused(const char *text, const char *words) {
  assay_case one;
  assay_error error = {""};
  suite_fixture_all_ops();
  cr_assert_neq(case_parse(text, &one, &error), ASSAY_OK, "%s", text);
  cr_expect(strstr(error.text, words) != NULL, "%s: %s", text, error.text);
}

Test(contiguous, cases_that_are_none) {
  refused("gate_attention D=16 layout=x dtype=bf16 cu_k=true kv_len=9 seed=1", "layout: found x");
  refused("gate_attention D=16 cu_k=true block_size=8 kv_len=9,9 share=-,0:8 seed=1", "share: found request 1");
  refused("gate_attention section=refuse D=16 break=extra expect=cu_k kv_len=9 seed=1", "argument: missing");
  refused("gate_attention section=refuse D=16 break=extra argument=block_table expect=block_table kv_len=9 seed=1",
          "allowed one that the case does not give");
  refused("attention_append D=16 cu_k=true kv_len=9 seed=1", "cu_k");
}
