/* list_laws.c: `assay list laws`: the table of laws. */
#include <stdio.h>

#include "cli.h"
#include "conformance/laws/laws.h"

static const char *owed_text(law_owed owed) {
  switch (owed) {
  case OWED_ALWAYS:
    return "every operator";
  case OWED_LISTED:
    return "operators that list it";
  case OWED_PERMUTED:
    return "operators that list permutation";
  case OWED_APART:
    return "operators with a pool or with rows apart";
  case OWED_OUTPUT:
    return "operators with an output";
  case OWED_VAST:
    return "operators with a dimension that may grow so";
  case OWED_NEVER:
    break;
  }
  return "none";
}

void cli_list_laws(void) {
  printf("%-14s %-6s %-42s %s\n", "law", "one in", "a whole run owes it to", "what must not change the result");
  for (int32_t i = 0; law_at(i) != NULL; ++i) {
    const law *l = law_at(i);
    printf("%-14s %-6u %-42s %s\n", l->name, (unsigned)l->share, owed_text(l->owed), l->text);
  }
}
