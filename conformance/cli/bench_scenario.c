/* bench_scenario.c: assay bench scenario, assay bench online. */
#include <stdlib.h>
#include <string.h>

#include "bench/scenario_peer.h"
#include "bench_peers.h"
#include "bench_session.h"
#include "conformance/suite/suite.h"
#include "conformance/text/text.h"

enum { MOST = 16 };

static assay_status read_words(int argc, char **argv, const char *command, cli_options *given, assay_error *error) {
  assay_status status = cli_parse(argc, argv, command, given, error);
  if (given->part == 0) given->part = 1;
  if (status == ASSAY_OK && given->words.count > MOST)
    status = assay_fail(error, ASSAY_ERR_INPUT, "arguments: given more than %d times", (int)MOST);
  if (status == ASSAY_OK && given->short_tail > ASSAY_MODEL_SHORT_TAIL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--short-tail: found '%lld', allowed: up to %d",
                        (long long)given->short_tail, ASSAY_MODEL_SHORT_TAIL);
  return status;
}

/* ---- scenarios --------------------------------------------------------------------------------------- */

static void print_parts(const scenario_result *r) {
  for (int32_t i = 0; i < r->parts && r->eager_us > 0; ++i) {
    const scenario_part *part = &r->part[i];
    (void)printf("        %-24s %-24s %4lld calls %9.2f us  %5.1f %%", part->op, part->variant, (long long)part->calls,
                 part->us, 100 * part->us / r->eager_us);
    if (part->graph_calls > 0)
      (void)printf("  in the graph %9.2f us  %5.1f %%", part->graph_us, 100 * part->graph_us / r->graph_us);
    (void)putchar('\n');
  }
  if (r->graph_us > 0)
    (void)printf("        graph %.2f us, of no operator alone %.2f us  %.1f %%\n", r->graph_us, r->graph_rest_us,
                 100 * r->graph_rest_us / r->graph_us);
}

static void print_scenario(const scenario_setup *setup, const scenario *one, const scenario_result *r) {
  const char *model = assay_model_arch_name(setup->config->arch);
  if (!r->there) {
    (void)printf("FAIL %s %s: no figure\n  %s\n", model, one->name, r->why);
    return;
  }
  (void)printf("%-7s %-23s wall %9.2f ms [%.2f, %.2f]  prefill %8.2f  step %8.3f ms  layer %7.2f us  span %9.2f us  "
               "%9.0f tok/s  %lld calls  ",
               model, one->name, r->wall_ms, r->wall_low_ms, r->wall_high_ms, r->prefill_ms, r->step_ms,
               1e3 * r->step_ms / (double)setup->config->layers, r->span_us, 1e3 * (double)r->tokens / r->wall_ms,
               (long long)r->calls);
  if (r->limit_ms > 0) (void)printf("limit %.2f ms, %.2f x  ", r->limit_ms, r->wall_ms / r->limit_ms);
  if (r->live > 0) (void)printf("%.1f %% live  ", 100 * r->live);
  const double published = scenario_published(one, setup->config);
  if (published > 0) (void)printf("published %.0f ms  ", 1e3 * published);
  (void)printf("(%lld and %lld tokens as the reference's)\n", (long long)r->agreed[0], (long long)r->agreed[1]);
  print_parts(r);
}

/* Runs one scenario and prints it. *wall: its ms; 0: no figure. peer: a folder that gets a scenario with a figure, or
 * NULL. */
static assay_status run_one(const bench_model *m, bench_session *session, scenario_folder *peer, const scenario *one,
                            double *wall, assay_error *error) {
  static scenario_result result;
  *wall = 0;
  assay_status status = scenario_run(&m->setup, one, &result, error);
  if (status != ASSAY_OK) return status;
  print_scenario(&m->setup, one, &result);
  if (session->jsonl != NULL) scenario_write(session->jsonl, &m->setup, one, &result);
  if (session->jsonl != NULL) (void)fflush(session->jsonl);
  (void)fflush(stdout);
  session->there += result.there;
  session->missing += !result.there;
  if (result.there) *wall = result.wall_ms;
  if (result.there && peer != NULL) status = scenario_folder_add(peer, &m->setup, one, &result, error);
  return status;
}

/* Runs one scenario by the usual engine, by the invariant one, and by the usual one again. The quotient is that of the
 * invariant one and the mean of the other two, so that clocks that drift affect both. */
static assay_status run_beside(bench_model *m, bench_session *session, scenario_folder *peer, const scenario *one,
                               double *wall, assay_error *error) {
  double usual[2] = {0, 0};
  m->options.invariant = false;
  assay_status status = run_one(m, session, NULL, one, &usual[0], error);
  m->options.invariant = true;
  if (status == ASSAY_OK) status = run_one(m, session, NULL, one, wall, error);
  m->options.invariant = false;
  if (status == ASSAY_OK) status = run_one(m, session, peer, one, &usual[1], error);
  m->options.invariant = true;
  if (status == ASSAY_OK && usual[0] > 0 && usual[1] > 0 && *wall > 0)
    (void)printf("%-7s %-23s invariant %.2f ms, usual %.2f and %.2f ms: %.3f x\n",
                 assay_model_arch_name(m->config.arch), one->name, *wall, usual[0], usual[1],
                 2 * *wall / (usual[0] + usual[1]));
  return status;
}

/* Runs the peer over the scenarios that have a figure, and copies its lines to the file. */
static assay_status run_peer(const bench_model *m, scenario_folder *peer, bench_session *session, assay_error *error) {
  bool absent = false, wrong = false, whole = true;
  assay_status status = scenario_folder_finish(peer, &m->setup, error);
  if (status != ASSAY_OK || peer->count == 0) return status;
  (void)fflush(session->jsonl);
  status = bench_peers_run("step.py", peer->path, &absent, &wrong, error);
  if (status == ASSAY_OK && absent)
    (void)fputs("{\"bench\":\"peer\",\"peer\":\"step\",\"missing\":\"python3\"}\n", session->jsonl);
  if (status == ASSAY_OK && !absent) status = scenario_folder_take(peer, session->jsonl, &whole, error);
  if (status == ASSAY_OK && !whole)
    (void)printf("FAIL step: not one line for each of %lld scenarios\n", (long long)peer->count);
  session->missing += wrong || !whole;
  return status;
}

static void say_no_peer(const assay_model_config *config, bench_session *session) {
  const char *model = assay_model_arch_name(config->arch);
  (void)printf("step: %s: no figure: the peer computes models of the family qwen3\n", model);
  (void)fprintf(session->jsonl,
                "{\"bench\":\"peer\",\"peer\":\"step\",\"model\":\"%s\",\"unsupported\":\"not of the family qwen3\"}\n",
                model);
}

static assay_status run_model(const char *name, const cli_options *given, bench_session *session, const scenario *list,
                              int32_t count, double *wall, assay_error *error) {
  bench_model m;
  scenario_folder made = {.path = ""}, *peer = NULL;
  assay_status status = bench_model_open(name, given, &session->limits, &m, error);
  if (status == ASSAY_OK && given->peers && m.config.arch == ASSAY_QWEN3) {
    peer = &made;
    status = scenario_folder_make(peer, error);
  }
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i)
    status = given->invariant ? run_beside(&m, session, peer, &list[i], &wall[i], error)
                              : run_one(&m, session, peer, &list[i], &wall[i], error);
  if (status == ASSAY_OK && peer != NULL) status = run_peer(&m, peer, session, error);
  if (status == ASSAY_OK && given->peers && peer == NULL) say_no_peer(&m.config, session);
  scenario_folder_remove(&made);
  bench_model_close(&m);
  return status;
}

static assay_status find_scenarios(const cli_options *given, scenario *list, int32_t *count, assay_error *error) {
  scenario one;
  *count = 0;
  for (int32_t i = 0; given->words.count == 0 && *count < MOST && scenario_at(i, &one); ++i)
    (void)scenario_find(one.name, given->part, &list[(*count)++]);
  for (int32_t i = 0; i < given->words.count; ++i) {
    if (scenario_find(given->words.item[i], given->part, &list[*count])) {
      ++*count;
      continue;
    }
    char names[512] = "", near[CLI_NEAR];
    for (int32_t n = 0; scenario_at(n, &one); ++n)
      (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", n > 0 ? ", " : "", one.name);
    return assay_fail(error, ASSAY_ERR_INPUT, "scenario: found '%s'%s, allowed: %s", given->words.item[i],
                      cli_did_you_mean(given->words.item[i], names, near), names);
  }
  return ASSAY_OK;
}

int cli_bench_scenario(int argc, char **argv) {
  static const char *const both[] = {"asynct", "qwen3"};
  cli_options given;
  bench_session session = {.jsonl = NULL};
  scenario list[MOST];
  double wall[CLI_MAX_MODELS][MOST] = {{0}};
  int32_t count = 0;
  assay_error error = {""};
  assay_status status = read_words(argc, argv, "bench scenario", &given, &error);
  if (status == ASSAY_OK && given.peers && given.jsonl == NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--peers: needs --jsonl, where their figures go");
  if (status == ASSAY_OK) status = find_scenarios(&given, list, &count, &error);
  if (status == ASSAY_OK) status = bench_session_open(&given, &session, &error);
  const int32_t models = given.models.count > 0 ? given.models.count : 2;
  for (int32_t m = 0; m < models && status == ASSAY_OK; ++m)
    status = run_model(given.models.count > 0 ? given.models.item[m] : both[m], &given, &session, list, count, wall[m],
                       &error);
  for (int32_t i = 0; i < count && status == ASSAY_OK && models == 2; ++i)
    if (wall[0][i] > 0 && wall[1][i] > 0)
      (void)printf("%-23s %s / %s: %.3f\n", list[i].name, given.models.count > 0 ? given.models.item[0] : both[0],
                   given.models.count > 0 ? given.models.item[1] : both[1], wall[0][i] / wall[1][i]);
  return bench_session_close(&session, &given, status, &error);
}

/* ---- traces ------------------------------------------------------------------------------------------ */

static void print_points(const char *name, const online_points *p) {
  (void)printf("    %-5s p50 %10.2f  p90 %10.2f  p99 %10.2f ms\n", name, p->p50, p->p90, p->p99);
}

static void print_online(const scenario_setup *setup, const online_plan *plan, const online_result *r) {
  const char *model = assay_model_arch_name(setup->config->arch);
  if (!r->there) {
    (void)printf("FAIL %s %s x %.2g: no figure\n  %s\n", model, plan->from->name, plan->scale, r->why);
    return;
  }
  (void)printf("%-7s %-10s x %.2g: %lld requests in %.2f s (%.2f a second offered, %.2f served), ", model,
               plan->from->name, plan->scale, (long long)r->requests, r->seconds, r->offered_rate, r->request_rate);
  (void)printf("%.0f output and %.0f prompt tokens/s, %.1f %% of the prompts from the cache, %lld preempted, %lld open "
               "at most, %lld cut\n",
               r->output_rate, r->prompt_rate,
               r->prompt_tokens > 0 ? 100 * (double)r->hit_tokens / (double)r->prompt_tokens : 0,
               (long long)r->preempted, (long long)r->most_open, (long long)r->cut);
  print_points("TTFT", &r->ttft);
  print_points("TPOT", &r->tpot);
  print_points("ITL", &r->itl);
  print_points("e2e", &r->e2e);
}

static assay_status run_trace(const bench_model *m, const cli_options *given, const char *name, bench_session *session,
                              assay_error *error) {
  static const double usual[] = {0.4, 0.7, 1.0, 1.3, 1.6};
  static online_result result;
  trace from;
  assay_status status = trace_load(name, folder_of_fixtures(), &from, error);
  if (status != ASSAY_OK) return status;
  const int32_t count = given->scales > 0 ? given->scales : (int32_t)(sizeof usual / sizeof usual[0]);
  for (int32_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const online_plan plan = {.from = &from,
                              .scale = given->scales > 0 ? given->scale[i] : usual[i],
                              .seconds = given->seconds,
                              .requests = given->requests,
                              .part = given->part,
                              .max_batch = given->batch > 0 ? given->batch : 128,
                              .max_tokens = given->tokens > 0 ? given->tokens : 2048,
                              .num_blocks = given->blocks > 0 ? given->blocks : 65536,
                              .max_length = given->length > 0 ? given->length : 16384};
    status = online_run(&m->setup, &plan, &result, error);
    if (status != ASSAY_OK) break;
    print_online(&m->setup, &plan, &result);
    if (session->jsonl != NULL) online_write(session->jsonl, &m->setup, &plan, &result);
    if (session->jsonl != NULL) (void)fflush(session->jsonl);
    (void)fflush(stdout);
    session->there += result.there;
    session->missing += !result.there;
  }
  trace_free(&from);
  return status;
}

int cli_bench_online(int argc, char **argv) {
  cli_options given;
  bench_session session = {.jsonl = NULL};
  char near[CLI_NEAR];
  assay_error error = {""};
  assay_status status = read_words(argc, argv, "bench online", &given, &error);
  if (status == ASSAY_OK && given.words.count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "online: needs a trace, allowed: %s", trace_names);
  for (int32_t i = 0; i < given.words.count && status == ASSAY_OK; ++i)
    if (trace_file(given.words.item[i]) == NULL)
      status = assay_fail(&error, ASSAY_ERR_INPUT, "trace: found '%.60s'%s, allowed: %s", given.words.item[i],
                          cli_did_you_mean(given.words.item[i], trace_names, near), trace_names);
  if (status == ASSAY_OK) status = bench_session_open(&given, &session, &error);
  const int32_t models = given.models.count > 0 ? given.models.count : 1;
  for (int32_t m = 0; m < models && status == ASSAY_OK; ++m) {
    bench_model model;
    status = bench_model_open(given.models.count > 0 ? given.models.item[m] : "asynct", &given, &session.limits, &model,
                              &error);
    for (int32_t i = 0; i < given.words.count && status == ASSAY_OK; ++i)
      status = run_trace(&model, &given, given.words.item[i], &session, &error);
    bench_model_close(&model);
  }
  return bench_session_close(&session, &given, status, &error);
}
