/* Tests of the table of laws: what cli/claims.c and run/ledger.c rely on. */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/laws/laws.h"

Test(laws_table, names_are_words_of_their_own) {
  int32_t count = 0;
  for (; law_at(count) != NULL; ++count) {
    const law *l = law_at(count);
    cr_assert(law_find(l->name) == l, "%s: law_find does not find it", l->name);
    cr_assert(l->share >= 1 && l->text[0] != '\0' && l->applies != NULL && l->check != NULL, "%s: incomplete", l->name);
    for (int32_t i = 0; i < count; ++i)
      cr_assert(strcmp(law_at(i)->name, l->name) != 0, "%s: twice", l->name);
  }
  cr_assert(count >= 11);
  cr_assert(law_at(-1) == NULL && law_find("no_such_law") == NULL);
}

/* Two laws with one id would be asked of the same cases. in_place and contiguous have one since they exist, and no
 * operator lists both. */
Test(laws_table, ids_are_their_own) {
  for (int32_t i = 0; law_at(i) != NULL; ++i)
    for (int32_t j = 0; j < i; ++j) {
      const bool pair = strcmp(law_at(j)->name, "contiguous") == 0 && strcmp(law_at(i)->name, "in_place") == 0;
      cr_assert(pair || law_at(i)->id != law_at(j)->id, "%s and %s: the same id", law_at(j)->name, law_at(i)->name);
    }
}

Test(laws_table, owed) {
  static const assay_arg in_out[] = {{.name = "x", .role = ASSAY_INOUT}};
  static const assay_arg rows[] = {{.name = "y", .role = ASSAY_OUT, .strided = true}};
  const assay_op none = {.name = "none", .args = in_out, .arg_count = 1};
  const assay_op some = {.name = "some", .args = rows, .arg_count = 1, .laws = "run_to_run,permutation,in_place_too"};
  static const struct {
    const char *name;
    bool none, some;
  } expected[] = {{"pages", true, true},  {"graph", true, true},      {"alone", false, true},
                  {"far", false, true},   {"in_place", false, false}, {"prefill_finite", false, true},
                  {"busy", false, false}, {"streams", false, false}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    const law *l = law_find(expected[i].name);
    cr_assert(l != NULL && law_is_owed(l, &none) == expected[i].none, "%s of none", expected[i].name);
    cr_assert(law_is_owed(l, &some) == expected[i].some, "%s of some", expected[i].name);
  }
}
