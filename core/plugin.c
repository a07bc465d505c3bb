/* plugin.c: learns in a child process what a plug-in has, and loads it where its variants are called. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/child.h"
#include "core/contract.h"
#include "core/modes.h"
#include "core/registry_add.h"

/* A file that loads takes milliseconds. Times are of one step: processor time, and time asleep. */
enum { STEP_MS = 3000, MOST_MS = 120000, MOST_ROWS = 4096, MOST_TEXT = 1 << 16, MOST_BYTES = 1 << 26, TEXTS = 6 };

/* A plug-in, as plain data of this process. Its rows are copies whose calls are set where it is loaded. */
typedef struct plugin {
  struct plugin *next;
  char *origin;                  /* the path as it was given, or the origin of a door */
  const char *name;              /* the file, for messages */
  const assay_plugin_door *door; /* NULL: the symbol assay_plugin */
  assay_variant *rows;
  int32_t count;
  bool here;        /* loaded in this process */
  char change[240]; /* by loading it, in this process; "": none */
} plugin;

static plugin *plugins;
static const struct assay_simt_api *simt_api;

void assay_registry_set_simt(const struct assay_simt_api *api) {
  simt_api = api;
}

/* ---- the object -------------------------------------------------------------------------------------- */

/* Loads the object and asks for its table. `step` is told when the object is loaded, and when it has given its table.
 */
static assay_status load(const char *path, void **object, const assay_plugin_table **table, void (*step)(char),
                         assay_error *error) {
  const assay_status status = ASSAY_ERR_INPUT;
  char refusal[512] = "";
  /* The loader would search the system's folders for a path without a slash. */
  const size_t size = strlen(path) + 3;
  char *local = malloc(size);
  if (local == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "plug-in %s: out of memory", path);
  (void)snprintf(local, size, "%s%s", strchr(path, '/') != NULL ? "" : "./", path);
  *object = dlopen(local, RTLD_NOW | RTLD_LOCAL);
  free(local);
  if (*object == NULL) return assay_fail(error, ASSAY_ERR_IO, "plug-in %s: cannot be loaded: %s", path, dlerror());
  if (step != NULL) step('l');
  assay_plugin_entry entry = NULL;
  void *symbol = dlsym(*object, "assay_plugin");
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function pointer */
  if (entry == NULL) return assay_fail(error, status, "plug-in %s: has no symbol assay_plugin", path);
  const assay_host host = {ASSAY_ABI, sizeof(assay_host), simt_api, refusal, sizeof refusal};
  *table = entry(&host);
  refusal[sizeof refusal - 1] = '\0';
  if (step != NULL) step('e');
  const assay_plugin_table *t = *table;
  if (t == NULL)
    return assay_fail(error, status, "plug-in %s: refuses: %s", path, refusal[0] != '\0' ? refusal : "no reason given");
  if (t->abi != ASSAY_ABI)
    return assay_fail(error, status, "plug-in %s: ABI %u, this build takes %d", path, t->abi, ASSAY_ABI);
  if (t->struct_size != sizeof(assay_plugin_table))
    return assay_fail(error, status, "plug-in %s: its table has %u bytes, this build's has %zu", path, t->struct_size,
                      sizeof(assay_plugin_table));
  if (t->variant_count < 1 || t->variants == NULL)
    return assay_fail(error, status, "plug-in %s: gives no variants", path);
  if (t->variant_count > MOST_ROWS)
    return assay_fail(error, status, "%s: found %d variants, allowed up to %d", path, t->variant_count, MOST_ROWS);
  return ASSAY_OK;
}

/* Loads the plug-in by its door. `*object` is NULL if the door itself unloads. */
static assay_status load_by_door(const plugin *p, void **object, const assay_plugin_table **table, void (*step)(char),
                                 assay_error *error) {
  *object = NULL;
  if (p->door == NULL) return load(p->origin, object, table, step, error);
  return p->door->open(p->door->context, step, table, error);
}

/* ---- the child that looks at it ---------------------------------------------------------------------- */

/* The child tells its steps: 'l' loaded, 'e' entered, 't' and the table, 'u' unloaded; or 'r' and a refusal. */
static int told_to = -1;

static void tell(const void *from, size_t bytes) {
  const unsigned char *at = from;
  while (bytes > 0) {
    const ssize_t put = write(told_to, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) _exit(1);
    at += put;
    bytes -= (size_t)put;
  }
}

static void tell_step(char step) {
  tell(&step, 1);
}

static void texts_of(assay_variant *row, const char ***text) {
  text[0] = &row->op, text[1] = &row->name, text[2] = &row->why;
  text[3] = &row->device, text[4] = &row->arch, text[5] = &row->claims;
}

/* Tells a row: its bytes, then its texts. A length of -1 is a text that is not there. */
static void tell_row(const assay_variant *given) {
  assay_variant row = *given;
  const char **text[TEXTS];
  texts_of(&row, text);
  tell(&row, sizeof row);
  for (int i = 0; i < TEXTS && row.struct_size == sizeof row; ++i) {
    const int32_t length = *text[i] != NULL ? (int32_t)strnlen(*text[i], MOST_TEXT) : -1;
    tell(&length, sizeof length);
    if (length > 0) tell(*text[i], (size_t)length);
  }
}

static void look_inside(const plugin *p) {
  static assay_error error; /* its bytes are told */
  void *object = NULL;
  const assay_plugin_table *table = NULL;
  if (load_by_door(p, &object, &table, tell_step, &error) != ASSAY_OK) {
    tell_step('r');
    tell(&error, sizeof error);
    _exit(0);
  }
  tell_step('t');
  const int32_t count = table->variant_count;
  tell(&count, sizeof count);
  for (int32_t i = 0; i < count; ++i) {
    tell_row(&table->variants[i]);
    if (table->variants[i].struct_size != sizeof(assay_variant)) break; /* the place of the next one is not known */
  }
  if (object != NULL) (void)dlclose(object);
  if (p->door != NULL) p->door->close(p->door->context);
  tell_step('u');
  _exit(0);
}

/* ---- the parent that listens ------------------------------------------------------------------------- */

typedef struct answer {
  unsigned char *bytes;
  size_t used, room, at; /* at: the next one to be read */
  char step;             /* the last one told; 0: none */
  plugin *made;
  int32_t wanted; /* rows that are told; -1: not yet known */
} answer;

static bool take(answer *a, void *to, size_t bytes) {
  if (a->used - a->at < bytes) return false;
  memcpy(to, a->bytes + a->at, bytes);
  a->at += bytes;
  return true;
}

static assay_status no_supports(const assay_call *call, assay_error *error) {
  (void)call;
  return assay_fail(error, ASSAY_ERR_INTERNAL, "the plug-in is not loaded in this process");
}

static assay_status no_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return no_supports(call, error);
}

static assay_status no_launch(const assay_call *call, assay_env *env, assay_error *error) {
  (void)env;
  return no_supports(call, error);
}

static assay_status no_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  (void)env, (void)sums;
  return no_supports(call, error);
}

/* Takes one row if it is whole; its texts become the plug-in's own. Returns 1. Returns 0 if more
 * must come, and -1 for nonsense or without memory. */
static int take_row(answer *a, assay_variant *row) {
  const size_t start = a->at;
  const char **text[TEXTS];
  if (!take(a, row, sizeof *row)) return 0;
  row->supports = row->supports != NULL ? no_supports : NULL;
  row->workspace = row->workspace != NULL ? no_workspace : NULL;
  row->launch = row->launch != NULL ? no_launch : NULL;
  row->sums = row->sums != NULL ? no_sums : NULL;
  texts_of(row, text);
  for (int i = 0; i < TEXTS; ++i)
    *text[i] = NULL;
  for (int i = 0; i < TEXTS && row->struct_size == sizeof *row; ++i) {
    int32_t length = 0;
    const bool there = take(a, &length, sizeof length);
    if (there && (length < -1 || length >= MOST_TEXT)) return -1;
    if (!there || (length > 0 && a->used - a->at < (size_t)length)) {
      for (int k = 0; k < i; ++k)
        free((void *)(uintptr_t)*text[k]);
      a->at = start;
      return 0;
    }
    if (length < 0) continue;
    char *own = malloc((size_t)length + 1);
    if (own == NULL) return -1;
    (void)take(a, own, (size_t)length);
    own[length] = '\0';
    *text[i] = own;
  }
  return 1;
}

/* Reads what has come. Returns 1 at the end of the answer, 0 if more must come, -1 for nonsense. */
static int read_answer(answer *a, assay_error *error) {
  for (;;) {
    if (a->step == 't' && a->wanted < 0) {
      if (!take(a, &a->wanted, sizeof a->wanted)) return 0;
      if (a->wanted < 1 || a->wanted > MOST_ROWS) return -1;
      a->made->rows = calloc((size_t)a->wanted, sizeof *a->made->rows);
      if (a->made->rows == NULL) return -1;
    }
    while (a->step == 't' && a->made->count < a->wanted) {
      const int taken = take_row(a, &a->made->rows[a->made->count]);
      if (taken <= 0) return taken;
      const uint32_t size = a->made->rows[a->made->count++].struct_size;
      if (size != sizeof(assay_variant)) a->wanted = a->made->count; /* refused by the registry */
    }
    if (a->step == 'r') return take(a, error, sizeof *error) ? 1 : 0;
    if (!take(a, &a->step, 1)) return 0;
    if (a->step == 'u') return 1;
    if (strchr("lert", a->step) == NULL || a->step == '\0') return -1;
  }
}

static bool hear(answer *a, int fd) {
  if (a->used == a->room) {
    const size_t room = a->room > 0 ? 2 * a->room : 1 << 16;
    unsigned char *grown = room <= MOST_BYTES ? realloc(a->bytes, room) : NULL;
    if (grown == NULL) return false;
    a->bytes = grown;
    a->room = room;
  }
  const ssize_t got = read(fd, a->bytes + a->used, a->room - a->used);
  if (got < 0) return errno == EINTR;
  a->used += (size_t)got;
  return got > 0;
}

/* Returns what the child did when it told no further step. */
static const char *doing(char step, const plugin *p) {
  return step == 0                    ? "loading it (its constructors)"
         : step == 'l'                ? (p->door != NULL ? p->door->entry : "assay_plugin()")
         : step == 'e' || step == 't' ? "reading its table, and unloading it"
                                      : "its answer";
}

static assay_status listen_to(const char *path, pid_t pid, int fd, answer *a, assay_error *error) {
  patience time;
  char last = 0, end[80];
  int status = 0;
  assay_error refusal = {""};
  patience_start(&time, pid);
  for (;;) {
    struct pollfd ready = {fd, POLLIN, 0};
    const bool heard = poll(&ready, 1, 100) > 0 && hear(a, fd);
    const int told = heard ? read_answer(a, &refusal) : 0;
    if (told > 0 && a->step == 'u') return ASSAY_OK;
    if (told > 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s", refusal.text);
    if (told < 0) break;
    if (a->step != last) patience_start(&time, pid);
    last = a->step;
    if (heard) continue;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      /* Its last words may still be in the pipe. */
      while (hear(a, fd) && read_answer(a, &refusal) == 0)
        continue;
      if (a->step == 'u') return ASSAY_OK;
      if (a->step == 'r') return assay_fail(error, ASSAY_ERR_INPUT, "%s", refusal.text);
      child_end_text(status, end, sizeof end);
      return assay_fail(error, ASSAY_ERR_INPUT, "plug-in %s: cannot be loaded: %s: the process that tries it %s%s",
                        path, doing(a->step, a->made), end, a->step == 0 ? "; the file may be damaged" : "");
    }
    if (ready.revents != 0) (void)poll(NULL, 0, 20); /* it closed its end, and has not ended */
    patience_look(&time);
    if (time.worked_ms > STEP_MS || time.asleep_ms > STEP_MS || time.passed_ms > MOST_MS)
      return assay_fail(error, ASSAY_ERR_INPUT, "plug-in %s: cannot be loaded: %s does not end within %g s", path,
                        doing(a->step, a->made), 1e-3 * STEP_MS);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "plug-in %s: cannot be loaded: %s: no answer that can be read", path,
                    doing(a->step, a->made));
}

/* A signal that the child sends to this process does not end it. */
static volatile pid_t tried;
static volatile sig_atomic_t signalled;
static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2};
enum { CAUGHT = sizeof caught / sizeof caught[0] };

static void on_signal(int number, siginfo_t *from, void *unused) {
  (void)unused;
  const int before = errno;
  if (from->si_code <= 0 && tried > 0 && (from->si_pid == tried || getpgid(from->si_pid) == tried)) {
    signalled = number;
  } else {
    (void)signal(number, SIG_DFL);
    (void)raise(number);
  }
  errno = before;
}

static void catch_signals(struct sigaction *before) {
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_sigaction = on_signal;
  act.sa_flags = SA_SIGINFO;
  (void)sigemptyset(&act.sa_mask);
  tried = 0;
  signalled = 0;
  for (int i = 0; i < CAUGHT; ++i) {
    (void)sigaction(caught[i], NULL, &before[i]);
    if (before[i].sa_handler != SIG_IGN) (void)sigaction(caught[i], &act, NULL);
  }
}

static void release_signals(const struct sigaction *before) {
  for (int i = 0; i < CAUGHT; ++i)
    (void)sigaction(caught[i], &before[i], NULL);
}

static void free_plugin(plugin *p) {
  for (int32_t i = 0; p != NULL && i < p->count; ++i) {
    const char **text[TEXTS];
    texts_of(&p->rows[i], text);
    for (int k = 0; k < TEXTS; ++k)
      free((void *)(uintptr_t)*text[k]);
  }
  if (p == NULL) return;
  free(p->rows);
  free(p->origin);
  free(p);
}

static assay_status load_any(const char *origin, const assay_plugin_door *door, assay_error *error) {
  const char *const path = door != NULL ? door->name : origin;
  answer a = {.wanted = -1};
  int ends[2];
  pid_t pid = -1;
  a.made = calloc(1, sizeof *a.made);
  if (a.made != NULL) a.made->origin = malloc(strlen(origin) + 1);
  if (a.made == NULL || a.made->origin == NULL) {
    free(a.made);
    return assay_fail(error, ASSAY_ERR_MEMORY, "plug-in %s: out of memory", path);
  }
  memcpy(a.made->origin, origin, strlen(origin) + 1);
  a.made->door = door;
  a.made->name = door != NULL ? door->name : a.made->origin;
  if (pipe(ends) != 0) {
    free_plugin(a.made);
    return assay_fail(error, ASSAY_ERR_IO, "host: plug-in %s: no pipe: %s", path, strerror(errno));
  }
  (void)fcntl(ends[0], F_SETFL, O_NONBLOCK); /* a child of the child may hold the other end */
  struct sigaction before[CAUGHT];
  sigset_t all, mask;
  catch_signals(before);
  (void)sigfillset(&all);
  (void)sigprocmask(SIG_BLOCK, &all, &mask); /* until the child's number is known */
  assay_status status = child_fork(path, &pid, error);
  if (status == ASSAY_OK && pid == 0) {
    (void)close(ends[0]);
    told_to = ends[1];
    look_inside(a.made);
  }
  (void)close(ends[1]);
  tried = pid;
  (void)sigprocmask(SIG_SETMASK, &mask, NULL);
  if (status == ASSAY_OK) {
    status = listen_to(path, pid, ends[0], &a, error);
    child_kill(pid);
    (void)child_wait(pid);
  }
  release_signals(before);
  if (signalled != 0)
    status =
        assay_fail(error, ASSAY_ERR_INPUT, "plug-in %s: cannot be loaded: it sends %s to the process that loads it",
                   path, child_signal_name(signalled));
  (void)close(ends[0]);
  free(a.bytes);
  if (status == ASSAY_OK) status = assay_registry_add_variants(a.made->rows, a.made->count, a.made->origin, error);
  if (status == ASSAY_OK) {
    a.made->next = plugins;
    plugins = a.made;
  } else {
    free_plugin(a.made);
  }
  return status;
}

assay_status assay_plugin_load(const char *path, assay_error *error) {
  return load_any(path, NULL, error);
}

assay_status assay_plugin_load_by(const assay_plugin_door *door, assay_error *error) {
  return load_any(door->origin, door, error);
}

/* ---- where variants are called ----------------------------------------------------------------------- */

static plugin *plugin_of(const assay_variant *row) {
  plugin *p = plugins;
  while (p != NULL && !(row >= p->rows && row < p->rows + p->count))
    p = p->next;
  return p;
}

static bool same_text(const char *a, const char *b) {
  return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* Sets the calls of the rows from the table of the loaded object, which must have the rows that the child told. The
 * contract of a row stays as the child told it, whatever the plug-in does to its own table later. */
static assay_status set_calls(plugin *p, const assay_plugin_table *table, assay_error *error) {
  for (int32_t i = 0; i < p->count; ++i) {
    const assay_variant *live = &table->variants[i];
    assay_variant *row = &p->rows[i];
    if (table->variant_count != p->count || live->struct_size != sizeof *live || !same_text(live->op, row->op) ||
        !same_text(live->name, row->name) || !same_text(live->device, row->device) ||
        !contract_same(&live->contract, &row->contract) || live->supports == NULL || live->workspace == NULL ||
        live->launch == NULL || (live->sums == NULL) != (row->sums == NULL))
      return assay_fail(error, ASSAY_ERR_INPUT, "plug-in %s: gives another table each time it is loaded", p->name);
    row->supports = live->supports;
    row->workspace = live->workspace;
    row->launch = live->launch;
    row->sums = live->sums;
  }
  return ASSAY_OK;
}

assay_status assay_plugin_bind(const assay_variant *row, assay_error *error) {
  plugin *p = plugin_of(row);
  void *object = NULL;
  const assay_plugin_table *table = NULL;
  if (p == NULL || p->here) return ASSAY_OK;
  modes_set();
  assay_status status = load_by_door(p, &object, &table, NULL, error);
  if (modes_changed(p->change, sizeof p->change)) modes_note("loading the plug-in", p->change);
  if (status == ASSAY_OK) status = set_calls(p, table, error);
  p->here = status == ASSAY_OK;
  return status;
}

assay_status assay_plugin_bind_all(assay_error *error) {
  assay_status status = ASSAY_OK;
  for (const plugin *p = plugins; p != NULL && status == ASSAY_OK; p = p->next)
    status = assay_plugin_bind(&p->rows[0], error);
  return status;
}

const char *assay_plugin_origin(const assay_variant *row) {
  const plugin *p = plugin_of(row);
  return p != NULL ? p->origin : NULL;
}

const assay_plugin_door *assay_plugin_door_of(const assay_variant *row) {
  const plugin *p = plugin_of(row);
  return p != NULL ? p->door : NULL;
}

bool assay_plugin_is_direct(const assay_variant *row) {
  const assay_plugin_door *door = assay_plugin_door_of(row);
  return door != NULL && door->direct && strcmp(row->device, "simt") == 0;
}

const char *assay_plugin_change(const assay_variant *row) {
  const plugin *p = plugin_of(row);
  return p != NULL && p->change[0] != '\0' ? p->change : NULL;
}

bool assay_plugin_here(void) {
  for (const plugin *p = plugins; p != NULL; p = p->next)
    if (p->here) return true;
  return false;
}
