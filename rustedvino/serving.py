"""A server from its start to its end: nurseries, signals, the order of the shutdown."""

import gc
import logging
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import trio

from rustedvino.config import LoadedConfig
from rustedvino.config.keys import KeyRing
from rustedvino.config.store import ConfigStore
from rustedvino.http.app import create_app, plain_headers
from rustedvino.http.context import ServerContext, git_hash
from rustedvino.http.listener import open_listener
from rustedvino.http.options import ServeOptions
from rustedvino.http.serve import HttpServer, serve
from rustedvino.hub.admin import Admin
from rustedvino.hub.hub import Hub
from rustedvino.hub.inventory import Inventory
from rustedvino.observe.ring import LogRing
from rustedvino.sd_notify import Notifier, keep_alive

log = logging.getLogger("rustedvino")

LAST_WORDS_SECS: Final = 2.0
"""How long aborted answers may take to send their error before their connections are reset."""

END_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))


async def run_server(
    config: LoadedConfig,
    inventory: Inventory | None,
    log_ring: LogRing,
    notifier: Notifier,
    keys: KeyRing,
    *,
    task_status: trio.TaskStatus[tuple[HttpServer, Hub]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until SIGINT or SIGTERM: stop accepting, drain, abort the rest, end the workers. A second signal ends at
    once. ``inventory`` stands for this machine's devices; ``notifier`` tells the service manager. Raises OSError when
    the address cannot be listened on."""
    settings = config.settings
    listener = open_listener(settings.bind_addr, settings.port, client_stall_secs=settings.client_stall_secs)
    options = ServeOptions(client_stall_secs=settings.client_stall_secs, answer_headers=lambda: list(plain_headers()))
    hub = Hub(settings, inventory)
    keys.on_use(hub.metrics.key_used)
    keys.on_change(hub.metrics.keys.set_keys)
    with trio.open_signal_receiver(*END_SIGNALS) as signals:
        async with trio.open_nursery() as outer:
            await outer.start(hub.run)
            admin = Admin(hub, ConfigStore(config))
            app = create_app(ServerContext(settings, hub, git_hash(), admin, log_ring, keys))
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


async def serve_alone(
    config: LoadedConfig, inventory: Inventory | None, log_ring: LogRing, notifier: Notifier, keys: KeyRing
) -> None:
    """As ``run_server``, as this process's only work."""
    # What holds again when the server has ended: one more signal, also one that nobody has taken yet, must not turn
    # a clean end into a death by it.
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    await run_server(config, inventory, log_ring, notifier, keys)
