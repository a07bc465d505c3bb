/* main.c: finds the command that the first words name, and runs it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "builtin.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "conformance/text/text.h"
#include "core/registry.h"
#include "start.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

/* Returns the command that the first word names, or the first two words ("bench scenario"); NULL: none. `words` gets
 * how many of them were its name. */
static const cli_command *find(int argc, char **argv, int *words) {
  char both[120];
  *words = 2;
  if (argc > 1) (void)snprintf(both, sizeof both, "%.50s %.50s", argv[0], argv[1]);
  const cli_command *found = argc > 1 ? command_find(both) : NULL;
  if (found != NULL && found->topic != 0) return found;
  *words = 1;
  found = argc > 0 ? command_find(argv[0]) : NULL;
  return found != NULL && found->topic != 0 ? found : NULL;
}

static int refuse(const char *word) {
  char known[400] = "", near[CLI_NEAR];
  const cli_command *command = NULL;
  assay_error error = {""};
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i)
    if (command->topic != 0 && strchr(command->name, ' ') == NULL)
      (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i > 0 ? ", " : "", command->name);
  (void)assay_fail(&error, ASSAY_ERR_INPUT, "command: found '%.200s'%s, allowed: %s; assay help explains them",
                   word[0] != '\0' ? word : "(nothing)", cli_did_you_mean(word, known, near), known);
  return cli_leave(ASSAY_ERR_INPUT, &error);
}

/* Refuses a word of a command that takes no more. `after` is the word before it, or NULL. */
static int refuse_more(const char *command, const char *word, const char *after) {
  assay_error error = {""};
  (void)assay_fail(&error, ASSAY_ERR_INPUT, "%s: found '%.200s'%s%s%s, allowed: no further word", command, word,
                   after != NULL ? " after '" : "", after != NULL ? after : "", after != NULL ? "'" : "");
  return cli_leave(ASSAY_ERR_INPUT, &error);
}

static int explain(int argc, char **argv) {
  int words = 0;
  if (argc == 0) return help_print(NULL, stdout);
  const cli_command *command = find(argc, argv, &words);
  if (command == NULL) return refuse(argv[0]);
  return argc > words ? refuse_more("help", argv[words], command->name) : help_print(command, stdout);
}

/* Writes manual pages into a folder, or prints completion for a shell. The build runs this, and no user. */
static int generate(const char *option, const char *value) {
  assay_error error = {""};
  const assay_status status =
      strcmp(option, "--man") == 0 ? man_write(value, &error) : completion_print(value, stdout, &error);
  return status == ASSAY_OK ? fflush(stdout) != 0 : cli_leave(status, &error);
}

static int run(int argc, char **argv) {
  assay_error error = {""};
  const assay_status status = builtin_register(&error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  const char *word = argc > 1 ? argv[1] : "";
  if (argc > 2 && (strcmp(word, "version") == 0 || strcmp(word, "help") == 0) && strcmp(argv[2], "--help") == 0)
    return help_print(command_find(word), stdout);
  if (argc > 2 && strcmp(word, "version") == 0) return refuse_more(word, argv[2], NULL);
  if (strcmp(word, "version") == 0 || strcmp(word, "--version") == 0) return puts("assay " ASSAY_VERSION) < 0;
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return help_print(NULL, stdout);
  if (strcmp(word, "help") == 0) return explain(argc - 2, argv + 2);
  if (argc == 3 && (strcmp(word, "--man") == 0 || strcmp(word, "--completion") == 0)) return generate(word, argv[2]);
  int words = 0;
  const cli_command *command = find(argc - 1, argv + 1, &words);
  if (command == NULL) return refuse(word);
  return command->run(argc - 1 - words, argv + 1 + words);
}

/* An interruption leaves no file that is not whole. */
static void on_end(int number) {
  text_remove_pending();
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

static void catch_ends(void) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i)
    if (signal(ends[i], on_end) == SIG_IGN) (void)signal(ends[i], SIG_IGN);
}

/* A plug-in of --in-process may have left handlers for the end of the process. They have no say in the exit status, and
 * write nothing twice. */
int main(int argc, char **argv) {
  start_restore();
  catch_ends();
  const int code = cli_written(run(argc, argv));
  if (!assay_plugin_here()) return code;
  const bool written = fflush(NULL) == 0;
  _exit(code == 0 && !written ? 1 : code);
}
