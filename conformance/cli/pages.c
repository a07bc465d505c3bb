/* pages.c: manual pages and shell completion, from the table of commands and the table of options. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "conformance/text/text.h"
#include "core/registry.h"
#include "table.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

/* ---- manual pages ------------------------------------------------------------------------------------ */

/* Writes text into a line of roff, with the characters escaped that roff would read as its own. */
static void roff(FILE *to, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i)
    switch (text[i]) {
    case '\\':
      (void)fputs("\\e", to);
      break;
    case '-':
      (void)fputs("\\-", to);
      break;
    case '\'':
      (void)fputs("\\(aq", to);
      break;
    case '.':
      (void)fputs(i == 0 ? "\\&." : ".", to);
      break;
    default:
      (void)fputc(text[i], to);
    }
}

static void roff_text(FILE *to, const char *text) {
  roff(to, text, strlen(text));
}

/* Writes a paragraph as lines of roff that are not too long. */
static void roff_fill(FILE *to, const char *text) {
  enum { WIDE = 76 };
  size_t column = 0;
  for (text += strspn(text, " "); *text != '\0';) {
    const size_t length = strcspn(text, " \n");
    if (column > 0 && column + 1 + length > WIDE) {
      (void)fputc('\n', to);
      column = 0;
    } else if (column > 0) {
      (void)fputc(' ', to);
      ++column;
    }
    roff(to, text, length);
    column += length;
    text += length;
    text += strspn(text, " \n");
  }
  (void)fputc('\n', to);
}

/* "assay-bench-scenario" */
static void page_name(const cli_command *command, char *name, size_t size) {
  (void)snprintf(name, size, "assay-%s", command->name);
  for (char *at = name; *at != '\0'; ++at)
    if (*at == ' ') *at = '-';
}

static void put_title(FILE *to, const char *name) {
  (void)fprintf(to, ".\\\" Written by assay --man.\n.TH \"");
  for (const char *at = name; *at != '\0'; ++at) {
    const char letter = (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    roff(to, &letter, 1);
  }
  (void)fprintf(to, "\" 1 \"\" \"assay " ASSAY_VERSION "\" \"assay manual\"\n");
}

static void put_option(FILE *to, const char *typed, const char *value, const char *doc) {
  (void)fputs(".TP\n.B ", to);
  roff_text(to, typed);
  if (value != NULL) {
    (void)fputs(" \\fI", to);
    roff_text(to, value);
    (void)fputs("\\fP", to);
  }
  (void)fputc('\n', to);
  roff_fill(to, doc);
}

static void put_exit(FILE *to) {
  static const char *const status[][2] = {
      {"0", "All is good, and something ran."},
      {"1", "A failure."},
      {"2",
       "Bad input: the message names the place or the parameter, what was found and what is allowed. Nothing ran."},
      {"3", "Nothing ran."},
      {"77", "There is no such device here."},
      {"130, 143", "Interrupted by SIGINT, SIGTERM."}};
  (void)fputs(".SH EXIT STATUS\n", to);
  for (size_t i = 0; i < sizeof status / sizeof *status; ++i)
    put_option(to, status[i][0], NULL, status[i][1]);
}

static void put_options(FILE *to, const cli_command *command) {
  (void)fputs(".SH OPTIONS\n", to);
  for (int topic = TOPIC_CASES; topic <= TOPIC_FILES; ++topic) {
    const cli_option *row = NULL;
    bool headed = false;
    for (int32_t n = 0; (row = command_option(command, n)) != NULL; ++n) {
      if ((int)row->topic != topic) continue;
      const char *heading = option_topic(row->topic);
      if (!headed) (void)fprintf(to, ".SS %.*s\n", (int)strcspn(heading, ":"), heading);
      headed = true;
      char typed[40];
      option_typed(row, typed, sizeof typed);
      put_option(to, typed, row->value, row->doc);
    }
  }
  (void)fputs(".SS Help\n", to);
  put_option(to, "--help", NULL, "prints a summary of this page");
}

static void put_examples(FILE *to, const char *examples) {
  if (examples == NULL) return;
  (void)fputs(".SH EXAMPLES\n.nf\n", to);
  while (*examples != '\0') {
    const size_t length = strcspn(examples, "\n");
    roff(to, examples, length);
    (void)fputc('\n', to);
    examples += length + (examples[length] == '\n');
  }
  (void)fputs(".fi\n", to);
}

static void put_command(FILE *to, const cli_command *command) {
  char name[80];
  page_name(command, name, sizeof name);
  put_title(to, name);
  (void)fputs(".SH NAME\n", to);
  roff_text(to, name);
  (void)fputs(" \\- ", to);
  roff_text(to, command->brief);
  (void)fputs("\n.SH SYNOPSIS\n.B assay ", to);
  roff_text(to, command->name);
  (void)fputs(command_option(command, 0) != NULL ? "\n[\\fIoption\\fP...] " : "\n", to);
  roff_text(to, command->arguments);
  (void)fputs(command->arguments[0] != '\0' ? "\n.SH DESCRIPTION\n" : ".SH DESCRIPTION\n", to);
  roff_text(to, command->brief);
  (void)fputs(".\n", to);
  if (command->text != NULL) {
    (void)fputs(".PP\n", to);
    roff_fill(to, command->text);
  }
  put_options(to, command);
  put_exit(to);
  put_examples(to, command->examples);
  (void)fputs(".SH SEE ALSO\n.BR assay (1)\n", to);
}

static void put_program(FILE *to) {
  const cli_command *command = NULL;
  int headed = 0;
  put_title(to, "assay");
  (void)fputs(".SH NAME\nassay \\- reference and conformance suite for LLM inference kernels\n"
              ".SH SYNOPSIS\n.B assay\n.I command\n[\\fIoption\\fP...] [\\fIargument\\fP...]\n"
              ".SH DESCRIPTION\n"
              "assay says whether a kernel computes what its operator defines.\n"
              "If not, it shows the first wrong element and the line that reproduces it.\n.SH COMMANDS\n",
              to);
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i) {
    if (command->topic == 0) continue;
    const char *heading = command_topic(command->topic);
    if (command->topic != headed) (void)fprintf(to, ".SS %.*s\n", (int)strcspn(heading, ":"), heading);
    headed = command->topic;
    put_option(to, command->name, command->arguments[0] != '\0' ? command->arguments : NULL, command->brief);
  }
  (void)fputs(".SH OPTIONS\n", to);
  put_option(to, "--help", NULL, "prints a summary of this page");
  put_option(to, "--version", NULL, "prints the version");
  put_exit(to);
  (void)fputs(".SH ENVIRONMENT\n.TP\n.B ASSAY_SUITES\nThe folder of the suites that are known by name.\n"
              ".TP\n.B ASSAY_FIXTURES\nThe folder of recorded data: traces, past failures.\n.SH SEE ALSO\n",
              to);
  for (int32_t i = 0, n = 0; (command = command_at(i)) != NULL; ++i) {
    char name[80];
    if (command->topic == 0) continue;
    page_name(command, name, sizeof name);
    (void)fputs(n++ > 0 ? " ,\n.BR " : ".BR ", to);
    roff_text(to, name);
    (void)fputs(" (1)", to);
  }
  (void)fputc('\n', to);
}

static assay_status write_page(const char *folder, const cli_command *command, assay_error *error) {
  char path[4096], name[80] = "assay";
  text_file file;
  memset(&file, 0, sizeof file);
  if (command != NULL) page_name(command, name, sizeof name);
  (void)snprintf(path, sizeof path, "%.3900s/%s.1", folder, name);
  const assay_status status = text_open(&file, path, error);
  if (status != ASSAY_OK) return status;
  if (command != NULL)
    put_command(file.stream, command);
  else
    put_program(file.stream);
  return text_close(&file, error);
}

assay_status man_write(const char *folder, assay_error *error) {
  const cli_command *command = NULL;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return assay_fail(error, ASSAY_ERR_INPUT, "--man: folder '%s' cannot be made: %s", folder, strerror(errno));
  assay_status status = write_page(folder, NULL, error);
  for (int32_t i = 0; (command = command_at(i)) != NULL && status == ASSAY_OK; ++i)
    if (command->topic != 0) status = write_page(folder, command, error);
  return status;
}

/* ---- completion -------------------------------------------------------------------------------------- */

/* Writes "a, b" without commas. */
static void put_words(FILE *to, const char *words) {
  for (; *words != '\0'; ++words)
    if (*words != ',') (void)fputc(*words, to);
}

/* Writes the part that both shells read: functions that print words. "@file" and the like stand for names that the
 * shell finds. */
static void put_tables(FILE *to) {
  const cli_command *command = NULL;
  const cli_option *row = NULL;
  (void)fputs("_assay_commands() {\n  echo '", to);
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i)
    if (command->topic != 0 && strchr(command->name, ' ') == NULL)
      (void)fprintf(to, "%s%s", i > 0 ? " " : "", command->name);
  (void)fputs("'\n}\n_assay_ops() {\n  echo '", to);
  for (int32_t i = 0; i < assay_op_count(); ++i)
    (void)fprintf(to, "%s%s", i > 0 ? " " : "", assay_op_at(i)->name);
  (void)fputs("'\n}\n_assay_variants() {\n  echo '", to);
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    int32_t same = 0; /* on another device */
    while (strcmp(assay_variant_at(same)->op, v->op) != 0 || strcmp(assay_variant_at(same)->name, v->name) != 0)
      ++same;
    if (same == i) (void)fprintf(to, "%s%s=%s", i > 0 ? " " : "", v->op, v->name);
  }
  (void)fputs("'\n}\n_assay_options() {\n  case $1 in\n", to);
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i) {
    if (command->topic == 0) continue;
    (void)fprintf(to, "    '%s') echo '", command->name);
    for (int32_t n = 0; (row = command_option(command, n)) != NULL; ++n) {
      char typed[40];
      option_typed(row, typed, sizeof typed);
      (void)fprintf(to, "%s ", typed);
    }
    (void)fputs("--help' ;;\n", to);
  }
  (void)fputs("    '') echo '--help --version' ;;\n  esac\n}\n_assay_words() {\n  case $1 in\n", to);
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i)
    if (command->topic != 0 && command->words[0] != '\0')
      (void)fprintf(to, "    '%s') echo '%s' ;;\n", command->name, command->words);
  /* A further word of a command whose first word is a topic. */
  (void)fputs("    'list ops') echo '@op' ;;\n    'list cases') echo '@suite' ;;\n    '') _assay_commands ;;\n"
              "  esac\n}\n"
              "# Prints nothing for an option without a value.\n_assay_values() {\n  case \"$1 $2\" in\n",
              to);
  for (int32_t i = 0; (command = command_at(i)) != NULL; ++i) {
    if (command->topic == 0) continue;
    for (int32_t n = 0; (row = command_option(command, n)) != NULL; ++n) {
      char typed[40];
      if (row->value == NULL) continue;
      option_typed(row, typed, sizeof typed);
      (void)fprintf(to, "    '%s %s') echo '", command->name, typed);
      put_words(to, row->words != NULL ? row->words : "@none");
      (void)fputs("' ;;\n", to);
    }
  }
  (void)fputs("  esac\n}\n", to);
}

/* Sets command, topic and value from the words before the one that is completed. */
static const char shared[] =
    "# _assay_place WORD...: the words between the program and the one that is completed. Sets place to the command,\n"
    "# or to \"list ops\" and the like, and value to an option that waits for its value.\n"
    "_assay_place() {\n"
    "  local word command=\n"
    "  place= value=\n"
    "  for word in \"$@\"; do\n"
    "    if [[ -n $value ]]; then\n"
    "      value=\n"
    "    elif [[ $word == -*=* ]]; then\n"
    "      :\n"
    "    elif [[ $word == -* ]]; then\n"
    "      if [[ -n $(_assay_values \"$command\" \"$word\") ]]; then value=$word; fi\n"
    "    elif [[ -z $command ]]; then\n"
    "      command=$word place=$word\n"
    "    elif [[ $place == \"$command\" ]]; then\n"
    "      case \"$command $word\" in\n"
    "        'bench scenario' | 'bench online' | 'truth onnx' | 'truth tensors' | 'truth llama2c' | "
    "'truth hf')\n"
    "          command=\"$command $word\" place=$command ;;\n"
    "        'list '*) place=\"list $word\" ;;\n"
    "      esac\n"
    "    fi\n"
    "  done\n"
    "}\n"
    "# _assay_expand WORD...: words as they are; @op, @suite, @variant, @command as the names they stand for.\n"
    "_assay_expand() {\n"
    "  local word\n"
    "  for word in \"$@\"; do\n"
    "    case $word in\n"
    "      @op | @suite) _assay_ops ;;\n"
    "      @variant) _assay_variants ;;\n"
    "      @command) _assay_commands ;;\n"
    "      @*) ;;\n"
    "      *) echo \"$word\" ;;\n"
    "    esac\n"
    "  done\n"
    "}\n";

static const char bash_end[] =
    "_assay() {\n"
    "  local line=${COMP_LINE:0:COMP_POINT} current= place value list word words=()\n"
    "  read -ra words <<<\"$line\"\n"
    "  if [[ $line != *[[:blank:]] ]]; then current=${words[-1]} words=(\"${words[@]:0:${#words[@]}-1}\"); fi\n"
    "  _assay_place \"${words[@]:1}\"\n"
    "  local of=${place/#list */list} before=\n"
    "  if [[ -z $value && $current == --*=* ]]; then value=${current%%=*} before=$value=; fi\n"
    "  if [[ -n $value ]]; then\n"
    "    list=$(_assay_values \"$of\" \"$value\")\n"
    "  elif [[ $current == -* ]]; then\n"
    "    list=$(_assay_options \"$of\")\n"
    "  else\n"
    "    list=$(_assay_words \"$place\")\n"
    "  fi\n"
    "  local part=${current#\"$before\"}\n"
    "  COMPREPLY=()\n"
    "  # shellcheck disable=SC2046,SC2086 # lists of words\n"
    "  while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -W \"$(_assay_expand $list)\" -- "
    "\"$part\")\n"
    "  case \" $list \" in\n"
    "    *' @file '* | *' @suite '* | *' @plugin '*)\n"
    "      compopt -o filenames 2>/dev/null\n"
    "      while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -f -- \"$part\") ;;\n"
    "    *' @folder '*)\n"
    "      compopt -o filenames 2>/dev/null\n"
    "      while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -d -- \"$part\") ;;\n"
    "  esac\n"
    "  # readline replaces only what stands after the last '='.\n"
    "  if [[ $part == *=* ]]; then COMPREPLY=(\"${COMPREPLY[@]#\"${part%=*}=\"}\"); fi\n"
    "}\n"
    "complete -F _assay assay\n";

static const char zsh_end[] = "_assay() {\n"
                              "  local place value list current=${words[CURRENT]}\n"
                              "  _assay_place \"${(@)words[2,CURRENT-1]}\"\n"
                              "  local of=${place/#list */list}\n"
                              "  if [[ -z $value && $current == --*=* ]]; then\n"
                              "    value=${current%%=*}\n"
                              "    compset -P '--[a-z-]#='\n"
                              "  fi\n"
                              "  if [[ -n $value ]]; then\n"
                              "    list=$(_assay_values \"$of\" \"$value\")\n"
                              "  elif [[ $current == -* ]]; then\n"
                              "    list=$(_assay_options \"$of\")\n"
                              "  else\n"
                              "    list=$(_assay_words \"$place\")\n"
                              "  fi\n"
                              "  local -a found\n"
                              "  found=(${=$(_assay_expand ${=list})})\n"
                              "  (( ${#found} )) && compadd -a found\n"
                              "  case \" $list \" in\n"
                              "    *' @file '* | *' @suite '* | *' @plugin '*) _files ;;\n"
                              "    *' @folder '*) _files -/ ;;\n"
                              "  esac\n"
                              "}\n"
                              "_assay \"$@\"\n";

assay_status completion_print(const char *shell, FILE *to, assay_error *error) {
  const bool bash = strcmp(shell, "bash") == 0;
  if (!bash && strcmp(shell, "zsh") != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "--completion: found '%.60s', allowed: bash, zsh", shell);
  if (!bash) (void)fputs("#compdef assay\n", to);
  (void)fprintf(to, "%s# Completion of assay for %s. Written by assay --completion %s.\n",
                bash ? "# shellcheck shell=bash\n" : "", shell, shell);
  put_tables(to);
  (void)fputs(shared, to);
  (void)fputs(bash ? bash_end : zsh_end, to);
  return ferror(to) ? assay_fail(error, ASSAY_ERR_IO, "--completion: cannot be written") : ASSAY_OK;
}
