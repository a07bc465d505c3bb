/* page_parts.h: the parts of the page. Private to the page. */
#ifndef ASSAY_BENCH_PAGE_PARTS_H
#define ASSAY_BENCH_PAGE_PARTS_H

#include <stdio.h>

#include "core/json.h"
#include "page.h"

enum { PAGE_CALLS = 48 };

/* A figure of the project or of a peer, or the reason why it has none. */
typedef struct page_row {
  char op[48], variant[48], name[96], suite[48], mode[8], message[240];
  char shape[160]; /* the words by which a peer's row is joined to the project's */
  bool peer;
  double median, low, high, limit, bytes, flops, live; /* live: < 0: not said */
  char by[12];
  int32_t file;
} page_row;

typedef struct page_call {
  char op[48], variant[48];
  double us;
  int64_t calls;
  bool in_graph; /* its time in the step's graph is known */
  double graph_us;
} page_call;

typedef struct page_scenario {
  char name[48], model[16], message[240];
  int64_t batch, prompt, output, calls;
  double wall, low, high, prefill, step, layer, span, rate, limit, live, published;
  page_call call[PAGE_CALLS];
  int32_t call_count, file;
} page_scenario;

/* A peer's wall of a scenario, or the reason why it has none. */
typedef struct page_scenario_peer {
  char peer[48], name[48], model[16], message[240];
  double wall;
  int32_t file;
} page_scenario_peer;

typedef struct page_online {
  char trace[32], model[16], message[240];
  double scale, seconds, offered, served, output, prompt, hit;
  double ttft[3], tpot[3], itl[3], e2e[3];
  int64_t requests, preempted;
  int32_t file;
} page_online;

typedef struct page_missing {
  char peer[48], why[240];
} page_missing;

typedef struct page_run {
  char path[256], device_name[96], driver[48], toolkit[48], commit[48];
  double copy, fma, mma, gemm, gemm8;
} page_run;

typedef struct page_data {
  page_run *run;
  int64_t runs;
  page_row *row;
  page_scenario *scenario;
  page_scenario_peer *scenario_peer;
  page_online *online;
  page_missing *missing;
  int64_t rows, scenarios, scenario_peers, onlines, missings;
} page_data;

assay_status page_read(const char *path, page_data *data, assay_error *error);
void page_free(page_data *data);

void page_bars(FILE *to, const page_data *d);     /* page_bars.c */
void page_roofline(FILE *to, const page_data *d); /* page_plot.c */
bool page_is_density(const page_row *r);          /* is it a point of the plot of densities? */
void page_density(FILE *to, const page_data *d);

#endif
