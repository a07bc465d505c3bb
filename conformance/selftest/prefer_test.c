/* prefer_test.c: both sides of each border of the rules by lengths. */
#include <criterion/criterion.h>

#include "core/prefer.h"

Test(prefer, even_shares_of_long_and_ragged_lengths) {
  const int32_t ragged[] = {1024, 1, 1, 1}, even[] = {1024, 1024, 1024, 1024}, border[] = {2000, 666, 667, 667};
  const int32_t beyond[] = {2000, 667, 667, 667}, brief[] = {1023, 1, 1, 1};
  cr_expect(prefer_even_shares(ragged, 4));
  cr_expect(!prefer_even_shares(even, 4));
  cr_expect(prefer_even_shares(border, 4)); /* twice the mean */
  cr_expect(!prefer_even_shares(beyond, 4));
  cr_expect(!prefer_even_shares(brief, 4));
  cr_expect(!prefer_even_shares(ragged, 0));
}

Test(prefer, packed_for_long_prompts_of_many_heads) {
  cr_expect(prefer_packed(64, 8, 1, 2048, 1));
  cr_expect(prefer_packed(64, 64, 8, 8192, 4));
  cr_expect(!prefer_packed(64, 64, 8, 8191, 4));
  cr_expect(!prefer_packed(64, 63, 8, 8192, 4));
  cr_expect(!prefer_packed(128, 64, 8, 8192, 4));
  cr_expect(!prefer_packed(64, 64, 8, 0, 0));
}
