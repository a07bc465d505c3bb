/* repeats_test.c: which rows count as repeated ones. */
#include <criterion/criterion.h>

#include "conformance/trial/repeats.h"

/* A row repeats another one if all values and all sigmas are the same, in the same request. */
Test(repeats, a_row_counts_once_in_a_request) {
  static const double value[] = {1, 2, 1, 3, 1, 2, 1, 2, 2, 1, 0.0, 2, -0.0, 2};
  static const double sigma[] = {5, 5, 5, 5, 5, 6, 5, 5, 5, 5, 5, 5, 5, 5};
  static const bool repeated[] = {false, false, false, true, false, false, false};
  repeats r = {0};
  cr_assert(repeats_open(&r, 7));
  for (int64_t row = 0; row < 7; ++row)
    cr_expect_eq(repeats_row(&r, value, sigma, 2, row, 0), repeated[row], "row %d", (int)row);
  repeats_clear(&r);
  cr_expect_eq(repeats_row(&r, value, sigma, 2, 3, 0), false, "all rows are forgotten");
  repeats_close(&r);
}

Test(repeats, rows_of_other_requests_do_not_count) {
  static const double value[] = {1, 1}, sigma[] = {2, 2};
  repeats r = {0};
  cr_assert(repeats_open(&r, 2));
  cr_expect_eq(repeats_row(&r, value, sigma, 1, 0, 0), false);
  cr_expect_eq(repeats_row(&r, value, sigma, 1, 1, 1), false, "another request");
  repeats_close(&r);
}

/* Every row finds a place, however full the table is. */
Test(repeats, as_many_rows_as_were_asked_for) {
  enum { ROWS = 1000 };
  static double value[ROWS], sigma[ROWS];
  repeats r = {0};
  cr_assert(repeats_open(&r, ROWS));
  for (int64_t row = 0; row < ROWS; ++row)
    value[row] = (double)(row / 2);
  for (int64_t row = 0; row < ROWS; ++row)
    cr_expect_eq(repeats_row(&r, value, sigma, 1, row, 0), row % 2 == 1, "row %d", (int)row);
  repeats_close(&r);
}
