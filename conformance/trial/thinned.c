/* thinned.c: whether this run is thinned. */
#include "thinned.h"

static bool used;

void thinned_use(bool on) {
  used = on;
}

bool thinned_case(const assay_case *one) {
  return used && !one->whole;
}
