/* model_words.h: the command line of what runs models. */
#ifndef ASSAY_CONFORMANCE_CLI_MODEL_WORDS_H
#define ASSAY_CONFORMANCE_CLI_MODEL_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"

enum { MODEL_WORDS_FILES = 4, MODEL_WORDS_LIST = 32 };

typedef struct model_words {
  const char *file[MODEL_WORDS_FILES]; /* what is no option */
  int32_t file_count;
  const char *device; /* "ref" if not given */
  const char *model, *ids, *ids_file, *sampler, *mode;
  int64_t steps, chunk, short_tail;
  bool eager, paths;
  const char *variant[MODEL_WORDS_LIST], *form[MODEL_WORDS_LIST]; /* "op=name", "name=on" */
  int32_t variants, forms;
} model_words;

/* Strict, as cli_parse: unknown options and missing values are refused, `allowed` names what the command takes. */
assay_status model_words_read(int argc, char **argv, const char *allowed, model_words *given, assay_error *error);
/* "1,2, 3" to numbers; `ids` is owned by the caller. */
assay_status model_words_ids(const char *name, const char *text, int32_t **ids, int64_t *count, assay_error *error);

#endif
