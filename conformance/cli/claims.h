/* claims.h: which claimed combinations of (dtype, kv_dtype, layout, mode) a run has seen pass, and which laws it asked.
 */
#ifndef ASSAY_CONFORMANCE_CLAIMS_H
#define ASSAY_CONFORMANCE_CLAIMS_H

#include "conformance/judge/judge.h"
#include "conformance/report/report.h"

typedef struct claims claims;

assay_status claims_open(claims **made, assay_error *error);
void claims_note(claims *c, const assay_case *one, const case_result *result);
/* Reports every claimed combination of the variant without a PASS, if the operator's own suite was run. */
void claims_report(claims *c, const assay_variant *variant, report *out);
/* Reports each law that no passing case was asked: those of an operator's table, and pages and graph. Reports nothing
 * unless the operator's own suite was run and 64 cases of it passed. */
void claims_report_laws(claims *c, const char *device, report *out);
void claims_close(claims *c);

#endif
