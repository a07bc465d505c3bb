/* replay.h: the command that runs one case again, with every option that it needs. */
#ifndef ASSAY_CONFORMANCE_REPORT_REPLAY_H
#define ASSAY_CONFORMANCE_REPORT_REPLAY_H

#include <stdio.h>

#include "conformance/judge/judge.h"

/* A case that is to run again. Strings belong to the caller and are never NULL. */
typedef struct replay {
  const char *descriptor;
  const char *op, *variant, *device, *suite, *name; /* a case of a model is named by its suite and filter */
  const char *check;                                /* "power" adds --power all */
  verdict verdict;                                  /* HANG adds the deadline */
  const char *plugins;                              /* origins to load, one per line; "": none */
  const char *forced;                               /* models: "op=variant" words of --variant, one per line */
  double deadline_s;                                /* deadline of the run; 0: the usual one */
} replay;

/* Writes the command for a POSIX shell, without a newline. */
void replay_write(FILE *to, const replay *what);
/* Returns the same command as a string that the caller frees; NULL if there is no memory. */
char *replay_text(const replay *what);
/* Writes the options that load an origin (core/registry.h), each after a blank. "ffi", a library, a bind file and
 * perhaps libtvm_ffi, with tabs between them, came by --ffi; anything else is a file for --plugin. */
void replay_origin(FILE *to, const char *origin);
/* Returns the origin of the plug-in that this variant came from; NULL if the variant is built in or unknown. */
const char *replay_plugin(const char *op, const char *variant, const char *device);

#endif
