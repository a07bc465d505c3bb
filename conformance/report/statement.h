/* statement.h: a statement of conformance: who was judged by which list, with what result, in a file that can be
 * checked. */
#ifndef ASSAY_CONFORMANCE_REPORT_STATEMENT_H
#define ASSAY_CONFORMANCE_REPORT_STATEMENT_H

#include "conformance/judge/judge.h"
#include "conformance/text/text.h"
#include "core/files/sha256.h"

/* A file that a statement names by its hash. `role`: program, list, plugin, ffi, bind. */
typedef struct statement_part {
  const char *role, *path;
  char hash[SHA256_TEXT];
  int64_t bytes;
} statement_part;

/* A statement being written. */
typedef struct statement {
  text_file file;
  sha256 digest; /* hashes all that was written */
  int64_t results, counts[VERDICT_WEAK + 1], conforming;
  int32_t variants;
  int64_t passes[64]; /* per variant */
} statement;

enum { STATEMENT_PARTS = 64, STATEMENT_VARIANTS = 64 };

/* Hashes a file. `path` must stay. */
assay_status statement_part_of(const char *role, const char *path, statement_part *part, assay_error *error);
/* Begins a statement. `list`: the part of the list, of `cases` cases. */
assay_status statement_open(statement *s, const char *path, const assay_device_info *info, const char *device,
                            const char *list, int64_t cases, const statement_part *parts, int32_t count,
                            const assay_variant *const *variants, int32_t variant_count, assay_error *error);
/* Adds a result, in the order of the list, and of the variants within a case. `number`: the variant's. */
assay_status statement_add(statement *s, const assay_case *one, int32_t number, const case_result *result,
                           assay_error *error);
/* Ends it. The statement says that the variants conform if every result is good and each variant has a PASS. */
assay_status statement_close(statement *s, bool *conforms, assay_error *error);
void statement_discard(statement *s);

/* The findings of a check. */
typedef struct statement_facts {
  bool conforms;
  int64_t results, passes, declined;
  char list[64], device_name[128], commit[64];
} statement_facts;

/* Checks a statement against the list that it names and the files given. `cases` and `list_hash` are those of the
 * list. Looks at the digest, the hashes, every case of the list for every variant, the counts and the verdict. Fails
 * with ASSAY_ERR_INPUT and the first difference. A whole statement that says that something failed is no error. */
assay_status statement_check(const char *path, const assay_case *cases, int64_t case_count, const char *list_hash,
                             const statement_part *parts, int32_t count, statement_facts *facts, assay_error *error);
/* Reads the name of the list that a statement names. */
assay_status statement_list(const char *path, char *name, size_t size, assay_error *error);

#endif
