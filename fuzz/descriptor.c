/* descriptor.c: any text to case_parse; what it takes must print, and print the same when read again. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "conformance/case/case.h"
#include "target.h"

static char first[CASE_MAX_LINE], second[CASE_MAX_LINE];

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  assay_error error = {""};
  assay_case one, again;
  char *text = malloc(count + 1);
  if (text == NULL) return 0;
  memcpy(text, bytes, count);
  text[count] = '\0';
  memset(&one, 0, sizeof one);
  memset(&again, 0, sizeof again);
  const assay_status status = case_parse(text, &one, &error);
  if (status != ASSAY_OK && error.text[0] == '\0') fuzz_found("refused without a message", text);
  if (status == ASSAY_OK) {
    if (case_print(&one, first, sizeof first, &error) == ASSAY_OK) {
      if (case_parse(first, &again, &error) != ASSAY_OK) fuzz_found("what was printed is refused", error.text);
      if (case_print(&again, second, sizeof second, &error) != ASSAY_OK) fuzz_found("cannot be printed", error.text);
      if (strcmp(first, second) != 0) fuzz_found("prints otherwise when read again", first);
      case_free(&again);
    }
    case_free(&one);
  }
  free(text);
  return 0;
}
