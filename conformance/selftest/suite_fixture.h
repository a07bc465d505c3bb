/* suite_fixture.h: files and operators for the tests of suites, cases and traces. */
#ifndef ASSAY_SELFTEST_SUITE_FIXTURE_H
#define ASSAY_SELFTEST_SUITE_FIXTURE_H

#include "conformance/suite/expand.h"

/* Registers the operators; once a process. */
void suite_fixture_ops(void);
/* All of ops.def. */
void suite_fixture_all_ops(void);
const assay_op *suite_fixture_op(const char *name);
/* A fresh folder under the system's temporary one; with a trailing slash. */
const char *suite_fixture_folder(void);
/* Writes a file there (size < 0: text ends at its NUL) and returns its path; the buffer is static. */
const char *suite_fixture_write(const char *name, const void *bytes, long size);
/* Every field that a descriptor carries. */
bool suite_fixture_same(const assay_case *a, const assay_case *b);

#endif
