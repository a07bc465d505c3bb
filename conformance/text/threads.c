/* threads.c: threads that live as long as one loop. */
#include "threads.h"

#include <pthread.h>
#include <stdbool.h>

enum { MOST = 64 };

static _Thread_local int32_t allowed = 1;

typedef struct part {
  threads_body body;
  void *context;
  int64_t begin, end;
  pthread_t thread;
  bool started;
} part;

void threads_use(int32_t count) {
  allowed = count < 1 ? 1 : count > MOST ? MOST : count;
}

int32_t threads_used(void) {
  return allowed;
}

static void *run(void *of) {
  const part *p = of;
  p->body(p->context, p->begin, p->end);
  return NULL;
}

void threads_for(int64_t count, int64_t grain, threads_body body, void *context) {
  part all[MOST];
  int64_t parts = grain > 0 ? count / grain : count;
  if (parts > allowed) parts = allowed;
  if (parts <= 1) {
    if (count > 0) body(context, 0, count);
    return;
  }
  for (int64_t i = 0; i < parts; ++i) {
    all[i] = (part){body, context, count * i / parts, count * (i + 1) / parts, 0, false};
    all[i].started = i > 0 && pthread_create(&all[i].thread, NULL, run, &all[i]) == 0;
  }
  for (int64_t i = 0; i < parts; ++i) {
    if (!all[i].started) (void)run(&all[i]); /* the first part, and each part that got no thread */
  }
  for (int64_t i = 0; i < parts; ++i)
    if (all[i].started) (void)pthread_join(all[i].thread, NULL);
}
