"""The command line of the server.

What serves is imported when it is to serve: a supervisor, which stays in memory beside it, needs none of it.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Final

import attrs
import trio

from rustedvino import __version__
from rustedvino.config import ConfigError, LoadedConfig, check_bind, demo_config, load_config
from rustedvino.config.keys import KeyRing
from rustedvino.config.render import default_config_json, default_model_json
from rustedvino.hub.inventory import Inventory, InventoryProblem, load_inventory, render_details, render_table
from rustedvino.observe.logs import configure
from rustedvino.places import FILE_NAME, VARIABLE, ConfigNotFound, NoConfig, find_config
from rustedvino.sd_notify import take_notifier
from rustedvino.supervisor import supervise, tie_to_supervisor

log = logging.getLogger("rustedvino")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


def main(arguments: list[str] | None = None) -> int:
    """The ``rustedvino`` command. Returns its exit code."""
    tie_to_supervisor()
    options = _parser().parse_args(arguments)
    if options.print_default_config:
        print(default_config_json())
        return EXIT_OK
    if options.print_default_model:
        print(default_model_json())
        return EXIT_OK
    if options.list_devices or options.device_info:
        return _print_devices(options)
    try:
        config = _config(options)
        keys = open_keys(config)
        inventory = load_inventory(options.inventory) if options.inventory else None
    except (ConfigError, ConfigNotFound, InventoryProblem) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE  # a supervisor does not start it again
    if options.check_config:
        print("the configuration is valid")
        return EXIT_OK
    settings = config.settings
    logs = configure(settings.log_level, settings.log_format, show_prompts=settings.log_prompts)
    if options.supervise:
        given = list(sys.argv[1:] if arguments is None else arguments)
        # What is started again serves the same config, also when another one turns up in the places to look at.
        found = [] if options.demo or options.config is not None else ["--config", str(config.path)]
        return supervise(config, given + found)
    from rustedvino.serving import serve_alone

    notifier = take_notifier()
    keys.on_change(logs.redact.hide)
    _tell_about(keys)
    try:
        trio.run(serve_alone, config, inventory, logs.ring, notifier, keys)
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rustedvino", description="OpenAI-compatible inference server on OpenVINO GenAI"
    )
    source = parser.add_mutually_exclusive_group()
    elsewhere = f"else ${VARIABLE}, ./{FILE_NAME}, or your own"
    source.add_argument("--config", type=Path, metavar="FILE", help=f"settings to serve by; {elsewhere}")
    source.add_argument("--demo", action="store_true", help="serve the embedded demo model without a config")
    parser.add_argument(
        "--supervise",
        action="store_true",
        help="run the server in a child process; restart it when it dies or hangs",
    )
    parser.add_argument("--bind-addr", metavar="ADDR", help="listen on this address instead of the configured one")
    parser.add_argument(
        "--port", type=_port, help="listen on this port instead of the configured one; 0 = any free one"
    )
    parser.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="take the devices from this file (tests and dry runs of placement)",
    )
    parser.add_argument("--list-devices", action="store_true", help="print a line for each device and exit")
    parser.add_argument("--device-info", action="store_true", help="print all that is known of each device and exit")
    parser.add_argument("--check-config", action="store_true", help="report every problem of the config and exit")
    parser.add_argument("--print-default-config", action="store_true", help="print all global settings and exit")
    parser.add_argument("--print-default-model", action="store_true", help="print all per-model settings and exit")
    parser.add_argument("--version", action="version", version=f"rustedvino {__version__}")
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:  # the system would take the lowest 16 bits of it
        raise argparse.ArgumentTypeError(f"{port} is not between 0 and 65535")
    return port


def _print_devices(options: argparse.Namespace) -> int:
    try:
        inventory = load_inventory(options.inventory) if options.inventory else trio.run(_ask_inventory)
    except InventoryProblem as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(render_details(inventory) if options.device_info else render_table(inventory))
    return EXIT_OK


async def _ask_inventory() -> Inventory:
    from rustedvino.hub.hub import read_inventory

    async with trio.open_nursery() as processes:
        return await read_inventory(processes)


def _config(options: argparse.Namespace) -> LoadedConfig:
    """The configuration that the options ask for. Raises ConfigError and ConfigNotFound."""
    config = demo_config() if options.demo else load_config(options.config or _found_config())
    changes = {name: value for name in ("bind_addr", "port") if (value := getattr(options, name)) is not None}
    if changes:
        config = attrs.evolve(config, settings=attrs.evolve(config.settings, **changes))
    return config


def _found_config() -> Path:
    """The config file when none is given. Raises ConfigNotFound."""
    path = find_config(None)
    if path is None:
        raise NoConfig
    return path


def open_keys(config: LoadedConfig) -> KeyRing:
    """The keys to serve by. Raises ConfigError, also when the address needs keys and there are none."""
    keys = KeyRing.open(config.keys_path)
    problem = check_bind(config.settings, has_keys=keys.in_use)
    if problem is not None:
        raise ConfigError([problem])
    return keys


def _tell_about(keys: KeyRing) -> None:
    if keys.keys is None:
        log.info("serving without API keys; admin routes answer programs on this machine only")
        return
    for warning in keys.keys.warnings:
        log.warning("%s: %s", keys.path, warning)


if __name__ == "__main__":
    sys.exit(main())
