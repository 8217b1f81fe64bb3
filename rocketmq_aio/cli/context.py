"""``rmq context`` and ``rmq completion``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import SHELLS, script
from rocketmq_aio.cli.confirm import ChangeArguments
from rocketmq_aio.cli.contexts import (
    Context,
    complete_contexts,
    config_file,
    load_contexts,
    save_contexts,
)
from rocketmq_aio.cli.output import FormatArguments, print_line, print_note, show_result
from rocketmq_aio.errors import ConfigError

app = Group("context", "Named connections.")
completion = Group("completion")
apps: Final = {"context": app, "completion": completion}
COLUMNS: Final = ("current", "name", "namesrv", "access_key", "tls", "namespace")


@options
class NameArguments:
    name: str = argument("Name of the context.", "NAME", complete=complete_contexts)


@options
class ShowArguments(FormatArguments):
    name: str | None = argument("Name of the context; default: the current one.", "NAME", None)


@options
class SetArguments(NameArguments):
    """Options of `set`; the file takes no secret keys."""

    namesrv: str | None = option("host:port, several joined by ';'.", "--namesrv", "-n")
    namespace: str | None = option("Namespace of topics and groups.")
    access_key: str | None = option("Account; rmq reads ROCKETMQ_SECRET_KEY, or prompts.")
    credentials_file: Path | None = option("File with accessKey=, secretKey= lines.")
    tls: bool | None = option("Use TLS.", "--tls/--no-tls")
    tls_ca_file: str | None = option("CA certificates to trust.")
    tls_cert_file: str | None = option("Client certificate.")
    tls_key_file: str | None = option("Key of the client certificate.")
    timeout: float | None = option("Seconds per request.", min=0.1)


@options
class DeleteArguments(ChangeArguments, NameArguments):
    """Options of `delete`."""


@command(app, "list", FormatArguments, "rmq context list -o json")
def _list(arguments: FormatArguments) -> int:
    """List the contexts."""
    found = load_contexts()
    rows = [
        {"current": name == found.current, "name": name, **msgspec.structs.asdict(each)}
        for name, each in sorted(found.contexts.items())
    ]
    show_result(rows, arguments.output, COLUMNS)
    return 0


@command(app, "show", ShowArguments, "rmq context show\nrmq context show prod")
def _show(arguments: ShowArguments) -> int:
    """Show a context."""
    found = load_contexts()
    if (name := arguments.name or found.current) is None:
        raise ConfigError("NAME", None, "is needed: there is no current context")
    values = {"name": name, **msgspec.structs.asdict(found.get(name)), "file": str(config_file())}
    show_result({key: each for key, each in values.items() if each is not None}, arguments.output)
    return 0


@command(app, "use", NameArguments, "rmq context use prod")
def _use(arguments: NameArguments) -> int:
    """Make a context the current one."""
    found = load_contexts()
    found.get(arguments.name)
    found.current = arguments.name
    save_contexts(found)
    print_note(f"{arguments.name} is the current context")
    return 0


@command(app, "set", SetArguments, "rmq context set prod -n 'ns1:9876;ns2:9876' --tls")
def _set(arguments: SetArguments) -> int:
    """Create or change a context; options that are not given stay. An empty text removes one."""
    from rocketmq_aio.model.address import check_namesrv

    if arguments.namesrv:
        check_namesrv(arguments.namesrv)
    given = {name: getattr(arguments, name) for name in Context.__struct_fields__}
    file = given["credentials_file"]
    given["credentials_file"] = None if file is None else str(file.absolute()) if file.name else ""
    found = load_contexts()
    merged = found.contexts.get(arguments.name, Context()).updated(given)
    kept = {name: each for name, each in msgspec.structs.asdict(merged).items() if each != ""}
    found.contexts[arguments.name] = Context(**kept)
    found.current = found.current or arguments.name
    save_contexts(found)
    print_note(f"{arguments.name} is stored in {config_file()}")
    return 0


@command(app, "delete", DeleteArguments, "rmq context delete old --yes")
def _delete(arguments: DeleteArguments) -> int:
    """Delete a context."""
    found = load_contexts()
    found.get(arguments.name)
    if arguments.confirm(f"delete context {arguments.name}"):
        del found.contexts[arguments.name]
        found.current = None if found.current == arguments.name else found.current
        save_contexts(found)
    return 0


@options
class ShellArguments:
    shell: str = argument(f"One of {', '.join(SHELLS)}.")


@command(
    completion,
    "completion",
    ShellArguments,
    'eval "$(rmq completion bash)"\nrmq completion zsh > ~/.zfunc/_rmq\n'
    "rmq completion fish > ~/.config/fish/completions/rmq.fish",
)
def _completion(arguments: ShellArguments) -> int:
    """Print the script that completes commands, options, topics, groups, brokers and contexts."""
    if arguments.shell not in SHELLS:
        raise ConfigError("SHELL", arguments.shell, f"expected one of {', '.join(SHELLS)}")
    print_line(script(arguments.shell))
    return 0
