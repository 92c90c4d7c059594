// SPDX-License-Identifier: Apache-2.0
//
// The binary of one model: finds the command, parses its flags, and turns failures into one line and an exit code.
// Exit codes: 0 done; 1 `check` found a difference; 2 bad input or a failure, with one line on stderr; 3 the
// target failed, start the process anew; 130 interrupted.

#include "runtime/cli.h"
#include "runtime/tokenizer.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

static const struct command *const commands[] = {
    &command_run,  &command_eval,  &command_tokenize, &command_detokenize, &command_info,
    &command_plan, &command_check, &command_bench,    &command_serve,
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *file)
{
    fprintf(file, "%s: %s, %s\n\n", model.name, model.family, model.checkpoint);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(file, "  %s %-10s  %s\n", model.name, commands[i]->name, commands[i]->summary);
    fprintf(file, "\n  %s COMMAND --help says what a command takes; %s --version what was built.\n", model.name,
            model.name);
}

static int complain(const struct error *error)
{
    struct error shown = *error;
    for (char *c = shown.text; *c; c++) // input may be quoted in it
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fprintf(stderr, "%s: %s\n", model.name, *shown.text ? shown.text : "failed without a reason");
    return error->code ? error->code : EXIT_BAD;
}

static const struct command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

// A standard stream that is closed is taken by what can neither be read nor written: else what is opened later takes its place, and
// the text that is meant for it.
static void keep_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            return;
}

int main(int argc, char **argv)
{
    struct error error = {0};
    keep_streams();
    signal(SIGPIPE, SIG_IGN); // a closed reader is a write error, reported like any other
    if (argc < 2) {
        usage(stderr);
        return EXIT_BAD;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("%s %s %s %016llx\n", model.name, model.family, model.checkpoint, (unsigned long long)model.identity);
        return cli_flush(&error) ? 0 : complain(&error);
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return cli_flush(&error) ? 0 : complain(&error);
    }
    const struct command *command = find(argv[1]);
    if (!command) {
        error_set(&error, "unknown command \"%.60s\"; see %s --help", argv[1], model.name);
        return complain(&error);
    }
    const struct build_limits limits = {model.max_context, model.lanes, model.chunk,
                                        model.has_head ? model.window - 1 : 0, tokenizer_tables.vocabulary};
    struct settings settings;
    options_defaults(&settings, model.temperature, model.top_k, model.top_p, model.min_p);
    if (!options_parse(&settings, command, &limits, argc - 2, argv + 2, &error))
        return complain(&error);
    if (settings.help) {
        options_help(stdout, model.name, command, &limits);
        return cli_flush(&error) ? 0 : complain(&error);
    }
    int code = command->run(&settings, &error);
    if (code == EXIT_BAD)
        return complain(&error);
    return cli_flush(&error) ? code : complain(&error);
}
