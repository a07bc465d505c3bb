/* report.h: results written, read back, summed, compared and shown. The only header of this folder that others include.
 */
#ifndef ASSAY_CONFORMANCE_REPORT_REPORT_H
#define ASSAY_CONFORMANCE_REPORT_REPORT_H

#include "compare.h"
#include "html.h"
#include "html_cells.h"
#include "junit.h"
#include "power_sum.h"
#include "replay.h"
#include "results.h"
#include "results_group.h"
#include "results_power.h"
#include "run_report.h"
#include "slack.h"
#include "statement.h"
#include "tensor_diff.h"

#endif
