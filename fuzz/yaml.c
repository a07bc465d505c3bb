/* yaml.c: any bytes as a suite file: expanded whole, or refused with file:line:column and nothing left. */
#include <stdio.h>
#include <string.h>

#include "conformance/suite/suite.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  case_list list = {NULL, 0};
  const char *path = fuzz_file("suite.yaml", bytes, count);
  const assay_status status = expand_suite(path, 1, &list, &error);
  if (status != ASSAY_OK && list.count != 0) fuzz_found("a failed suite left cases", error.text);
  if (status != ASSAY_OK && strstr(error.text, "suite.yaml:") == NULL) fuzz_found("no place named", error.text);
  case_list_free(&list);
  return 0;
}
