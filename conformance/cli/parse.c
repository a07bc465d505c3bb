/* parse.c: a command line by glibc's argp, over the table of options. argp splits the words, and prints the help. The
 * messages are those of this program: the parameter, what was found, what is allowed. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/files/bytes.h"
#include "table.h"

enum { MOST_OPTIONS = 40, TOPICS = TOPIC_HELP + 1, KEY_FIRST = 256, KEY_HELP = 'h' };

/* A command's options in the form of argp. */
typedef struct argp_form {
  struct argp_option option[MOST_OPTIONS + TOPICS + 2];
  const cli_option *row[MOST_OPTIONS]; /* by key - KEY_FIRST */
  char text[6000];                     /* paragraphs before and after the options */
  struct argp argp;
} argp_form;

typedef struct reading {
  const cli_command *command;
  const argp_form *form;
  cli_options *options;
  int word; /* index of the word that is read next */
  assay_error *error;
} reading;

/* ---- the form ---------------------------------------------------------------------------------------- */

static bool is_short(const cli_option *row) {
  return row->name[1] == '\0';
}

/* Returns the option's name, without the ":kind" that it may end in. argp keeps the pointer. */
static const char *long_name(const cli_option *row) {
  static char kept[MOST_OPTIONS][32];
  static int32_t used;
  const size_t length = strcspn(row->name, ":");
  if (row->name[length] == '\0') return row->name;
  for (int32_t i = 0; i < used; ++i)
    if (strlen(kept[i]) == length && strncmp(kept[i], row->name, length) == 0) return kept[i];
  if (used == MOST_OPTIONS) return row->name;
  (void)snprintf(kept[used], sizeof kept[0], "%.*s", (int)length, row->name);
  return kept[used++];
}

static void put_texts(argp_form *form, const cli_command *command) {
  const char *examples = command->examples != NULL ? command->examples : "";
  size_t used = (size_t)snprintf(form->text, sizeof form->text, "%s.\v%s", command->brief,
                                 command->text != NULL ? command->text : "");
  if (examples[0] != '\0' && used < sizeof form->text)
    used += (size_t)snprintf(form->text + used, sizeof form->text - used, "%sExamples:\n",
                             command->text != NULL && command->text[0] != '\0' ? "\n\n" : "");
  while (*examples != '\0' && used < sizeof form->text) {
    const int line = (int)strcspn(examples, "\n");
    used += (size_t)snprintf(form->text + used, sizeof form->text - used, "  %.*s\n", line, examples);
    examples += line + (examples[line] == '\n');
  }
}

static void make_form(argp_form *form, const cli_command *command, argp_parser_t parser) {
  int32_t used = 0, keys = 0;
  memset(form, 0, sizeof *form);
  for (int topic = TOPIC_CASES; topic <= TOPIC_FILES; ++topic) {
    bool headed = false;
    const cli_option *row = NULL;
    for (int32_t n = 0; (row = command_option(command, n)) != NULL && keys < MOST_OPTIONS; ++n) {
      if ((int)row->topic != topic) continue;
      if (!headed) form->option[used++] = (struct argp_option){.doc = option_topic((cli_topic)topic), .group = topic};
      headed = true;
      form->row[keys] = row;
      form->option[used++] = (struct argp_option){.name = is_short(row) ? NULL : long_name(row),
                                                  .key = is_short(row) ? row->name[0] : KEY_FIRST + keys,
                                                  .arg = row->value,
                                                  .doc = row->doc,
                                                  .group = topic};
      ++keys;
    }
  }
  form->option[used] =
      (struct argp_option){.name = "help", .key = KEY_HELP, .doc = "prints this help", .group = TOPIC_HELP};
  put_texts(form, command);
  form->argp = (struct argp){.options = form->option,
                             .parser = parser,
                             .args_doc = command->arguments[0] != '\0' ? command->arguments : NULL,
                             .doc = form->text};
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void list_options(const cli_command *command, const char *between, char *list, size_t size) {
  const cli_option *row = NULL;
  size_t used = 0;
  list[0] = '\0';
  for (int32_t n = 0; (row = command_option(command, n)) != NULL && used < size; ++n) {
    char typed[40];
    option_typed(row, typed, sizeof typed);
    used += (size_t)snprintf(list + used, size - used, "%s%s", n > 0 ? between : "", typed);
  }
}

/* Returns the option that `word` names up to its end or '='; NULL: none. */
static const cli_option *named(const cli_command *command, const char *word) {
  const cli_option *row = NULL;
  for (int32_t n = 0; (row = command_option(command, n)) != NULL; ++n) {
    char typed[40];
    option_typed(row, typed, sizeof typed);
    const size_t length = strlen(typed);
    if (strncmp(word, typed, length) == 0 && (word[length] == '\0' || word[length] == '=' || is_short(row))) return row;
  }
  return NULL;
}

static assay_status refuse_option(const reading *r, const char *word) {
  char list[1200], name[64], near[CLI_NEAR];
  (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
  list_options(r->command, ", ", list, sizeof list);
  return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: found option '%.200s'%s, allowed: %s", r->command->name, word,
                    cli_did_you_mean(name, list, near), list[0] != '\0' ? list : "no options");
}

/* Refuses a word that getopt did not accept: an unknown option, a missing value, or a value where none is allowed. */
static assay_status refuse_word(const reading *r, const char *word) {
  const cli_option *row = named(r->command, word);
  char typed[40];
  if (row == NULL) return refuse_option(r, word);
  option_typed(row, typed, sizeof typed);
  const char *equals = strchr(word, '=');
  if (row->value == NULL && equals != NULL)
    return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: takes no value, found '%s'", typed, equals + 1);
  return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: needs a value", typed);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static assay_status read_option(const reading *r, int key, const char *value, const char *word) {
  const cli_option *row = NULL;
  if (key >= KEY_FIRST) {
    row = r->form->row[key - KEY_FIRST];
  } else {
    for (int32_t n = 0; (row = command_option(r->command, n)) != NULL; ++n)
      if (is_short(row) && row->name[0] == key) break;
    /* "-o=FILE" is "-o FILE". */
    if (word[0] == '-' && word[2] == '=' && value == word + 2) ++value;
  }
  /* An abbreviation that getopt has completed would change its meaning with the next option. */
  if (row == NULL || named(r->command, word) != row) return refuse_option(r, word);
  char typed[40];
  option_typed(row, typed, sizeof typed);
  const char *words = row->words != NULL ? row->words : "";
  struct stat about;
  const bool folder = strcmp(words, "@file @folder") == 0;
  const bool file = folder ? stat(value, &about) != 0 || !S_ISDIR(about.st_mode)
                           : strcmp(words, "@file") == 0 || strcmp(words, "@plugin") == 0;
  assay_error inner = {""};
  if (file && file_check_regular(value, &inner) != ASSAY_OK)
    return assay_fail(r->error, ASSAY_ERR_INPUT, "%s: %s", typed, inner.text);
  return option_take(row, r->options, typed, value, r->error);
}

/* glibc is not instrumented; MemorySanitizer would take argp's own memory for uninitialised. */
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
__attribute__((no_sanitize("memory")))
#endif
#endif
static error_t
on_key(int key, char *value, struct argp_state *state) {
  reading *r = state->input;
  char *const *argv = state->argv;
  const int at = r->word;
  assay_status status = ASSAY_OK;
  switch (key) {
  case KEY_HELP:
    exit(help_print(r->command, stdout));
  case ARGP_KEY_ARG:
    status = option_word(r->options, value, r->error);
    break;
  case ARGP_KEY_ERROR:
    if (r->error->text[0] == '\0') (void)refuse_word(r, at < state->argc ? argv[at] : "");
    return 0;
  case ARGP_KEY_INIT:
  case ARGP_KEY_ARGS:
  case ARGP_KEY_NO_ARGS:
  case ARGP_KEY_END:
  case ARGP_KEY_SUCCESS:
  case ARGP_KEY_FINI:
    return ARGP_ERR_UNKNOWN;
  default:
    status = read_option(r, key, value, argv[at]);
    break;
  }
  r->word = state->next;
  return status == ASSAY_OK ? 0 : EINVAL;
}

assay_status cli_parse(int argc, char **argv, const char *name, cli_options *options, assay_error *error) {
  const cli_command *command = command_find(name);
  memset(options, 0, sizeof *options);
  options->device = "simt";
  options->seed = 1;
  options->deadline_s = CLI_DEADLINE_S;
  options->shrink_budget_s = 60;
  options->power = -1;
  if (command == NULL) return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: no row in the table of commands", name);
  static argp_form form;
  make_form(&form, command, on_key);
  char **words = calloc((size_t)argc + 2, sizeof *words);
  if (words == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", name);
  words[0] = (char *)"assay";
  for (int i = 0; i < argc; ++i)
    words[i + 1] = argv[i];
  reading r = {command, &form, options, 1, error};
  const unsigned flags = ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT | ARGP_IN_ORDER;
  const error_t failed = argp_parse(&form.argp, argc + 1, words, flags, NULL, &r);
  free(words);
  if (failed == 0) return ASSAY_OK;
  return error->text[0] != '\0' ? ASSAY_ERR_INPUT
                                : assay_fail(error, ASSAY_ERR_MEMORY, "%s: %s", name, strerror(failed));
}

/* ---- help -------------------------------------------------------------------------------------------- */

static int help_of_command(const cli_command *command, FILE *to) {
  static argp_form form;
  char name[80];
  make_form(&form, command, NULL);
  (void)snprintf(name, sizeof name, "assay %s", command->name);
  argp_help(&form.argp, to, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, name);
  return fflush(to) != 0 || ferror(to) != 0;
}

static const char about[] =
    "Reference and conformance suite for LLM inference kernels.\v"
    "assay COMMAND --help explains a command and its options.\n\n"
    "Exit status: 0 all good and something ran; 1 a failure; 2 bad input, nothing ran; 3 nothing ran; 77 no such "
    "device here; 130 or 143 interrupted by SIGINT or SIGTERM.";

static int help_of_program(FILE *to) {
  enum { MOST = 48 };
  static struct argp_option list[MOST];
  static char head[MOST][96];
  int32_t used = 0, headed = 0;
  const cli_command *command = NULL;
  memset(list, 0, sizeof list);
  for (int32_t i = 0; (command = command_at(i)) != NULL && used < MOST - 5; ++i) {
    if (command->topic == 0) continue;
    if (command->topic > headed)
      list[used++] = (struct argp_option){.doc = command_topic(command->topic), .group = headed = command->topic};
    (void)snprintf(head[i], sizeof head[i], "%s%s%s", command->name, command->arguments[0] != '\0' ? " " : "",
                   command->arguments);
    list[used++] = (struct argp_option){
        .name = head[i], .flags = OPTION_DOC | OPTION_NO_USAGE, .doc = command->brief, .group = command->topic};
  }
  list[used++] = (struct argp_option){.name = "help", .key = KEY_HELP, .doc = "prints this help", .group = 90};
  list[used] = (struct argp_option){.name = "version", .key = KEY_FIRST, .doc = "prints the version", .group = 90};
  const struct argp argp = {.options = list, .args_doc = "COMMAND ...", .doc = about};
  char name[] = "assay";
  argp_help(&argp, to, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, name);
  return fflush(to) != 0 || ferror(to) != 0;
}

int help_print(const cli_command *command, FILE *to) {
  return command != NULL ? help_of_command(command, to) : help_of_program(to);
}
