/* diff.c: assay diff A B: two tensors, element by element. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "conformance/report/report.h"

enum { SHOWN = 8 };

int cli_diff_command(int argc, char **argv) {
  int code = EXIT_INPUT;
  assay_error error = {""};
  cli_options options;
  npy_tensor a = {0}, b = {0};
  tensor_diff diff;
  assay_status status = cli_parse(argc, argv, "diff", &options, &error);
  if (status == ASSAY_OK && options.words.count != 2)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "diff: needs two files, found %d", options.words.count);
  if (status == ASSAY_OK) status = npy_read(options.words.item[0], options.dtype, options.shape, &a, &error);
  if (status == ASSAY_OK) status = npy_read(options.words.item[1], options.dtype, options.shape, &b, &error);
  if (status == ASSAY_OK) status = tensor_diff_make(&a, &b, &diff, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
  } else {
    tensor_diff_print(&diff, &a, &b, SHOWN, stdout);
    code = diff.different > 0 ? EXIT_BAD : EXIT_GOOD;
  }
  npy_free(&a);
  npy_free(&b);
  return code;
}
