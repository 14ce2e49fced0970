"""Start-up, signals and shutdown of the server, and its command line."""

import argparse
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from rustedvino import __version__
from rustedvino.config import ConfigError, LoadedConfig, check_bind, demo_config, load_config
from rustedvino.config.keys import KeyRing
from rustedvino.config.render import default_config_json, default_model_json
from rustedvino.config.store import ConfigStore
from rustedvino.http.app import create_app, plain_headers
from rustedvino.http.context import ServerContext, git_hash
from rustedvino.http.listener import open_listener
from rustedvino.http.options import ServeOptions
from rustedvino.http.serve import HttpServer, serve
from rustedvino.hub.admin import Admin
from rustedvino.hub.hub import Hub, read_inventory
from rustedvino.hub.inventory import Inventory, InventoryProblem, load_inventory, render_details, render_table
from rustedvino.observe.logs import configure
from rustedvino.observe.ring import LogRing
from rustedvino.sd_notify import Notifier, keep_alive, take_notifier
from rustedvino.supervisor import supervise, tie_to_supervisor

log = logging.getLogger("rustedvino")

LAST_WORDS_SECS: Final = 2.0
"""How long aborted answers may take to send their error before their connections are reset."""

END_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


async def run_server(
    config: LoadedConfig,
    inventory: Inventory | None = None,
    log_ring: LogRing | None = None,
    notifier: Notifier | None = None,
    keys: KeyRing | None = None,
    *,
    task_status: trio.TaskStatus[tuple[HttpServer, Hub]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until SIGINT or SIGTERM: stop accepting, drain, abort the rest, end the workers. A second signal ends at
    once. ``notifier`` tells the service manager; ``keys`` are read from their file when they are not given. Raises
    OSError when the address cannot be listened on, ConfigError when the keys cannot be used."""
    settings = config.settings
    notifier = notifier or Notifier(None)
    keys = open_keys(config) if keys is None else keys
    listener = open_listener(settings.bind_addr, settings.port, client_stall_secs=settings.client_stall_secs)
    options = ServeOptions(client_stall_secs=settings.client_stall_secs, answer_headers=lambda: list(plain_headers()))
    hub = Hub(settings, inventory)
    keys.on_use(hub.metrics.key_used)
    keys.on_change(hub.metrics.keys.set_keys)
    with trio.open_signal_receiver(*END_SIGNALS) as signals:
        async with trio.open_nursery() as outer:
            await outer.start(hub.run)
            admin = Admin(hub, ConfigStore(config))
            app = create_app(ServerContext(settings, hub, git_hash(), admin, log_ring or LogRing(), keys))
            async with trio.open_nursery() as inner:
                http: HttpServer = await inner.start(partial(serve, app, [listener], options=options))
                for host, port in http.addresses:
                    log.info("listening on http://%s:%d", host, port)
                task_status.started((http, hub))
                notifier.ready()
                inner.start_soon(keep_alive, notifier)
                # What lives for the whole run need not be looked at by every full collection, which stops the loop.
                gc.collect()
                gc.freeze()
                await anext(signals)
                notifier.stopping()
                log.info("shutting down; running requests may take up to %g s", settings.shutdown_drain_secs)
                inner.start_soon(_end_at_second_signal, signals, outer.cancel_scope)
                await _shut_down(http, hub, settings.shutdown_drain_secs)
                inner.cancel_scope.cancel()
            outer.cancel_scope.cancel()
    log.info("ended")


async def _shut_down(http: HttpServer, hub: Hub, drain_secs: float) -> None:
    if await http.drain(trio.current_time() + drain_secs):
        return
    log.warning("aborting what still runs")
    hub.abort("the server is shutting down")
    await http.drain(trio.current_time() + LAST_WORDS_SECS)
    http.abort_all()


async def _end_at_second_signal(signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
    await anext(signals)
    log.warning("second signal: ending at once")
    everything.cancel()


async def _serve(
    config: LoadedConfig, inventory: Inventory | None, log_ring: LogRing, notifier: Notifier, keys: KeyRing
) -> None:
    """Serve as this process's only work."""
    # What holds again when the server has ended: one more signal, also one that nobody has taken yet, must not turn
    # a clean end into a death by it.
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    await run_server(config, inventory, log_ring, notifier, keys)


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
    except (ConfigError, InventoryProblem) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE  # a supervisor does not start it again
    if options.check_config:
        print("the configuration is valid")
        return EXIT_OK
    logs = configure(config.settings.log_level, config.settings.log_format)
    if options.supervise:
        return supervise(config, sys.argv[1:] if arguments is None else arguments)
    notifier = take_notifier()
    keys.on_change(logs.redact.hide)
    _tell_about(keys)
    try:
        trio.run(_serve, config, inventory, logs.ring, notifier, keys)
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rustedvino", description="OpenAI-compatible inference server on OpenVINO GenAI"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", type=Path, metavar="FILE", help="settings to serve by")
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
    async with trio.open_nursery() as processes:
        return await read_inventory(processes)


def _config(options: argparse.Namespace) -> LoadedConfig:
    """The configuration that the options ask for. Raises ConfigError."""
    config = demo_config() if options.demo else load_config(options.config or Path("config.json"))
    changes = {name: value for name in ("bind_addr", "port") if (value := getattr(options, name)) is not None}
    if changes:
        config = attrs.evolve(config, settings=attrs.evolve(config.settings, **changes))
    return config


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
