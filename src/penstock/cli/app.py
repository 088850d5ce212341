"""The command line: `app` holds the commands, `run` turns every outcome into an exit code.

Only declarations are loaded here. The work of a command lives in a module of `work`, loaded when it runs, so
that `penstock --help` does not wait for codecs, clients and tables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.commands import archive as archive_commands
from penstock.cli.commands import bench as bench_commands
from penstock.cli.commands import cluster as cluster_commands
from penstock.cli.commands import consume as consume_command
from penstock.cli.commands import dlq as dlq_commands
from penstock.cli.commands import group as group_commands
from penstock.cli.commands import log as log_commands
from penstock.cli.commands import mirror as mirror_commands
from penstock.cli.commands import pipeline as pipeline_commands
from penstock.cli.commands import produce as produce_command
from penstock.cli.commands import query as query_commands
from penstock.cli.commands import queue as queue_commands
from penstock.cli.commands import replay as replay_commands
from penstock.cli.commands import report as report_command
from penstock.cli.commands import schedule as schedule_commands
from penstock.cli.commands import topic as topic_commands
from penstock.cli.commands import trace as trace_commands
from penstock.cli.commands import transaction as transaction_commands
from penstock.cli.commands import user as user_commands
from penstock.cli.failure import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    TRACEBACK_VARIABLE,
    exit_code_of,
    report,
    sentence_of,
    silence_standard_output,
    wants_json,
)
from penstock.cli.wait_lines import waits_told


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def options(
    *,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    user: Annotated[
        str | None, typer.Option("--user", envvar="PENSTOCK_USER", help="Who logs in at the broker; default: nobody.")
    ] = None,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            envvar="PENSTOCK_PASSWORD_FILE",
            metavar="FILE",
            help="Its first line is the password. Without it: PENSTOCK_PASSWORD, or you are asked.",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism",
            envvar="PENSTOCK_SASL_MECHANISM",
            help="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.  [default: SCRAM-SHA-512]",
        ),
    ] = None,
) -> None:
    if user:
        from penstock.cli.secret_input import remember_login

        remember_login(user, password_file=password_file, mechanism=mechanism)


def new_app() -> typer.Typer:
    """Without a command yet. One that holds a single command is ready to run at once: for all of them Typer reads some
    hundred declarations, a tenth of a second."""
    application = typer.Typer(
        name="penstock",
        help="One durable log, consumed every way.",
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
    )
    application.callback()(options)
    return application


app = new_app()
app.add_typer(topic_commands.app, name="topic")
app.command("produce")(produce_command.produce)
app.command("consume")(consume_command.consume)
app.add_typer(group_commands.app, name="group")
app.add_typer(queue_commands.app, name="queue")
app.add_typer(dlq_commands.app, name="dlq")
app.add_typer(schedule_commands.app, name="schedule")
app.command("trace")(trace_commands.trace)
app.command("why")(trace_commands.why)
app.add_typer(transaction_commands.app, name="transaction")
app.command("report")(report_command.report)
app.add_typer(mirror_commands.app, name="mirror")
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(log_commands.app, name="log")
app.add_typer(pipeline_commands.app, name="pipeline")
app.add_typer(user_commands.app, name="user")
app.add_typer(archive_commands.app, name="archive")
app.command("query")(query_commands.query)
app.command("replay")(replay_commands.replay)
app.add_typer(bench_commands.app, name="bench")


def run(application: typer.Typer, arguments: list[str] | None = None) -> int:
    """Runs one command line; the exit code. Whatever happens, a failure is one sentence on standard error; with --json
    it is a JSON object there, so that a program that reads ours need not read English."""
    as_json = wants_json(sys.argv[1:] if arguments is None else arguments)
    try:
        with waits_told(as_json=as_json):
            code = _invoke(application, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_standard_output()
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # the edge of the process: a traceback is no message
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        sentence = _sentence_of(error)
        if sentence is not None:
            report(sentence, exit_code=exit_code_of(error), as_json=as_json)
        return exit_code_of(error)
    return code


def _invoke(application: typer.Typer, arguments: list[str] | None) -> int:
    try:
        result = _command_of(application)(args=arguments, standalone_mode=False)
    except SystemExit as ending:
        # Typer ends the process when the reader of our output has gone: that is its context, not a failure.
        if isinstance(ending.__context__, BrokenPipeError):
            raise ending.__context__ from None
        return ending.code if isinstance(ending.code, int) else EXIT_FAILED
    return result if isinstance(result, int) else 0


@cache
def _command_of(application: typer.Typer) -> Callable[..., object]:
    """All commands with their options, made of the declarations once: a tenth of a second of a processor."""
    return typer.main.get_command(application)


def _sentence_of(error: Exception) -> str | None:
    """None: everything is said already. Typer's own errors are known by what they can do: where their classes live
    differs between versions."""
    format_message = getattr(error, "format_message", None)
    if type(error).__name__ == "Abort":
        return "nobody answered, so nothing was done"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(str(error))
        return None
    if format_message is not None:
        text = str(format_message()).rstrip()
        return f"{text[:1].lower()}{text[1:].rstrip('.')} (see --help)"
    return sentence_of(error)
