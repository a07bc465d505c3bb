/* scenario_write.c: scenarios and traces as lines of JSON. */
#include "online.h"

#include "conformance/text/text.h"

static void number(FILE *to, const char *key, double value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json_number(to, value);
}
static void integer(FILE *to, const char *key, int64_t value) {
  (void)fprintf(to, ",\"%s\":%lld", key, (long long)value);
}

static void begin(FILE *to, const char *kind, const scenario_setup *setup, const char *key, const char *name) {
  (void)fprintf(to, "{\"bench\":\"%s\",\"%s\":", kind, key);
  text_json(to, name);
  (void)fputs(",\"model\":", to);
  text_json(to, assay_model_arch_name(setup->config->arch));
  integer(to, "layers", setup->config->layers);
  integer(to, "hidden", setup->config->hidden);
  (void)fprintf(to, ",\"seed\":%llu", (unsigned long long)setup->seed);
  if (setup->model != NULL && setup->model->invariant) (void)fputs(",\"invariant\":true", to);
}

static void no_figure(FILE *to, const char *why) {
  (void)fputs(",\"message\":", to);
  text_json(to, why);
  (void)fputs("}\n", to);
}

static void parts(FILE *to, const scenario_result *r) {
  (void)fputs(",\"calls\":[", to);
  for (int32_t i = 0; i < r->parts; ++i) {
    (void)fprintf(to, "%s{\"op\":", i > 0 ? "," : "");
    text_json(to, r->part[i].op);
    (void)fputs(",\"variant\":", to);
    text_json(to, r->part[i].variant);
    integer(to, "calls", r->part[i].calls);
    number(to, "us", r->part[i].us);
    if (r->part[i].graph_calls > 0) number(to, "graph_us", r->part[i].graph_us);
    (void)fputc('}', to);
  }
  (void)fputc(']', to);
}

void scenario_write(FILE *to, const scenario_setup *setup, const scenario *one, const scenario_result *r) {
  begin(to, "scenario", setup, "name", one->name);
  integer(to, "batch", one->batch);
  integer(to, "prompt", scenario_prompt(one, 0));
  integer(to, "output", one->output);
  if (!r->there) {
    no_figure(to, r->why);
    return;
  }
  number(to, "wall_ms", r->wall_ms);
  number(to, "wall_low_ms", r->wall_low_ms);
  number(to, "wall_high_ms", r->wall_high_ms);
  number(to, "prefill_ms", r->prefill_ms);
  number(to, "step_ms", r->step_ms);
  number(to, "layer_us", 1e3 * r->step_ms / (double)setup->config->layers);
  number(to, "span_us", r->span_us);
  if (r->graph_us > 0) number(to, "graph_us", r->graph_us);
  if (r->graph_us > 0) number(to, "graph_rest_us", r->graph_rest_us);
  number(to, "tokens_s", 1e3 * (double)r->tokens / r->wall_ms);
  integer(to, "calls_a_step", r->calls);
  number(to, "bytes", r->bytes);
  number(to, "flops", r->flops);
  if (r->limit_ms > 0) number(to, "limit_ms", r->limit_ms);
  if (r->live > 0) number(to, "live_keys", r->live);
  const double published = scenario_published(one, setup->config);
  if (published > 0) number(to, "published_s", published);
  integer(to, "agreed_0", r->agreed[0]);
  integer(to, "agreed_1", r->agreed[1]);
  parts(to, r);
  (void)fputs("}\n", to);
}

static void points(FILE *to, const char *name, const online_points *p) {
  (void)fprintf(to, ",\"%s_ms\":{\"p50\":", name);
  text_json_number(to, p->p50);
  number(to, "p90", p->p90);
  number(to, "p99", p->p99);
  number(to, "mean", p->mean);
  (void)fputc('}', to);
}

void online_write(FILE *to, const scenario_setup *setup, const online_plan *plan, const online_result *r) {
  begin(to, "online", setup, "trace", plan->from->name);
  number(to, "scale", plan->scale);
  integer(to, "part", plan->part);
  integer(to, "max_batch", plan->max_batch);
  integer(to, "max_tokens", plan->max_tokens);
  integer(to, "num_blocks", plan->num_blocks);
  if (!r->there) {
    no_figure(to, r->why);
    return;
  }
  integer(to, "requests", r->requests);
  integer(to, "cut", r->cut);
  number(to, "seconds", r->seconds);
  number(to, "offered_rate", r->offered_rate);
  number(to, "request_rate", r->request_rate);
  number(to, "output_tokens_s", r->output_rate);
  number(to, "prompt_tokens_s", r->prompt_rate);
  integer(to, "prompt_tokens", r->prompt_tokens);
  integer(to, "hit_tokens", r->hit_tokens);
  integer(to, "output_tokens", r->output_tokens);
  integer(to, "preempted", r->preempted);
  integer(to, "most_open", r->most_open);
  integer(to, "steps", r->steps);
  integer(to, "replays", r->replays);
  points(to, "ttft", &r->ttft);
  points(to, "tpot", &r->tpot);
  points(to, "itl", &r->itl);
  points(to, "e2e", &r->e2e);
  integer(to, "agreed_0", r->agreed[0]);
  integer(to, "agreed_1", r->agreed[1]);
  (void)fputs("}\n", to);
}
