"""`navia serve`: a service that answers over HTTP and adapts behind its answers."""

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navia.cli import options
from navia.cli.terminal import (
    load_model,
    method_options,
)
from navia.errors import InputError, NaviaError
from navia.serve.settings import is_key

if TYPE_CHECKING:
    from navia.serve.service import Service

KEY_VARIABLE = "NAVIA_KEY"


def serve(
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    source: options.Source = None,
    method: options.Method = "navia",
    reduce: options.Reduce = "none",
    opt: options.Opt = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one beyond this machine needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8000,
    name: Annotated[
        list[str] | None, typer.Option(help="Name under which a proxy serves this, as in a page's address; repeatable.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for checkpoints: a restart goes on from there.")] = None,
    every: Annotated[int, typer.Option(help="Adaptation steps between checkpoints: what a kill may cost.", min=1)] = 20,
    every_seconds: Annotated[float, typer.Option(help="Seconds from a step to its checkpoint, at most.", min=0.1)] = 60.0,
    key_file: Annotated[
        Path | None,
        typer.Option(help=f"API keys, a line each: NAME:KEY, or KEY without a colon. Or one key in ${KEY_VARIABLE}."),
    ] = None,
    batch_size: options.BatchSize = 16,
    wait: Annotated[float, typer.Option(help="Milliseconds that an image waits for others, at most.", min=0)] = 5.0,
    adapt_batch: Annotated[int, typer.Option(help="Images of one adaptation step.", min=1)] = 32,
    adapt_wait: Annotated[float, typer.Option(help="Seconds after which a step is made with fewer (8 at least).")] = 30.0,
    adapt_threads: Annotated[int, typer.Option(help="CPU threads of the adaptation.", min=1)] = 1,
    adapt_share: Annotated[
        float, typer.Option(help="Share of the time that adaptation gets under full load, at least.", min=0, max=1)
    ] = 0.2,
    queue: Annotated[int, typer.Option(help="Images that may wait for their answer; more are refused (503).", min=1)] = 256,
    max_body: Annotated[float, typer.Option(help="Largest request, MiB.", min=0.001)] = 32.0,
    max_pixels: Annotated[float, typer.Option(help="Largest picture, millions of pixels.", min=0.001)] = 40.0,
    max_images: Annotated[int, typer.Option(help="Images in one request.", min=1)] = 64,
    rate: Annotated[float, typer.Option(help="Requests a second of one key; 0: no limit.", min=0)] = 0.0,
    burst: Annotated[int, typer.Option(help="Requests of one key at once, with --rate.", min=1)] = 20,
    wrong_keys: Annotated[
        int, typer.Option(help="Wrong keys a minute from one address; more are refused with 429; 0: no limit.", min=0)
    ] = 20,
    max_connections: Annotated[int, typer.Option(help="Connections at a time; more are refused (503).", min=1)] = 1024,
    timeout: Annotated[float, typer.Option(help="Seconds for a body to arrive, and for an answer.", min=0.1)] = 30.0,
    keep_images: Annotated[int, typer.Option(help="Pictures kept in memory for the dashboard; 0: none.", min=0)] = 12,
    crop_only: options.CropOnly = False,
    device: options.Device = "auto",
    plugins: options.Plugins = None,
) -> None:
    """Answer over HTTP, and adapt to the images behind the answers.

        navia serve --model timm:deit_tiny_patch16_224 --source clean/ --reduce tome:8 --state state/

    Every option can come from an environment variable: NAVIA_SERVE_PORT for --port.

    Dashboard at /, OpenAPI at /openapi.json, Prometheus at /metrics. Ctrl-C or SIGTERM: answers what is under way, writes a
    checkpoint, and ends.
    """
    from navia.adaptation.statistics import open_source_statistics
    from navia.serve.checkpoints import Checkpoints
    from navia.serve.service import Service
    from navia.serve.settings import Limits, Pace, Settings, is_loopback

    keys = _keys(key_file)
    if not keys and not is_loopback(host):
        raise InputError(f"{host} can be reached from other machines: give --key-file or ${KEY_VARIABLE}")
    settings = Settings(
        pace=Pace(
            batch=batch_size,
            wait=wait / 1000,
            adapt_batch=adapt_batch,
            adapt_wait=adapt_wait,
            enough=min(8, adapt_batch),
            threads=adapt_threads,
            share=adapt_share,
        ),
        limits=Limits(
            body_bytes=int(max_body * 2**20),
            images=max_images,
            pixels=int(max_pixels * 1e6),
            queue=queue,
            seconds=timeout,
            rate=rate,
            burst=burst,
            wrong_keys=wrong_keys,
            connections=max_connections,
        ),
        keys=keys,
        names=tuple(name or ()),
        keep_images=keep_images,
        checkpoint_every=every,
        checkpoint_seconds=every_seconds,
    )
    if state is not None:  # before the model is loaded and measured
        folder = Checkpoints(state)
        folder.claim()
        folder.release()
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    method_settings = method_options(method, opt)
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    statistics = None if source is None else open_source_statistics(vit, source, reduce, method=method)
    service = Service(vit, method, reduce, statistics, settings=settings, state=state, **method_settings)
    _run(service, host, port, timeout)


def _run(service: "Service", host: str, port: int, timeout: float) -> None:
    try:
        import uvicorn

        from navia.serve.app import make_app
        from navia.serve.settings import is_loopback
    except ImportError as missing:
        raise NaviaError(f"navia serve needs {missing.name}: pip install 'navia[serve]'") from missing

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                address, bound = self.servers[0].sockets[0].getsockname()[:2]
                shown = f"[{address}]" if ":" in address else address
                print(f"navia serves on http://{shown}:{bound}/ (Ctrl-C ends it)", flush=True)

        def handle_exit(self, sig: int, frame: Any) -> None:
            service.stop_adapting()  # the checkpoint does not wait for requests; open dashboards end
            self.force_exit = self.should_exit  # a second one ends at once
            self.should_exit = True

    config = uvicorn.Config(
        make_app(service, is_loopback(host)),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # requests are counted, not written down
        server_header=False,
        timeout_keep_alive=int(timeout) + 1,
        timeout_graceful_shutdown=int(timeout) + 5,
        limit_concurrency=service.settings.limits.connections,
    )
    server = Server(config)
    try:
        service.start()
        server.run()
    finally:
        service.stop()
    if not server.started:
        raise InputError(f"could not start on {host}:{port}; the lines above say why")


def _keys(path: Path | None) -> dict[str, str]:
    """name -> secret. Never from the command line, which every user of a machine can read.

    The variable holds one key as it is. A line of the file is NAME:KEY, split at its first colon, or a KEY without colons.
    """
    alone = os.environ.get(KEY_VARIABLE, "").strip()
    keys = {KEY_VARIABLE: alone} if alone else {}
    for number, line in enumerate(_lines(path), 1):
        name, colon, secret = line.partition(":")
        if colon and not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"line {number} of the key file: a key with a colon needs a name before it, as NAME:KEY")
        name, secret = (name, secret) if colon else (f"key {number}", line)
        if name in keys:
            raise InputError(f"two keys are named {name!r}: give each a name of its own")
        keys[name] = secret
    for name, secret in keys.items():
        if not is_key(secret):
            raise InputError(f"{name!r} is no key: ASCII letters, digits and signs only, without spaces, fit into a header")
        if len(secret) < 16:
            raise InputError(f"{name!r} is too short: a key has at least 16 characters, e.g. of openssl rand -hex 32")
    return keys


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = list(filter(None, map(str.strip, path.read_text(encoding="utf-8-sig").split("\n"))))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read keys from {str(path)!r}") from error
    if not lines:
        raise InputError(f"no keys in {str(path)!r}")
    return lines
