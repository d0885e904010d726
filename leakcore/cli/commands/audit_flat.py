"""The flat form of `leakcore audit`, in which options say which subcommand is meant. It goes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import click

from leakcore.cli.commands import audit as commands
from leakcore.cli.commands.audit_form import FILE, REPORT_KEYS, Described, Form, described, given, perform, width
from leakcore.cli.exit_codes import checked
from leakcore.cli.output import finish

_COMMANDS = (commands.run, commands.claim, commands.trace, commands.scores, commands.plan)
_FORMS = {form.name: form for form in (commands.RUN, commands.CLAIM, commands.TRACE, commands.SCORES)}
_ASKS = {"trace": "trace", "scores": "scores", "claim": "attack"}
"""Form of the audit: the option that asks for it."""
_WITH = {
    "trace": " is not allowed with --trace: the recorded run says it",
    "scores": " is not allowed with --scores",
    "claim": " is not allowed with --attack, nor with a --config that describes its audit",
}


class _Audit(click.Group):
    """Subcommands in the order of their help; an option of another one is answered with its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _flat(command: Any) -> Any:
    """The command with every option of the forms as well, once; hidden, since the subcommands show them."""
    options = {
        p.name: p
        for c in (commands.scores, commands.trace, commands.claim, commands.run)
        for p in c.params
        if isinstance(p, click.Option)
    }
    for option in options.values():
        hidden = copy.copy(option)
        hidden.hidden = True
        command.params.append(hidden)
    return command


@click.group(cls=_Audit, invoke_without_command=True)
@click.option("--trace", type=FILE, multiple=True, callback=commands._files, hidden=True)
@click.option("--scores", type=FILE, hidden=True)
@click.option("--attack", type=commands.ATTACKS, hidden=True)
@click.option("--plan", is_flag=True, hidden=True)
@click.pass_context
def audit(context: click.Context, /, **params: Any) -> None:
    """Audit a DP-SGD run: bounds, attacks and what they prove, in one report.

    Each of run, claim, trace and scores takes --config, a TOML file whose keys its options replace, and --fail-above, a
    limit on ε. Interrupted, the same command goes on where it stopped.

    \b
    Exit codes:
      0    nothing contradicts the claim, and no ε is above --fail-above
      1    an attack proves more than is claimed, or an ε is above the limit
      2    bad input, a gate that a part of a run cannot decide, or no place to write
      70   an error of leakcore's own
      130  interrupted (143: by SIGTERM)
      141  the reader of the output closed it (`| head`), whatever the answer; the report's files are written by then
    """
    options = given(params)
    if context.invoked_subcommand is not None:
        if options:
            raise click.UsageError(
                f"`{_option(next(iter(options)))}` must stand behind the subcommand, {context.invoked_subcommand}"
            )
        return
    if options.pop("plan", False):
        planned(options)
        return
    file = described(options.pop("config_path", None))
    perform(_form(file, options), options, file)


_flat(audit)
for _command in _COMMANDS:
    audit.add_command(_command)


def _form(file: Described, options: Mapping[str, Any]) -> Form:
    """The form that file and options ask for. Every option must belong to it."""
    asked = [(form, option) for form, option in _ASKS.items() if option in options]
    if len(asked) > 1:
        raise click.UsageError(f"give `--{asked[0][1]}` or `--{asked[1][1]}`, not both: they are different audits")
    if file.path is not None and file.form is None and not asked:
        from leakcore.audit import LACKING

        raise click.UsageError(f"`--config` {LACKING}, got {file.path}, which has only [report]")
    form = _FORMS[asked[0][0] if asked else file.form or "run"]
    if file.form is not None and form.name != file.form:
        other = "of a claimed ε" if file.form == "claim" else f"[{file.form}]"
        raise click.UsageError(
            f"`--{asked[0][1]}` is not allowed with --config {file.path}, which describes another audit, {other}"
        )
    for name in options:
        if name not in form.keys and name not in REPORT_KEYS:
            raise click.UsageError(f"`{_option(name)}`{_WITH.get(form.name) or _only_with(name)}")
    return form


def _option(name: str) -> str:
    return next(p.opts[0] for p in audit.params if p.name == name)


def _only_with(name: str) -> str:
    return " is allowed only with " + " or ".join(
        f"--{option}" for form, option in _ASKS.items() if name in _FORMS[form].keys
    )


_TAKES = ("epsilon", "delta", "confidence")


def planned(options: dict[str, Any]) -> None:
    """`leakcore audit --plan`. Every other option belongs to an audit that runs."""
    to_json = options.pop("json_path", None)
    if to_json not in (None, "-"):
        raise click.UsageError(f"`--json` must be given without a path with --plan, got {to_json}")
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in options:
        if name not in _TAKES:
            raise click.UsageError(
                f"`{flags[name]}` is not allowed with --plan, which takes --epsilon, --delta and --confidence"
            )
    _show(options, to_json == "-")


def _show(asked: dict[str, Any], as_json: bool) -> None:
    from leakcore import audit as audits

    how = {name: value for name, value in asked.items() if value is not None}
    result = checked(lambda: audits.plan(how.pop("epsilon", 10.0), **how))
    finish(result, as_json, lambda: result.to_text(width=width()))
