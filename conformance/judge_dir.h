/* judge_dir.h: results of another engine, as files in a folder, judged as our own are (docs/truth.md). */
#ifndef ASSAY_CONFORMANCE_JUDGE_DIR_H
#define ASSAY_CONFORMANCE_JUDGE_DIR_H

#include "truth.h"

#define JUDGE_DIR_MANIFEST "manifest.json"

/* A line per output. Statuses other than OK: the manifest or a file is not what it should be; nothing was judged. */
assay_status judge_dir(const char *folder, truth_log *log, assay_error *error);

#endif
