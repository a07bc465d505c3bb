#include "truth.h"
assay_status truth_tensors(const char *folder, truth_log *log, assay_error *error) {
  (void)folder;
  (void)log;
  return assay_fail(error, ASSAY_ERR_INPUT, "x");
}
