/* replay.c: see replay.h. */
#define _POSIX_C_SOURCE 200809L
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/text/text.h"
#include "core/registry.h"

/* Writes `option` and its value for each line of `list`. */
static void write_options(FILE *to, const char *option, const char *list) {
  char word[4096];
  while (*list != '\0') {
    const size_t size = strcspn(list, "\n");
    (void)snprintf(word, sizeof word, "%.*s", (int)size, list);
    (void)fprintf(to, " %s ", option);
    text_shell(to, word);
    list += size + (list[size] == '\n');
  }
}

void replay_origin(FILE *to, const char *origin) {
  static const char *const options[] = {"--ffi", "--bind", "--ffi-runtime"};
  char word[4096];
  if (strncmp(origin, "ffi\t", 4) != 0) {
    (void)fputs(" --plugin ", to);
    text_shell(to, origin);
    return;
  }
  const char *at = origin + 4;
  for (size_t i = 0; i < sizeof options / sizeof *options && *at != '\0'; ++i) {
    const size_t size = strcspn(at, "\t");
    (void)snprintf(word, sizeof word, "%.*s", (int)size, at);
    (void)fprintf(to, " %s ", options[i]);
    text_shell(to, word);
    at += size + (at[size] == '\t');
  }
}

static void write_origins(FILE *to, const char *list) {
  char origin[3 * 4096 + 8];
  while (*list != '\0') {
    const size_t size = strcspn(list, "\n");
    (void)snprintf(origin, sizeof origin, "%.*s", (int)size, list);
    replay_origin(to, origin);
    list += size + (list[size] == '\n');
  }
}

void replay_write(FILE *to, const replay *what) {
  const bool model = strcmp(what->op, "model") == 0;
  if (model) {
    (void)fprintf(to, "assay run conformance/suites/%s.yaml --device %s --filter %s/%s", what->suite, what->device,
                  what->name, what->variant);
    write_options(to, "--variant", what->forced);
  } else {
    (void)fputs("assay replay ", to);
    text_shell(to, what->descriptor);
  }
  write_origins(to, what->plugins);
  if (model) return; /* takes neither of these */
  if (strcmp(what->check, "power") == 0) (void)fputs(" --power all", to);
  if (what->verdict == VERDICT_HANG && what->deadline_s > 0) (void)fprintf(to, " --deadline %g", what->deadline_s);
}

char *replay_text(const replay *what) {
  char *text = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&text, &size);
  if (to == NULL) return NULL;
  replay_write(to, what);
  if (fclose(to) == 0) return text;
  free(text);
  return NULL;
}

const char *replay_plugin(const char *op, const char *variant, const char *device) {
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    if (strcmp(v->op, op) != 0 || strcmp(v->name, variant) != 0 || strcmp(v->device, device) != 0) continue;
    return strcmp(assay_variant_origin(i), "built-in") != 0 ? assay_variant_origin(i) : NULL;
  }
  return NULL;
}
